//! A search for the smallest output whose loss is within a bound, guided by predicted losses.

use briquette_core::Result;

/// The share of the bound that the search aims at.
const AIM: f64 = 0.99;
/// The least share of the bound at which an output is accepted at once.
const NEAR: f64 = 0.975;
/// The number of outputs after which the best one is accepted.
const TRIES: usize = 3;
/// The largest number of outputs if none is within the bound.
const MAX_TRIES: usize = 8;
/// The first guess of the ratio of losses to predictions that do not know the benefit of weight updates.
const UPDATED: f64 = 0.5;
/// Bisection steps for a predicted loss.
const HALVINGS: usize = 30;

/// The size, the predicted loss and the measured loss of an output.
#[derive(Debug, Clone, Copy)]
struct Tried {
    payload: f64,
    predicted: f64,
    found: f64,
}

/// The state of the search.
///
/// Measured losses are modelled as `a·predicted^b`: `b` is 1 after one output, and follows from the last two outputs
/// after more.
#[derive(Debug)]
pub(super) struct PredictedSearch {
    /// The largest loss.
    most: f64,
    /// The fewest and the most bytes.
    range: [f64; 2],
    /// The ratio of losses to predictions before the first output.
    ratio: f64,
    tried: Vec<Tried>,
}

impl PredictedSearch {
    /// Begins a search; `moves` tells whether weights are updated.
    pub(super) fn new(most: f64, range: [f64; 2], moves: bool) -> Self {
        Self { most, range, ratio: if moves { UPDATED } else { 1.0 }, tried: Vec::new() }
    }

    /// Returns the bytes to try next; `None` when the search is finished.
    ///
    /// # Errors
    /// The first error of `predicted`, which maps bytes to a loss and falls with them.
    pub(super) fn next(&self, predicted: impl Fn(f64) -> Result<f64>) -> Result<Option<f64>> {
        let meets = |tried: &Tried| tried.found <= self.most;
        let is_near = |tried: &Tried| {
            let is_coarsest = tried.payload <= self.range[0];
            meets(tried) && (tried.found >= NEAR * self.most || is_coarsest)
        };
        let is_lost = |tried: &Tried| !meets(tried) && tried.payload >= self.range[1];
        let n = self.tried.len();
        let is_enough = n >= TRIES && self.tried.iter().any(meets);
        if n >= MAX_TRIES || is_enough || self.tried.last().is_some_and(|last| is_near(last) || is_lost(last)) {
            return Ok(None);
        }
        // Further tries without success aim lower.
        let aim = AIM.powi(1 << n.saturating_sub(TRIES - 1)) * self.most;
        self.payload_of(self.prediction_for(aim), predicted).map(Some)
    }

    /// Returns the predicted loss for which a loss is expected to be measured.
    fn prediction_for(&self, loss: f64) -> f64 {
        let Some(last) = self.tried.last() else { return loss / self.ratio };
        let slope = match self.tried[..] {
            [.., before, last] => (last.found / before.found).ln() / (last.predicted / before.predicted).ln(),
            _ => 1.0,
        };
        let slope = if slope.is_finite() { slope.clamp(0.5, 2.0) } else { 1.0 };
        last.predicted * (loss / last.found.max(f64::MIN_POSITIVE)).powf(1.0 / slope)
    }

    /// Returns the bytes with this predicted loss.
    fn payload_of(&self, loss: f64, predicted: impl Fn(f64) -> Result<f64>) -> Result<f64> {
        let [mut low, mut high] = self.range;
        if predicted(low)? <= loss {
            return Ok(low);
        }
        if predicted(high)? >= loss {
            return Ok(high);
        }
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            match predicted(middle)? > loss {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok(high)
    }

    /// Records the predicted and the measured loss of a size.
    pub(super) fn found(&mut self, payload: f64, predicted: f64, found: f64) {
        self.tried.push(Tried { payload, predicted, found });
    }

    /// Returns whether the last output is the smallest one within the bound so far.
    pub(super) fn is_best(&self) -> bool {
        let Some((last, before)) = self.tried.split_last() else { return false };
        let is_smaller = |other: &Tried| other.found > self.most || last.payload < other.payload;
        last.found <= self.most && before.iter().all(is_smaller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches with a prediction and the real loss; returns the best bytes and the number of tries.
    fn best(most: f64, predicted: impl Fn(f64) -> f64, real: impl Fn(f64) -> f64) -> (Option<f64>, usize) {
        let mut search = PredictedSearch::new(most, [1e5, 1e7], true);
        let (mut best, mut n) = (None, 0);
        while let Some(payload) = search.next(|payload| Ok(predicted(payload))).unwrap() {
            n += 1;
            search.found(payload, predicted(payload), real(payload));
            best = if search.is_best() { Some(payload) } else { best };
        }
        (best, n)
    }

    #[test]
    fn three_outputs_find_the_bytes_within_a_percent() {
        // A loss that falls by a factor of four for each bit of a million weights.
        let predicted = |bytes: f64| 0.5 * (-16.0 * bytes / 1e7 * 2.0_f64.ln()).exp();
        for (factor, power) in [(1.0, 1.0), (0.2, 1.0), (3.0, 0.9), (0.4, 1.2)] {
            let real = |bytes: f64| factor * predicted(bytes).powf(power);
            for most in [0.05, 0.01, 0.002] {
                let (found, n) = best(most, predicted, real);
                let found = found.unwrap();
                let exact = (most / factor).powf(1.0 / power);
                let exact = -(exact / 0.5).ln() / 2.0_f64.ln() / 16.0 * 1e7;
                assert!(real(found) <= most && n <= 3, "{found} in {n} for {factor} {power} {most}");
                assert!(found < 1.03 * exact, "{found}, expected about {exact} for {factor} {power} {most}");
            }
        }
    }

    #[test]
    fn bounds_that_nothing_or_everything_meets_end_the_search() {
        assert_eq!(best(0.01, |bytes| 1e4 / bytes, |_| 0.5).0, None);
        let (found, n) = best(0.01, |bytes| 1e4 / bytes, |_| 1e-9);
        assert!(found == Some(1e5) && n <= 3, "{found:?} in {n}");
        assert_eq!(best(0.01, |_| f64::NAN, |_| f64::NAN).0, None);
    }
}
