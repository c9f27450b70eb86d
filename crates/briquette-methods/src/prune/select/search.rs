//! The exact threshold of scores that are read in passes, because they do not fit in memory or are not stored.

use super::{Bracket, Histogram, Tally, Threshold};

/// Scores of several members that share one threshold. Each pass reads all of them.
///
/// A source chooses its sample and its threads; [`threshold_of_pool`] chooses the passes.
pub trait ScorePool {
    /// The error of a pass.
    type Error;

    /// The smallest key that a threshold may have. Scores below it are dropped already and stay dropped.
    const FLOOR: u32 = 0;

    /// Returns a bracket that probably contains the threshold; `None` if a sample does not pay.
    ///
    /// # Errors
    /// Any error of reading scores.
    fn guess(&mut self, n_drop: usize) -> Result<Option<Bracket>, Self::Error>;

    /// Tallies the scores of each member; `None` if the tallies need too much memory.
    ///
    /// # Errors
    /// Any error of reading scores.
    fn tally(&mut self, bracket: Bracket) -> Result<Option<Vec<Tally>>, Self::Error>;

    /// Counts every score; each thread may begin with a copy of an empty histogram.
    ///
    /// # Errors
    /// Any error of reading scores.
    fn count(&mut self, empty: Histogram) -> Result<Histogram, Self::Error>;

    /// Returns whether the tallies of `n_within` scores in a bracket fit in memory.
    fn fits(&self, _bracket: Bracket, _n_within: usize) -> bool {
        true
    }
}

/// The threshold of a pool.
#[derive(Debug, Clone, Default)]
pub struct PoolThreshold {
    /// The threshold. Its ties are those of all members.
    pub threshold: Threshold,
    /// The tally of each member; empty if a histogram found the threshold.
    pub tallies: Vec<Tally>,
}

/// Returns the threshold that drops the `n_drop` smallest scores of a pool.
///
/// A sample brackets the threshold, and the threshold is found among the scores in the bracket. If the bracket
/// misses it or has too many scores, a histogram brackets the threshold. If that bracket also has too many, a
/// finer histogram finds the threshold. The result is exact in every case.
///
/// The threshold is 0 without ties if the scores below the floor suffice, if `n_drop` is 0, if there are fewer
/// scores, or if the scores differ between passes.
///
/// # Errors
/// The first error of a pass.
pub fn threshold_of_pool<P: ScorePool>(pool: &mut P, n_drop: usize) -> Result<PoolThreshold, P::Error> {
    if let Some(bracket) = pool.guess(n_drop)?
        && let Some((Some(threshold), tallies)) = within(pool, bracket, n_drop)?
    {
        return Ok(PoolThreshold { threshold, tallies });
    }
    let mut histogram = pool.count(Histogram::coarse())?;
    let Some((bracket, n_within)) = histogram.bracket(n_drop) else { return Ok(PoolThreshold::default()) };
    if pool.fits(bracket, n_within)
        && let Some((threshold, tallies)) = within(pool, bracket, n_drop)?
    {
        // There is no threshold only if a pass gave other scores than the last one.
        return Ok(PoolThreshold { threshold: threshold.unwrap_or_default(), tallies });
    }
    let threshold = match histogram.refine(n_drop) {
        Some(n_in_bucket) => pool.count(histogram)?.threshold(n_in_bucket),
        None => Threshold::default(),
    };
    Ok(PoolThreshold { threshold, tallies: Vec::new() })
}

/// The threshold if it is inside a bracket, and the tallies of the bracket.
type InBracket = (Option<Threshold>, Vec<Tally>);

