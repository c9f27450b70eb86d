//! Limits of attention scores: windows and soft caps.

use super::loops::{exp, reduce};

/// Limits of attention scores.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScoreRule {
    /// Tokens that a query sees, counted back from its own; all where absent.
    pub window: Option<usize>,
    /// Replaces a score `s` by `cap · tanh(s / cap)`.
    pub soft_cap: Option<f32>,
}

impl ScoreRule {
    /// Applies the soft cap.
    #[inline(always)]
    pub(super) fn cap(self, scores: &mut [f32]) {
        if let Some(cap) = self.soft_cap {
            scores.iter_mut().for_each(|score| *score = cap * (*score / cap).tanh());
        }
    }

    /// Turns the scores of all earlier tokens into weights that sum to 1. Tokens before the window have weight 0.
    #[inline(always)]
    pub(super) fn weigh(self, scores: &mut [f32]) {
        self.cap(scores);
        let n_hidden = self.window.map_or(0, |window| scores.len().saturating_sub(window));
        scores[..n_hidden].fill(0.0);
        softmax(&mut scores[n_hidden..]);
    }
}

#[inline(always)]
fn softmax(row: &mut [f32]) {
    let larger = |a: f32, b: f32| if a < b { b } else { a };
    let max = reduce(row, f32::NEG_INFINITY, larger, larger);
    row.iter_mut().for_each(|score| *score = exp(*score - max));
    let inverse = 1.0 / reduce(row, 0.0, |sum, value| sum + value, |a, b| a + b);
    row.iter_mut().for_each(|score| *score *= inverse);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_before_the_window_weigh_nothing_and_caps_flatten_scores() {
        let weighed = |rule: ScoreRule| {
            let mut scores = [1.0, 5.0, 2.0, 3.0];
            rule.weigh(&mut scores);
            scores
        };
        let windowed = weighed(ScoreRule { window: Some(2), ..ScoreRule::default() });
        assert_eq!(windowed[..2], [0.0, 0.0]);
        let expected = 1.0 / (1.0 + 1.0_f32.exp());
        assert!((windowed[2] - expected).abs() < 1e-6 && (windowed[2] + windowed[3] - 1.0).abs() < 1e-6);
        let capped = weighed(ScoreRule { soft_cap: Some(0.5), ..ScoreRule::default() });
        let cap = |score: f32| (0.5 * (score / 0.5).tanh()).exp();
        let sum: f32 = [1.0, 5.0, 2.0, 3.0].map(cap).iter().sum();
        assert!((capped[1] - cap(5.0) / sum).abs() < 1e-6);
    }
}
