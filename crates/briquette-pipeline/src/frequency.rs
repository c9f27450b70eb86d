//! Step sizes of token embeddings by the frequency of their tokens.
//!
//! The error of a token's row reaches the outputs each time the token occurs. Rows of frequent tokens get small steps,
//! and rows of rare tokens, which are most rows, large ones. The step of token `t` is `d·m_t` with `m_t = f_t^(-1/4)`,
//! divided by the geometric mean and rounded to a power of `2^(1/4)`.
//!
//! `f_t = (n_t/Σn + ½·z_t/Σz)/mean`, with the count `n_t` of the token in the calibration data, and a prior `z_t` from
//! the order of the vocabulary: see [`Vocabulary`]. Without data, the prior alone.

mod counts;
mod scaled;
mod vocabulary;

use briquette_core::{Error, Result, Role};
use briquette_formats::Checkpoint;
use briquette_methods::quant::ScaleSearch;
use briquette_recipe::Recipe;
use briquette_recipe::plan::heads;
use briquette_writer::curve::RowSteps;
use briquette_writer::{Plan, TensorPlan, Workers};
use counts::CountedTokens;
pub(crate) use scaled::ScaledSource;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use vocabulary::Vocabulary;

/// The weight of the prior beside counts.
const PRIOR: f64 = 0.5;
/// The exponent of the frequencies.
const EXPONENT: f64 = -0.25;
/// The occurrences of a token in other texts that are assumed beyond its count.
const UNSEEN: f64 = 0.05;
/// The share of the squared step that the allocation would choose: it knows only the tokens of the calibration.
const FINER: f64 = 0.64;
/// The largest factor as a base-2 logarithm in eighths.
const MOST_EIGHTHS: f64 = 96.0;

/// Returns the row steps of the plan's token embeddings that `is_wanted` accepts, by index.
///
/// An embedding that is also the output head has none, because every row reaches every output. Neither has an
/// embedding of a model without `tokenizer.json`.
///
/// # Errors
/// - Input: the data or the model's files are damaged.
/// - Io: a file cannot be read.
pub(crate) fn row_steps(
    recipe: &Recipe,
    plan: &Plan,
    checkpoint: &Checkpoint,
    is_wanted: impl Fn(&TensorPlan) -> bool,
) -> Result<BTreeMap<usize, RowSteps>> {
    let is_table = |tensor: &&TensorPlan| {
        tensor.role == Role::Embedding && tensor.info.shape.rank() == 2 && tensor.tied_to().is_none()
    };
    let tables: Vec<&TensorPlan> = plan.tensors.iter().filter(is_table).filter(|tensor| is_wanted(tensor)).collect();
    let Some(vocabulary) = (!tables.is_empty()).then(|| Vocabulary::of(checkpoint)).transpose()?.flatten() else {
        return Ok(BTreeMap::new());
    };
    let heads = heads::names(checkpoint, &recipe.roles)?;
    let is_of_tokens = |tensor: &&TensorPlan| {
        tensor.rows().n_rows >= vocabulary.n_tokens() && !heads.contains(tensor.info.name.as_str())
    };
    // A table of positions may have more rows than there are tokens.
    let tables: Vec<&TensorPlan> = tables.into_iter().filter(is_of_tokens).collect();
    let Some(n_rows) = tables.iter().map(|tensor| tensor.rows().n_rows).min() else { return Ok(BTreeMap::new()) };
    let tables: Vec<&TensorPlan> = tables.into_iter().filter(|tensor| tensor.rows().n_rows == n_rows).collect();
    // Data that only the sensitivities use is not in the recipe of the output.
    let calibration = recipe.calibration.as_ref().filter(|_| recipe.asked.needs_statistics());
    let counts = calibration.map(|calibration| CountedTokens::of(calibration, checkpoint)).transpose()?;
    let steps = |tensor: &TensorPlan| {
        let prior = vocabulary.prior(tensor.rows().n_rows);
        (tensor.index(), steps_of(&prior, counts.as_ref()))
    };
    Ok(tables.into_iter().map(steps).collect())
}