/// Searches a bracket. `None` if the tallies need too much memory.
fn within<P: ScorePool>(pool: &mut P, bracket: Bracket, n_drop: usize) -> Result<Option<InBracket>, P::Error> {
    let bracket = Bracket { low: bracket.low.max(P::FLOOR), high: bracket.high.max(P::FLOOR) };
    let Some(tallies) = pool.tally(bracket)? else { return Ok(None) };
    let n_below: usize = tallies.iter().map(Tally::n_below).sum();
    let is_met = bracket.low == P::FLOOR && n_drop <= n_below;
    let threshold = if is_met { Some(Threshold::default()) } else { Tally::threshold(&tallies, n_drop) };
    Ok(Some((threshold, tallies)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::{score, select};
    use std::convert::Infallible;

    /// Members in memory, whose sample and whose memory a test chooses.
    struct InMemory {
        members: Vec<Vec<f32>>,
        guess: Option<Bracket>,
        max_keys: usize,
        n_passes: usize,
    }

    impl ScorePool for InMemory {
        type Error = Infallible;

        fn guess(&mut self, _n_drop: usize) -> Result<Option<Bracket>, Infallible> {
            Ok(self.guess)
        }

        fn tally(&mut self, bracket: Bracket) -> Result<Option<Vec<Tally>>, Infallible> {
            self.n_passes += 1;
            let tally = |scores: &Vec<f32>| {
                let mut tally = Tally::new(bracket, 0);
                tally.count(scores);
                tally
            };
            let tallies: Vec<Tally> = self.members.iter().map(tally).collect();
            let n_bytes: usize = tallies.iter().map(Tally::n_bytes).sum();
            Ok((n_bytes / 4 <= self.max_keys).then_some(tallies))
        }

        fn count(&mut self, mut histogram: Histogram) -> Result<Histogram, Infallible> {
            self.n_passes += 1;
            self.members.iter().for_each(|scores| histogram.count(scores));
            Ok(histogram)
        }

        fn fits(&self, _bracket: Bracket, n_within: usize) -> bool {
            n_within <= self.max_keys
        }
    }

    #[test]
    fn every_way_to_the_threshold_is_exact() {
        let mut scores = vec![0.0; 100_000];
        score::random(5, 0, &mut scores);
        let members: Vec<Vec<f32>> = scores.chunks(30_000).map(<[f32]>::to_vec).collect();
        let all = Some(Bracket::ALL);
        let missed = Some(Bracket { low: 0, high: 1 });
        // The number of passes tells which way was taken.
        for (guess, max_keys, n_passes) in
            [(all, usize::MAX, 1), (missed, usize::MAX, 3), (None, usize::MAX, 2), (all, 0, 3), (None, 0, 2)]
        {
            for n_drop in [1, 40_000, 99_999, 100_000] {
                let mut pool = InMemory { members: members.clone(), guess, max_keys, n_passes: 0 };
                let Ok(found) = threshold_of_pool(&mut pool, n_drop);
                assert_eq!(found.threshold, select::threshold_of(&scores, n_drop), "{guess:?} {max_keys} {n_drop}");
                assert_eq!(pool.n_passes, n_passes, "{guess:?} {max_keys} {n_drop}");
                assert_eq!(found.tallies.len(), if max_keys == 0 { 0 } else { members.len() });
            }
        }
    }

    #[test]
    fn scores_that_differ_between_passes_give_no_threshold() {
        struct Growing(f32);

        impl ScorePool for Growing {
            type Error = Infallible;

            fn guess(&mut self, _n_drop: usize) -> Result<Option<Bracket>, Infallible> {
                Ok(None)
            }

            fn tally(&mut self, bracket: Bracket) -> Result<Option<Vec<Tally>>, Infallible> {
                self.0 *= 8.0;
                let mut tally = Tally::new(bracket, 0);
                tally.count(&[self.0; 3]);
                Ok(Some(vec![tally]))
            }

            fn count(&mut self, mut histogram: Histogram) -> Result<Histogram, Infallible> {
                self.0 *= 8.0;
                histogram.count(&[self.0; 3]);
                Ok(histogram)
            }
        }

        let Ok(found) = threshold_of_pool(&mut Growing(1.0), 2);
        assert_eq!((found.threshold, found.tallies.len()), (Threshold::default(), 1));
    }

    #[test]
    fn dropping_none_or_more_than_all_gives_no_threshold() {
        for guess in [None, Some(Bracket::ALL)] {
            for n_drop in [0, 4] {
                let mut pool =
                    InMemory { members: vec![vec![1.0, 2.0, 0.0]], guess, max_keys: usize::MAX, n_passes: 0 };
                let Ok(found) = threshold_of_pool(&mut pool, n_drop);
                assert_eq!(found.threshold, Threshold::default(), "{guess:?} {n_drop}");
            }
        }
    }
}
