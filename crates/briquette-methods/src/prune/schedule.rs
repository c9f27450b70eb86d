//! When to renew decisions, and how sparse to be at each step.

use crate::prune::{Ratio, budget};
use briquette_core::{Error, Result};
use std::ops::Range;

/// The course of a sparsity over training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Constant,
    Linear,
    Cubic,
}

/// When a decision is renewed: every `n` steps from a begin to an end, both included.
///
/// Steps count the optimizer's updates, so the first is 1 and attaching is 0: a schedule over `0..300` decides last, and reaches its
/// full sparsity, when `refresh` of what is attached is called after the 300th. Call that after each step, or every few:
/// what came due in between is decided at the next call, as of that call's step.
///
/// With `d = (t - begin) / (end - begin)`, sparsity is `s(t) = s0` before the begin, `s1` from the end on, and between:
/// constant `s1`; linear `s0 + (s1 - s0) d`; cubic `s1 + (s0 - s1)(1 - d)^3` (Zhu and Gupta, "To prune, or not to
/// prune", 2017, eq. 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    course: Course,
    begin: usize,
    end: usize,
    every: usize,
}

impl Schedule {
    /// The full sparsity when attached, and never a decision again.
    pub fn once() -> Self {
        Self::constant(0..0)
    }

    /// The full sparsity from the first step on.
    pub fn constant(steps: Range<usize>) -> Self {
        Self { course: Course::Constant, begin: steps.start, end: steps.end, every: 1 }
    }

    /// Grows evenly from step to step.
    pub fn linear(steps: Range<usize>) -> Self {
        Self { course: Course::Linear, ..Self::constant(steps) }
    }

    /// Grows fast at first, then slowly: what Zhu and Gupta found best.
    pub fn cubic(steps: Range<usize>) -> Self {
        Self { course: Course::Cubic, ..Self::constant(steps) }
    }

    /// Renews decisions every `n` steps; without this, at each step.
    #[must_use]
    pub fn every(mut self, n: usize) -> Self {
        self.every = n;
        self
    }

    /// Whether the sparsity goes to its full value at once.
    pub fn is_constant(&self) -> bool {
        self.course == Course::Constant
    }

    /// Refuses a schedule that never comes due: renewed every 0 steps, or with an end before the begin.
    pub fn check(&self) -> Result<()> {
        if self.every == 0 || self.end < self.begin {
            let Self { begin, end, every, .. } = self;
            return Err(Error::config(format!("a schedule over {begin}..{end} every {every} steps never comes due")));
        }
        Ok(())
    }

    /// Whether step `t` is at or after the begin.
    pub fn has_begun(&self, step: usize) -> bool {
        step >= self.begin
    }

    /// Whether decisions are renewed at this step.
    pub fn is_due(&self, step: usize) -> bool {
        step == self.end || (self.begin..self.end).contains(&step) && (step - self.begin).is_multiple_of(self.every)
    }

    /// The last step up to this one at which decisions are renewed; `None` before the begin.
    pub fn last_due(&self, step: usize) -> Option<usize> {
        if step >= self.end {
            return Some(self.end);
        }
        let since = step.checked_sub(self.begin)?;
        Some(self.begin + since / self.every.max(1) * self.every)
    }

    /// Whether decisions are renewed at a step after `since`, up to `step`, or at `step` itself.
    pub fn is_due_since(&self, since: usize, step: usize) -> bool {
        self.last_due(step).is_some_and(|due| due > since || due == step)
    }

    /// The begin alone: one decision.
    pub fn begin_only(self) -> Self {
        Self { end: self.begin, ..self }
    }

    /// The sparsity at a step, on the way from `from` to `to`.
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
    fn each_course_ends_where_it_should() {
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
