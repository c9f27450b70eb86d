//! Metrics of model outputs against labels or another model's outputs, as pure functions over rows.

/// Returns the index of the largest score. It is the first of equal ones, and never a NaN unless all are NaN.
pub fn argmax(scores: &[f32]) -> usize {
    let mut best = 0;
    for (class, score) in scores.iter().enumerate() {
        if *score > scores[best] || scores[best].is_nan() && !score.is_nan() {
            best = class;
        }
    }
    best
}

/// Returns the share of rows whose label is among the `k` largest scores. Among equal scores the first counts
/// as larger.
///
/// # Panics
/// If the numbers of rows and labels differ, or a label has no score.
pub fn top_k(scores: &[f32], labels: &[usize], k: usize) -> f64 {
    let n_classes = scores.len().checked_div(labels.len()).unwrap_or(0);
    let is_hit = |(row, &label): (&[f32], &usize)| {
        let own = row[label];
        let before = row.iter().enumerate().filter(|&(class, &score)| score > own || score == own && class < label);
        !own.is_nan() && before.count() < k
    };
    share(rows(scores, n_classes).zip(labels).map(is_hit))
}

/// Returns the share of rows whose largest score is the label's.
///
/// # Panics
/// See [`top_k`].
pub fn accuracy(scores: &[f32], labels: &[usize]) -> f64 {
    top_k(scores, labels, 1)
}

/// Returns the macro-averaged F1: the mean of `2·TP / (2·TP + FP + FN)` over the classes that are a label or predicted.
///
/// It equals scikit-learn's `f1_score(average="macro")`. A row of NaN counts as predicted as no class.
///
/// # Panics
/// See [`top_k`].
pub fn macro_f1(scores: &[f32], labels: &[usize]) -> f64 {
    let n_classes = scores.len().checked_div(labels.len()).unwrap_or(0);
    // Twice the hits, and hits twice with all errors, of each class.
    let mut counts = vec![(0_u64, 0_u64); n_classes];
    for (row, &label) in rows(scores, n_classes).zip(labels) {
        let predicted = argmax(row);
        counts[label].1 += 1;
        if !row[predicted].is_nan() {
            counts[predicted].1 += 1;
            counts[label].0 += if predicted == label { 2 } else { 0 };
        }
    }
    mean(counts.into_iter().filter(|(_, all)| *all > 0).map(|(hits, all)| hits as f64 / all as f64))
}

/// Returns the share of rows in which both have the same class with the largest score.
pub fn agreement(reference: &[f32], scores: &[f32], n_classes: usize) -> f64 {
    share(rows(reference, n_classes).zip(rows(scores, n_classes)).map(|(a, b)| argmax(a) == argmax(b)))
}

/// Returns the mean over rows of `sum p (ln p - ln q)` in nats.
///
/// `p` and `q` are the softmax of `reference` and `scores`.
pub fn kl(reference: &[f32], scores: &[f32], n_classes: usize) -> f64 {
    mean(rows(reference, n_classes).zip(rows(scores, n_classes)).map(|(a, b)| {
        let (a, b) = (log_softmax(a), log_softmax(b));
        // Rounding may give a tiny negative value for equal inputs.
        a.iter().zip(&b).map(|(ln_p, ln_q)| ln_p.exp() * (ln_p - ln_q)).sum::<f64>().max(0.0)
    }))
}

/// Returns `x - ln(sum exp x)`.
pub fn log_softmax(scores: &[f32]) -> Vec<f64> {
    let largest = scores.iter().fold(f32::NEG_INFINITY, |largest, &score| largest.max(score));
    let sum: f64 = scores.iter().map(|&score| f64::from(score - largest).exp()).sum();
    scores.iter().map(|&score| f64::from(score - largest) - sum.ln()).collect()
}

/// Returns `a . b / (|a| |b|)`; 1 if both are zero, 0 if one is.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let (aa, bb) = (dot(a, a), dot(b, b));
    match (aa == 0.0, bb == 0.0) {
        (true, true) => 1.0,
        (true, false) | (false, true) => 0.0,
        (false, false) => dot(a, b) / (aa.sqrt() * bb.sqrt()),
    }
}

/// Returns the cosine of every pair of rows, `(0, 1), (0, 2), .., (1, 2), ..`.
pub fn pair_cosines(embeddings: &[f32], width: usize) -> Vec<f64> {
    let all: Vec<&[f32]> = rows(embeddings, width).collect();
    let pairs = all.iter().enumerate().flat_map(|(at, a)| all[at + 1..].iter().map(move |b| cosine(a, b)));
    pairs.collect()
}

/// Returns the rank correlation; equal values share their mean rank.
///
/// `None` with fewer than two values, or if either side is constant.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    pearson(&ranks(a), &ranks(b))
}

