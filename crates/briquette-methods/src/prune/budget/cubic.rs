//! The sparsity of gradual pruning at each step.

use super::Ratio;

/// Returns the sparsity of the cubic schedule at `step`.
///
/// `s(t) = s_end + (s_begin - s_end) * (1 - (t - t0) / (t1 - t0))^3` for `t0 <= t < t1`; `s_begin` before `t0`,
/// `s_end` from `t1` on.
///
/// Source: Zhu and Gupta, "To prune, or not to prune", 2017, eq. 1.
///
/// # Panics
/// If `steps.end` is before `steps.start`.
pub fn cubic(step: usize, steps: std::ops::Range<usize>, begin: Ratio, end: Ratio) -> Ratio {
    assert!(steps.start <= steps.end, "steps.end is not before steps.start");
    if step >= steps.end {
        return end;
    }
    let done = step.saturating_sub(steps.start) as f64 / (steps.end - steps.start) as f64;
    Ratio(end.0 + (begin.0 - end.0) * (1.0 - done).powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubic_sparsity_rises_fast_then_slowly() {
        let (begin, end) = (Ratio::new(0.0).unwrap(), Ratio::new(0.8).unwrap());
        let at = |step| cubic(step, 10..20, begin, end).get();
        assert_eq!((at(0), at(10), at(20), at(99)), (0.0, 0.0, 0.8, 0.8));
        assert!((at(15) - 0.7).abs() < 1e-12);
        assert!((10..20).all(|step| at(step) < at(step + 1)));
    }
}
