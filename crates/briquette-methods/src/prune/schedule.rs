//! Pruning schedules: when masks are updated, and the sparsity at each step.

use crate::prune::{Ratio, budget};
use briquette_core::{Error, Result};
use std::ops::Range;

/// How the sparsity rises over the training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Constant,
    Linear,
    Cubic,
}

/// When masks or grids are updated: every `n` steps from a begin to an end, both included.
///
/// Steps count optimizer updates: the first update is step 1, and attaching is step 0. A schedule over `0..300`
/// makes its last update, and reaches its full sparsity, when `refresh` is called after the 300th update. Call
/// `refresh` after each step, or every few steps: an update that came due in between happens at the next call,
/// with the sparsity of that call's step.
///
/// With `d = (t - begin) / (end - begin)`, the sparsity is `s(t) = s0` before the begin and `s1` from the end
/// on. In between it is `s1` (constant), `s0 + (s1 - s0) d` (linear) or `s1 + (s0 - s1)(1 - d)^3` (cubic; Zhu
/// and Gupta, "To prune, or not to prune", 2017, eq. 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    course: Course,
    begin: usize,
    end: usize,
    every: usize,
}

impl Schedule {
    /// Creates a schedule with the full sparsity when attached and no later updates.
    pub fn once() -> Self {
        Self::constant(0..0)
    }

    /// Creates a schedule with the full sparsity from the first step on.
    pub fn constant(steps: Range<usize>) -> Self {
        Self { course: Course::Constant, begin: steps.start, end: steps.end, every: 1 }
    }

    /// Creates a schedule whose sparsity grows linearly.
    pub fn linear(steps: Range<usize>) -> Self {
        Self { course: Course::Linear, ..Self::constant(steps) }
    }

    /// Creates a schedule whose sparsity grows fast at first, then slowly (Zhu and Gupta).
    pub fn cubic(steps: Range<usize>) -> Self {
        Self { course: Course::Cubic, ..Self::constant(steps) }
    }

    /// Sets the number of steps between updates; the default is 1.
    #[must_use]
    pub fn every(mut self, n: usize) -> Self {
        self.every = n;
        self
    }

    /// Returns whether the sparsity has its full value from the begin on.
    pub fn is_constant(&self) -> bool {
        self.course == Course::Constant
    }

    /// Checks that the schedule comes due at least once.
    ///
    /// # Errors
    /// Config: the schedule updates every 0 steps, or its end is before its begin.
    pub fn check(&self) -> Result<()> {
        if self.every == 0 || self.end < self.begin {
            let Self { begin, end, every, .. } = self;
            let message = format!("the schedule over {begin}..{end} every {every} steps never updates");
            return Err(Error::config(format!(
                "{message}; use an interval of at least 1 and an end not before the begin"
            )));
        }
        Ok(())
    }

    /// Returns whether step `t` is at or after the begin.
    pub fn has_begun(&self, step: usize) -> bool {
        step >= self.begin
    }

    /// Returns whether masks or grids are updated at this step.
    pub fn is_due(&self, step: usize) -> bool {
        step == self.end || (self.begin..self.end).contains(&step) && (step - self.begin).is_multiple_of(self.every)
    }

    /// Returns the last update step up to `step`; `None` before the begin.
    pub fn last_due(&self, step: usize) -> Option<usize> {
        if step >= self.end {
            return Some(self.end);
        }
        let since = step.checked_sub(self.begin)?;
        Some(self.begin + since / self.every.max(1) * self.every)
    }

    /// Returns whether an update is due after `since` and up to `step`, or at `step` itself.
    pub fn is_due_since(&self, since: usize, step: usize) -> bool {
        self.last_due(step).is_some_and(|due| due > since || due == step)
    }

    /// Returns a schedule with a single update at the begin.
    pub fn begin_only(self) -> Self {
        Self { end: self.begin, ..self }
    }

    /// Returns the sparsity at a step, from `from` at the begin to `to` at the end.
    pub fn ratio(&self, step: usize, from: Ratio, to: Ratio) -> Ratio {
        if !self.has_begun(step) {
            return from;
        }
        if step >= self.end || self.course == Course::Constant {
            return to;
        }
        if self.course == Course::Cubic {
            return budget::cubic(step, self.begin..self.end, from, to);
        }
        let done = (step - self.begin) as f64 / (self.end - self.begin) as f64;
        Ratio::new(from.get() + (to.get() - from.get()) * done).unwrap_or(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_due_at_its_begin_its_end_and_every_few_steps() {
        let schedule = Schedule::cubic(10..21).every(5);
        assert_eq!((0..40).filter(|&step| schedule.is_due(step)).collect::<Vec<_>>(), [10, 15, 20, 21]);
        assert_eq!((0..9).filter(|&step| Schedule::once().is_due(step)).collect::<Vec<_>>(), [0]);
        for step in 0..40 {
            let last = (0..=step).rev().find(|&step| schedule.is_due(step));
            assert_eq!(schedule.last_due(step), last, "{step}");
            for since in 0..40 {
                let expected = schedule.is_due(step) || (since + 1..=step).any(|step| schedule.is_due(step));
                assert_eq!(schedule.is_due_since(since, step), expected, "after {since} up to {step}");
            }
        }
        let forever = Schedule::constant(0..usize::MAX).every(10);
        assert_eq!([0, 9, 10, 29].map(|step| forever.last_due(step)), [Some(0), Some(0), Some(10), Some(20)]);
        assert!(Schedule::linear(0..5).every(0).check().is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = Schedule::linear(5..1);
        assert!(backwards.check().is_err());
    }

    #[test]
    fn every_schedule_ends_at_full_sparsity() {
        let (from, to) = (Ratio::new(0.1).unwrap(), Ratio::new(0.9).unwrap());
        let at = |schedule: Schedule, step| schedule.ratio(step, from, to).get();
        for schedule in [Schedule::constant(4..8), Schedule::linear(4..8), Schedule::cubic(4..8)] {
            assert_eq!((at(schedule, 3), at(schedule, 8), at(schedule, 99)), (0.1, 0.9, 0.9));
        }
        assert_eq!(at(Schedule::constant(4..8), 4), 0.9);
        assert!((at(Schedule::linear(4..8), 6) - 0.5).abs() < 1e-12);
        assert!((at(Schedule::cubic(4..8), 6) - 0.8).abs() < 1e-12);
    }
}
