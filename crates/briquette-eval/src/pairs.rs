//! Pairs of sources and targets: the likelihood of targets, and the targets that a model writes.

use crate::batch_budget::{BatchBudget, Pace};
use crate::generate::written;
use crate::likelihood::{Likelihood, nll_of_states, rows_of};
use crate::outputs::{ItemProgress, device_of};
use crate::samples::{RunBatch, Samples, run_batches};
use crate::state_file::StateFile;
use crate::stopwatch::Stopwatch;
use briquette_core::{Error, Result};
use briquette_graph::Extents;
use briquette_models::data::{Data, DataSpec};
use briquette_models::{Input, LoadedModel};

/// Returns the likelihood of the targets, each after its source.
///
/// Sources of a batch have one length, and targets too. The head inputs are stored in `kept` if given.
///
/// # Errors
/// - Config: the model takes other sources.
/// - Input: a source cannot be read.
/// - Refused: outputs are not finite.
pub(crate) fn likelihood_of_pairs(
    model: &LoadedModel,
    (data, spec): (&Data, &DataSpec),
    mut kept: Option<&mut StateFile>,
    how: BatchBudget,
    progress: ItemProgress,
) -> Result<Likelihood> {
    let batches = run_batches(model.arch, &mut model.input.clone(), data, spec, Samples::ALL)?;
    let n_items: usize = batches.iter().map(|batch| batch.places.len()).sum();
    let (device, mut found) = (device_of(model), Likelihood::default());
    let (mut stopwatch, mut pace, mut n_done) = (Stopwatch::on(&device, how.warms_up), Pace::new(how), 0);
    for batch in batches {
        let n = batch.length() - 1;
        let order: Vec<usize> = (0..batch.n_items()).collect();
        let (extents, of_reading) = (batch.extents()?, batch.part(0..1).reading_bytes()?);
        let item_bytes = || model.run_bytes(Extents { batch: 1, ..extents }).max(of_reading);
        pace.run(item_bytes, &order, |places| {
            let part = || batch.part(places[0]..places[0] + places.len());
            let keeps = kept.as_ref().is_some_and(|kept| kept.has_room());
            let (nll, states) = stopwatch.time(places.len(), || scored(model, part(), keeps))?;
            found.nll += nll;
            if let (Some(kept), true) = (kept.as_mut(), keeps) {
                kept.push(&states, n)?;
            }
            found.n_tokens += n * places.len();
            n_done += places.len();
            progress(n_done, n_items)
        })?;
    }
    (found.batch_ms, found.batch_size) = (stopwatch.batch_ms, pace.largest);
    match found.nll.is_finite() {
        true => Ok(found),
        false => Err(Error::refused("outputs are not finite; the weights are damaged")),
    }
}

/// Returns the negative log likelihood of a batch of targets, and the head inputs of each if they are stored.
fn scored(model: &LoadedModel, mut batch: RunBatch, keeps: bool) -> Result<(f64, Vec<Vec<f32>>)> {
    let device = device_of(model);
    let inputs = batch.read(&device)?.ok_or_else(|| Error::bug("a batch without pairs"))?;
    let (ids, _) = batch.to_tensors(&device)?;
    let n = batch.length() - 1;
    let states = model.network.target_state(&inputs).narrow(1, 0, n);
    let kept = if keeps { rows_of(states.clone())? } else { Vec::new() };
    Ok((nll_of_states(model.network.as_decoder(), states, ids.narrow(1, 1, n))?, kept))
}

/// Returns the text that a model of speech writes greedily for each sound; `None` for other models.
///
/// # Errors
/// See [`generate`](crate::generate::generate).
pub(crate) fn transcripts(model: &LoadedModel, data: &Data, progress: ItemProgress) -> Result<Option<Vec<String>>> {
    match (data, &model.input) {
        (Data::Pairs(pairs), Input::Pair { sound: Some(_), .. }) => written(model, &pairs.sources, progress).map(Some),
        _ => Ok(None),
    }
}

/// Returns the word error rates of both models, and the share of texts in which they wrote the same words.
pub(crate) fn of_transcripts(
    targets: &[String],
    found: Option<&Vec<String>>,
    reference: Option<&Vec<String>>,
) -> Vec<(String, f64)> {
    let rate = |texts: Option<&Vec<String>>| texts.and_then(|texts| word_error_rate(texts, targets));
    let same = found.zip(reference).and_then(|(found, reference)| share_of_same(found, reference));
    let all = [("wer", rate(found)), ("reference_wer", rate(reference)), ("same_words", same)];
    all.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
}

/// Returns the word error rate: the words to insert, delete or replace in the texts found, over the words expected.
///
/// Words are compared in lower case and without punctuation, as is usual for speech. The rate may exceed 1. `None` if no
/// word is expected.
fn word_error_rate(found: &[String], expected: &[String]) -> Option<f64> {
    let (mut n_errors, mut n_words) = (0, 0);
    for (found, expected) in found.iter().zip(expected) {
        let (found, expected) = (words(found), words(expected));
        n_errors += distance(&found, &expected);
        n_words += expected.len();
    }
    (n_words > 0).then(|| n_errors as f64 / n_words as f64)
}

/// Returns the share of texts with the same words.
fn share_of_same(found: &[String], others: &[String]) -> Option<f64> {
    let n_same = found.iter().zip(others).filter(|(a, b)| words(a) == words(b)).count();
    (!found.is_empty()).then(|| n_same as f64 / found.len() as f64)
}

fn words(text: &str) -> Vec<String> {
    let kept: String = text.chars().filter(|c| c.is_alphanumeric() || c.is_whitespace() || *c == '\'').collect();
    kept.to_lowercase().split_whitespace().map(str::to_string).collect()
}

/// Returns the edit distance of two lists.
fn distance(a: &[String], b: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = replaced.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_in_words() {
        let texts = |all: &[&str]| all.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        let rate = |found: &[&str], expected: &[&str]| word_error_rate(&texts(found), &texts(expected));
        assert_eq!(rate(&["The cat, sat."], &["the CAT sat"]), Some(0.0));
        assert_eq!(rate(&["a x c", "d"], &["a b c", "d e f"]), Some(3.0 / 6.0));
        assert_eq!(rate(&["a b c d e"], &["a"]), Some(4.0));
        assert_eq!(rate(&[""], &["a b"]), Some(1.0));
        assert_eq!(rate(&["a"], &[" "]), None);
        assert_eq!(share_of_same(&texts(&["A b", "c", "it's"]), &texts(&["a b.", "d", "it's"])), Some(2.0 / 3.0));
    }
}
