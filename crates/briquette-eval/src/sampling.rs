//! Sampling of the next token from logits.

use briquette_core::random::uniform;
use briquette_core::{Error, Result};

/// How a token is sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The divisor of logits before softmax; 0 always chooses the most likely token.
    pub temperature: f32,
    /// The number of most likely tokens to sample from; 0 for all.
    pub top_k: usize,
    /// The total probability of the most likely tokens to sample from; 1 for all.
    pub top_p: f32,
    /// The random seed.
    pub seed: u64,
}

impl Default for Sampling {
    /// Returns greedy sampling: always the most likely token.
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// Checks that the settings are valid.
    ///
    /// # Errors
    /// Config: the temperature is negative or not finite, or `top_p` is not above 0 and at most 1.
    pub fn check(&self) -> Result<()> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(Error::config(format!("found {}, expected a finite number of at least 0", self.temperature))
                .at("temperature"));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(
                Error::config(format!("found {}, expected a number above 0 and at most 1", self.top_p)).at("top_p")
            );
        }
        Ok(())
    }

    /// Samples a token from logits.
    ///
    /// Probabilities are `softmax(scores / temperature)`. Sampling is from the `top_k` most likely tokens, then
    /// from the fewest of these with a total probability of `top_p`; `seed` and `place` determine the result.
    /// Tokens are sorted only if some are excluded.
    /// Among equal logits the first token counts as more likely.
    ///
    /// # Errors
    /// Refused: a logit is not finite.
    pub fn choose(&self, scores: &[f32], place: u64) -> Result<u32> {
        if !scores.iter().all(|score| score.is_finite()) {
            return Err(Error::refused("outputs are not finite; the weights are damaged"));
        }
        let best = scores.iter().enumerate().fold(0, |best, (at, score)| if *score > scores[best] { at } else { best });
        if self.temperature == 0.0 {
            return Ok(best as u32);
        }
        let mut likely: Vec<usize> = (0..scores.len()).collect();
        let order = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
        if self.top_k > 0 && self.top_k < likely.len() {
            likely.select_nth_unstable_by(self.top_k - 1, order);
            likely.truncate(self.top_k);
        }
        if self.top_k > 0 || self.top_p < 1.0 {
            likely.sort_unstable_by(order);
        }
        let weight = |token: &usize| (f64::from(scores[*token] - scores[best]) / f64::from(self.temperature)).exp();
        let weights: Vec<f64> = likely.iter().map(weight).collect();
        let enough = f64::from(self.top_p) * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let n_kept = weights.iter().position(|weight| {
            sum += weight;
            sum >= enough
        });
        let weights = &weights[..n_kept.map_or(weights.len(), |last| last + 1)];
        let mut left = f64::from(uniform(self.seed, place)) * weights.iter().sum::<f64>();
        let drawn = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        Ok(likely[drawn.unwrap_or(weights.len() - 1)] as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often each of four tokens is sampled.
    fn shares(sampling: Sampling, scores: &[f32]) -> Vec<f64> {
        let mut counts = vec![0.0; scores.len()];
        (0..20_000).for_each(|place| counts[sampling.choose(scores, place).unwrap() as usize] += 1.0 / 20_000.0);
        counts
    }

    #[test]
    fn greedy_sampling_takes_the_first_most_likely_token() {
        assert_eq!(Sampling::default().choose(&[1.0, 3.0, 3.0, 2.0], 9).unwrap(), 1);
        let only = Sampling { temperature: 1.0, top_k: 1, ..Sampling::default() };
        assert!((shares(only, &[1.0, 3.0, 3.0, 2.0])[1] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn tokens_are_sampled_by_their_probabilities() {
        let scores = [0.0_f32, 1.0, 2.0, 0.5];
        for temperature in [0.5, 1.0, 2.0] {
            let found = shares(Sampling { temperature, seed: 7, ..Sampling::default() }, &scores);
            let weights = scores.map(|score| f64::from(score / temperature).exp());
            let sum: f64 = weights.iter().sum();
            for (found, weight) in found.iter().zip(weights) {
                assert!((found - weight / sum).abs() < 0.012, "{temperature}: {found} {}", weight / sum);
            }
        }
    }

    #[test]
    fn top_k_and_top_p_exclude_unlikely_tokens() {
        let scores = [0.0_f32, 1.0, 2.0, 0.5];
        let two = shares(Sampling { temperature: 1.0, top_k: 2, ..Sampling::default() }, &scores);
        assert!(two[0] == 0.0 && two[3] == 0.0 && two[1] > 0.2, "{two:?}");
        // The most likely token has 0.56 alone, and 0.77 with the next.
        let most = shares(Sampling { temperature: 1.0, top_p: 0.7, ..Sampling::default() }, &scores);
        assert!(most[0] == 0.0 && most[3] == 0.0 && most[1] > 0.2, "{most:?}");
        let one = shares(Sampling { temperature: 1.0, top_p: 0.5, ..Sampling::default() }, &scores);
        assert!(one[2] > 0.999_9, "{one:?}");
    }

    #[test]
    fn a_seed_determines_samples_and_invalid_settings_are_refused() {
        let of = |seed| {
            let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
            (0..50).map(|place| sampling.choose(&[0.0; 9], place).unwrap()).collect::<Vec<_>>()
        };
        assert!(of(1) == of(1) && of(1) != of(2));
        assert!(Sampling::default().choose(&[0.0, f32::NAN], 0).unwrap_err().message.contains("not finite"));
        for bad in
            [Sampling { temperature: -1.0, ..Sampling::default() }, Sampling { top_p: 0.0, ..Sampling::default() }]
        {
            assert!(bad.check().unwrap_err().to_string().contains("found"));
        }
        assert!(Sampling::default().check().is_ok());
    }
}