/// Returns `cov(a, b) / (sd(a) sd(b))`; `None` with fewer than two values, or if either side is constant.
pub fn pearson(a: &[f64], b: &[f64]) -> Option<f64> {
    let (mean_a, mean_b) = (mean(a.iter().copied()), mean(b.iter().copied()));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        let (x, y) = (x - mean_a, y - mean_b);
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    (aa > 0.0 && bb > 0.0).then(|| ab / (aa * bb).sqrt())
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let (mut ranks, mut first) = (vec![0.0; values.len()], 0);
    for equal in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let shared = first as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|&at| ranks[at] = shared);
        first += equal.len();
    }
    ranks
}

/// Returns `exp(nll / n_tokens)`, where `nll` is a sum of negative log likelihoods in nats.
pub fn perplexity(nll: f64, n_tokens: usize) -> f64 {
    (nll / n_tokens.max(1) as f64).exp()
}

/// Returns the `q` quantile, linearly interpolated; 0 without values.
///
/// # Panics
/// If `q` is not from 0 to 1.
pub fn percentile(values: &[f64], q: f64) -> f64 {
    assert!((0.0..=1.0).contains(&q), "q is from 0 to 1");
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = q * last as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

/// Returns the mean; 0 without values.
pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0_usize), |(sum, n), value| (sum + value, n + 1));
    if n == 0 { 0.0 } else { sum / n as f64 }
}

fn share(hits: impl Iterator<Item = bool>) -> f64 {
    mean(hits.map(|hit| f64::from(u8::from(hit))))
}

/// Returns rows of `width` values.
pub(crate) fn rows(values: &[f32], width: usize) -> impl Iterator<Item = &[f32]> {
    values.chunks_exact(width.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_k_requires_the_label_among_the_largest() {
        let scores = [0.1, 0.9, 0.5, /**/ 0.2, 0.2, 0.2, /**/ f32::NAN, 1.0, 0.0];
        assert_eq!(accuracy(&scores, &[1, 0, 0]), 2.0 / 3.0);
        assert_eq!(accuracy(&scores, &[2, 1, 1]), 1.0 / 3.0);
        assert_eq!(top_k(&scores, &[2, 1, 2], 2), 1.0);
        assert_eq!(top_k(&[], &[], 5), 0.0);
        assert_eq!(argmax(&[f32::NAN, -1.0]), 1);
    }

    #[test]
    fn f1_is_the_mean_over_the_classes_that_occur() {
        // Predictions 1, 0, 1, 2 of the labels 1, 0, 0, 1; nothing is of class 3.
        let scores = [0., 1., 0., 0., 1., 0., 0., 0., 0., 1., 0., 0., 0., 0., 1., 0.];
        let expected = (2.0 / 3.0 + 2.0 / 4.0 + 0.0) / 3.0;
        assert!((macro_f1(&scores, &[1, 0, 0, 1]) - expected).abs() < 1e-12);
        assert_eq!(macro_f1(&[f32::NAN, f32::NAN], &[0]), 0.0);
        assert_eq!(macro_f1(&[], &[]), 0.0);
    }

    #[test]
    fn equal_outputs_agree_without_divergence() {
        let scores = [3.0, -2.0, 88.0, 0.0, 0.0, 0.0];
        assert_eq!(agreement(&scores, &scores, 3), 1.0);
        assert_eq!(kl(&scores, &scores, 3), 0.0);
        assert_eq!(agreement(&scores, &[9.0, 0.0, 1.0, 1.0, 0.0, 0.0], 3), 0.5);
        // p = (1/2, 1/2), q = (3/4, 1/4).
        let expected = 0.5 * (0.5_f64 / 0.75).ln() + 0.5 * (0.5_f64 / 0.25).ln();
        assert!((kl(&[0.0, 0.0], &[3.0_f32.ln(), 0.0], 2) - expected).abs() < 1e-7);
    }

    #[test]
    fn ranks_of_equal_values_are_shared() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0]), [2.5, 1.0, 2.5, 0.0]);
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[10.0, 200.0, 3000.0]), Some(1.0));
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), Some(-1.0));
        assert_eq!(spearman(&[1.0, 2.0], &[3.0, 3.0]), None);
        assert_eq!(spearman(&[], &[]), None);
        // scipy.stats.spearmanr([1, 2, 2, 4], [1, 3, 2, 4])
        assert!(
            (spearman(&[1.0, 2.0, 2.0, 4.0], &[1.0, 3.0, 2.0, 4.0]).unwrap() - 0.948_683_298_050_513_8).abs() < 1e-12
        );
    }

    #[test]
    fn cosines_do_not_divide_by_zero() {
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 0.0]), 1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
        assert_eq!(cosine(&[3e30, 0.0], &[2e30, 0.0]), 1.0);
        assert_eq!(pair_cosines(&[1.0, 0.0, 0.0, 1.0, -1.0, 0.0], 2), [0.0, -1.0, 0.0]);
    }

    #[test]
    fn percentiles_lie_between_values() {
        assert_eq!(percentile(&[], 0.5), 0.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert_eq!(percentile(&[4.0, 1.0, 3.0, 2.0], 0.5), 2.5);
        assert!((perplexity(2.0 * 8.0_f64.ln(), 2) - 8.0).abs() < 1e-12);
    }
}