/// Returns the model with the scales of all tensors whose steps follow the frequency of tokens.
///
/// `rounded` is an output in which these tensors have their codes already.
///
/// # Errors
/// - Config: such a tensor is not the embedding of a tokenizer's tokens.
/// - See [`row_steps`].
pub(crate) fn scaled<'a>(
    recipe: &Recipe,
    plan: &mut Plan,
    checkpoint: &'a Checkpoint,
    rounded: Option<&Path>,
    workers: &Workers,
) -> Result<ScaledSource<'a>> {
    let mut source = ScaledSource::new(checkpoint);
    let wanted: Vec<usize> = plan.tensors.iter().filter(|tensor| is_wanted(tensor)).map(TensorPlan::index).collect();
    if wanted.is_empty() {
        return Ok(source);
    }
    if let Some(rounded) = rounded {
        let rounded = Checkpoint::open(rounded)?;
        for index in wanted {
            source.keep_scales(&plan.tensors[index], &rounded)?;
            plan.tensors[index].quant.iter_mut().for_each(|quant| quant.is_given = true);
        }
        return Ok(source);
    }
    let found = row_steps(recipe, plan, checkpoint, is_wanted)?;
    for index in wanted {
        let tensor = &mut plan.tensors[index];
        let (Some(of_rows), Some(ScaleSearch::StepByFrequency(size))) =
            (found.get(&index), tensor.quant.map(|quant| quant.spec.range))
        else {
            let message = "steps by frequency need an embedding of the tokens of tokenizer.json that is not the output \
                           head too; use a plain step, as in \"step0.01\"";
            return Err(Error::config(message).at(tensor.culprit()));
        };
        source.add(tensor, size, &of_rows.eighths, workers)?;
        tensor.quant.iter_mut().for_each(|quant| quant.is_given = true);
    }
    Ok(source)
}

fn is_wanted(tensor: &TensorPlan) -> bool {
    tensor.needs_given_scales() && tensor.tied_to().is_none()
}

/// Returns the row steps for a prior that sums to 1 and the counts of tokens, if known.
fn steps_of(prior: &[f64], counts: Option<&CountedTokens>) -> RowSteps {
    let count = |counts: &CountedTokens, token: usize| counts.counts.get(token).copied().unwrap_or(0) as f64;
    let total = counts.map_or(0.0, |counts| counts.counts.iter().sum::<u64>() as f64);
    let counts = counts.filter(|_| total > 0.0);
    let frequency = |(token, prior): (usize, &f64)| match counts {
        Some(counts) => count(counts, token) / total + PRIOR * prior,
        None => *prior,
    };
    let logs: Vec<f64> = prior.iter().enumerate().map(|it| EXPONENT * frequency(it).log2()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
    let eighth = |log: &f64| (2.0 * (4.0 * (log - mean)).round()).clamp(-MOST_EIGHTHS, MOST_EIGHTHS) as i8;
    let eighths: Vec<i8> = logs.iter().map(eighth).collect();
    let weight = |token: usize| match counts {
        Some(counts) => count(counts, token) * counts.share + UNSEEN,
        None => prior[token],
    };
    let (mut squares, mut weights) = (0.0, 0.0);
    for (token, &eighths) in eighths.iter().enumerate() {
        squares += weight(token) * (f64::from(eighths) / 4.0).exp2();
        weights += weight(token);
    }
    let mean_square = if weights > 0.0 { squares / weights / FINER } else { 1.0 };
    RowSteps { eighths: Arc::new(eighths), mean_square }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_times_the_frequency_halves_the_step() {
        let prior = [16.0, 1.0, 16.0, 1.0].map(|share: f64| share / 34.0);
        let found = steps_of(&prior, None);
        assert_eq!(found.eighths.as_slice(), [-4, 4, -4, 4]);
        let expected = (32.0 * 0.5 + 2.0 * 2.0) / 34.0 / FINER;
        assert!((found.mean_square - expected).abs() < 1e-12, "{}", found.mean_square);
    }

    #[test]
    fn counts_outweigh_the_prior_and_missing_counts_are_zero() {
        let counts = CountedTokens { counts: vec![0, 900, 100], share: 0.5 };
        let found = steps_of(&[0.25; 4], Some(&counts));
        // Frequencies of .125, 1.025, .225 and .125.
        let logs = [0.125_f64, 1.025, 0.225, 0.125].map(|frequency| -0.25 * frequency.log2());
        let mean = logs.iter().sum::<f64>() / 4.0;
        let expected = logs.map(|log| (2.0 * (4.0 * (log - mean)).round()) as i8);
        assert_eq!(found.eighths.as_slice(), expected);
        assert!(expected[1] < expected[2] && expected[2] < expected[0]);
        let none = CountedTokens { counts: vec![0; 4], share: 1.0 };
        assert_eq!(steps_of(&[0.25; 4], Some(&none)), steps_of(&[0.25; 4], None));
    }

    #[test]
    fn extreme_frequencies_have_a_largest_factor() {
        let found = steps_of(&[1.0, 1e-300], None);
        assert_eq!(found.eighths.as_slice(), [-96, 96]);
        assert!(steps_of(&[], None).mean_square == 1.0);
    }
}
