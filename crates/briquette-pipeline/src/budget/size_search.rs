//! A search for the smallest output by trying sizes, for metrics whose losses are not predicted.

/// A search for the fewest bytes with a margin of at least 0.
pub(super) struct SizeSearch {
    /// Base 2 logarithms of the fewest and the most bytes.
    range: [f64; 2],
    /// Base 2 logarithm of the bytes to try next.
    pub(super) next: f64,
    n_tries: usize,
    /// The fewest bytes that met the bounds, and the most that missed them, with their margins.
    enough: Option<(f64, f64)>,
    short: Option<(f64, f64)>,
}

impl SizeSearch {
    /// The maximum number of attempts.
    const TRIES: usize = 12;
    /// Base 2 logarithm of the ratio between both at which the search ends.
    const NEAR: f64 = 0.007;
    /// The first step of the search, which begins near four bits per weight.
    const FIRST: f64 = 0.35;

    pub(super) fn new([fewest, most]: [f64; 2]) -> Self {
        let range = [fewest.max(1.0).log2(), most.max(2.0).log2()];
        Self { range, next: (range[1] - 0.9).max(range[0]), n_tries: 0, enough: None, short: None }
    }

    pub(super) fn n_tries(&self) -> usize {
        self.n_tries
    }

    /// Returns the bytes to try next; `None` when the search is finished.
    pub(super) fn next(&mut self) -> Option<f64> {
        let is_at_end = |of: Option<(f64, f64)>, end: f64| of.is_some_and(|(at, _)| (at - end).abs() < 1e-9);
        let is_near = self.enough.zip(self.short).is_some_and(|((a, _), (b, _))| a - b < Self::NEAR);
        let is_over = is_near || is_at_end(self.enough, self.range[0]) || is_at_end(self.short, self.range[1]);
        if is_over || self.n_tries >= Self::TRIES {
            return None;
        }
        self.n_tries += 1;
        Some(self.next.exp2())
    }

    /// Records the margin of a size.
    pub(super) fn found(&mut self, payload: f64, margin: f64) {
        let at = payload.log2();
        match margin >= 0.0 {
            true => self.enough = Some((at, margin)),
            false => self.short = Some((at, margin)),
        }
        let step = Self::FIRST * self.n_tries as f64;
        self.next = match (self.enough, self.short) {
            (Some((enough, over)), Some((short, under))) => {
                // The zero of the line between both, kept away from both ends.
                let share = if under.is_finite() { under / (under - over) } else { 0.5 };
                short + (enough - short) * share.clamp(0.15, 0.85)
            }
            (Some((enough, _)), None) => (enough - step).max(self.range[0]),
            (None, Some((short, _))) => (short + step).min(self.range[1]),
            (None, None) => self.next,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the fewest bytes found when `f` is the margin of a size, and the number of tries.
    fn fewest(range: [f64; 2], f: impl Fn(f64) -> f64) -> (Option<f64>, usize) {
        let (mut search, mut best) = (SizeSearch::new(range), None);
        while let Some(payload) = search.next() {
            let margin = f(payload);
            search.found(payload, margin);
            best = if margin >= 0.0 { Some(payload) } else { best };
        }
        (best, search.n_tries())
    }

    #[test]
    fn the_fewest_bytes_are_found_within_half_a_percent() {
        let range = [1e5, 1e7];
        for least in [1.2e5, 7.7e5, 3.21e6, 5.5e6, 9.9e6] {
            // A loss that falls by a factor of four per doubling, like that of step sizes.
            let (found, n) = fewest(range, |bytes| (least / bytes).powi(2).mul_add(-0.01, 0.01));
            let found = found.unwrap();
            assert!(found >= least && found < 1.006 * least, "{found} of {least} in {n}");
            assert!(n <= 11, "{n} tries for {least}");
        }
        assert_eq!(fewest(range, |_| f64::NEG_INFINITY).0, None);
        let (found, n) = fewest(range, |_| 1.0);
        assert!((found.unwrap() - 1e5).abs() < 1.0 && n < 8, "{found:?} in {n}");
    }
}
