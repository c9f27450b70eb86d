//! Quality of a model's outputs, by labels and by the outputs of its reference model.

use crate::metrics;
use crate::outputs::OutputRows;
use crate::run_outputs::RunOutputs;
use briquette_core::{Error, Result};
use briquette_models::data::{Data, Sentences};
use std::collections::BTreeMap;

/// The maximum number of sentences whose pairs are compared. The number of pairs grows with the square.
const MAX_PAIRED: usize = 2000;

/// Returns the metrics by name.
///
/// # Errors
/// Input: labels are out of range, or the outputs cannot be compared.
pub(crate) fn metrics_of(
    data: &Data,
    found: &RunOutputs,
    reference: Option<&RunOutputs>,
) -> Result<BTreeMap<String, f64>> {
    let mut metrics = BTreeMap::new();
    match (data, found, reference) {
        (Data::Document(_) | Data::Pairs(_), RunOutputs::Likelihood(found), reference) => {
            metrics.insert("perplexity".to_string(), metrics::perplexity(found.nll, found.n_tokens));
            if let Some(RunOutputs::Likelihood(reference)) = reference {
                let perplexity = metrics::perplexity(reference.nll, reference.n_tokens);
                metrics.insert("reference_perplexity".to_string(), perplexity);
            }
        }
        (Data::Sentences(sentences), RunOutputs::Rows(found), reference) => {
            let reference = rows_of(reference, found)?;
            metrics.extend(match found.are_logits {
                true if found.width == 1 => of_scores(sentences, found, reference),
                true => of_logits(&found.labels, found, reference),
                false => of_embeddings(sentences, found, reference),
            });
        }
        (Data::Images(images), RunOutputs::Rows(found), reference) => {
            let labels: Option<Vec<usize>> = found.places.iter().map(|&place| images.label(place)).collect();
            if labels.is_some() {
                images.check_labels(found.width)?;
            }
            metrics.extend(of_logits(&labels.unwrap_or_default(), found, rows_of(reference, found)?));
        }
        _ => return Err(Error::bug("the outputs are of another kind than the data")),
    }
    Ok(metrics)
}

/// Returns the task's metric as a loss (lower is better), with its unit. `None` if it was not measured.
pub(crate) fn loss_of_metrics(metrics: &BTreeMap<String, f64>) -> Option<(&'static str, f64)> {
    if let Some(perplexity) = metrics.get("perplexity") {
        return Some(("ln perplexity", perplexity.ln()));
    }
    let of = |name: &'static str| metrics.get(name).map(|value| (name, -value));
    of("accuracy").or_else(|| of("sts_spearman"))
}

/// Returns the reference's rows, which must have the same width.
fn rows_of<'a>(reference: Option<&'a RunOutputs>, found: &OutputRows) -> Result<Option<&'a OutputRows>> {
    match reference {
        Some(RunOutputs::Rows(reference)) if (reference.width, &reference.places) == (found.width, &found.places) => {
            Ok(Some(reference))
        }
        Some(RunOutputs::Rows(reference)) => {
            let message = format!("the reference gives {} values per item, the model {}", reference.width, found.width);
            Err(Error::input(format!("{message}; they cannot be compared")))
        }
        Some(RunOutputs::Likelihood(_)) => Err(Error::bug("the outputs are of another kind than the data")),
        None => Ok(None),
    }
}

type NamedMetrics = Vec<(String, f64)>;

fn of_embeddings(sentences: &Sentences, found: &OutputRows, reference: Option<&OutputRows>) -> NamedMetrics {
    let mut metrics = NamedMetrics::new();
    if let Some(reference) = reference {
        metrics.extend(cosines(found, reference));
        let paired = |outputs: &OutputRows| {
            let n = outputs.values.len().min(MAX_PAIRED * outputs.width);
            metrics::pair_cosines(&outputs.values[..n], outputs.width)
        };
        let spearman = metrics::spearman(&paired(reference), &paired(found));
        metrics.extend(spearman.map(|value| ("pair_spearman".into(), value)));
        metrics.extend(of_pairs(sentences, reference).map(|value| ("reference_sts_spearman".into(), value)));
    }
    metrics.extend(of_pairs(sentences, found).map(|value| ("sts_spearman".into(), value)));
    metrics
}

/// Returns the mean and the least cosine between the rows of two runs.
fn cosines(found: &OutputRows, reference: &OutputRows) -> NamedMetrics {
    let pairs = metrics::rows(&reference.values, found.width).zip(metrics::rows(&found.values, found.width));
    let cosines: Vec<f64> = pairs.map(|(a, b)| metrics::cosine(a, b)).collect();
    let least = cosines.iter().copied().fold(1.0, f64::min);
    vec![("cosine".into(), metrics::mean(cosines.into_iter())), ("cosine_min".into(), least)]
}

/// Returns the rank correlation of cosines and human ratings, for pairs whose sentences both ran.
fn of_pairs(sentences: &Sentences, outputs: &OutputRows) -> Option<f64> {
    let row = |place: usize| {
        let at = outputs.places.binary_search(&place).ok()?;
        Some(&outputs.values[at * outputs.width..(at + 1) * outputs.width])
    };
    let judged = |&(a, b, score): &(usize, usize, f64)| Some((metrics::cosine(row(a)?, row(b)?), score));
    let (cosines, scores): (Vec<f64>, Vec<f64>) = sentences.pairs.iter().filter_map(judged).unzip();
    metrics::spearman(&cosines, &scores)
}

/// Returns the rank correlations of the single scores that a network gives to items: with those of the reference, and with
/// those of the data.
fn of_scores(sentences: &Sentences, found: &OutputRows, reference: Option<&OutputRows>) -> NamedMetrics {
    let of_starts = sentences.pairs.iter().map(|(first, _, score)| (*first, *score));
    let of_starts: BTreeMap<usize, f64> = of_starts.collect();
    // An item is a pair or another sentence; its place counts both.
    let item_of = |start: usize| start - sentences.pair_starts.partition_point(|&pair| pair < start);
    let known: BTreeMap<usize, f64> = of_starts.into_iter().map(|(start, score)| (item_of(start), score)).collect();
    let judged = |outputs: &OutputRows| {
        let rows = outputs.places.iter().zip(&outputs.values);
        let both = rows.filter_map(|(place, &value)| Some((f64::from(value), *known.get(place)?)));
        let (scores, known): (Vec<f64>, Vec<f64>) = both.unzip();
        metrics::spearman(&scores, &known)
    };
    let mut metrics = NamedMetrics::new();
    if let Some(reference) = reference {
        let [before, after] =
            [reference, found].map(|rows| rows.values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
        metrics.extend(metrics::spearman(&before, &after).map(|value| ("score_spearman".into(), value)));
        metrics.extend(judged(reference).map(|value| ("reference_sts_spearman".into(), value)));
    }
    metrics.extend(judged(found).map(|value| ("sts_spearman".into(), value)));
    metrics
}

/// Returns the metrics of logits; `labels` has the class of each row, or is empty.
fn of_logits(labels: &[usize], found: &OutputRows, reference: Option<&OutputRows>) -> NamedMetrics {
    let mut metrics = NamedMetrics::new();
    if !labels.is_empty() {
        let mut push = |prefix: &str, outputs: &OutputRows| {
            metrics.push((format!("{prefix}accuracy"), metrics::accuracy(&outputs.values, labels)));
            metrics.push((format!("{prefix}f1"), metrics::macro_f1(&outputs.values, labels)));
            if found.width > 5 {
                metrics.push((format!("{prefix}top5"), metrics::top_k(&outputs.values, labels, 5)));
            }
        };
        push("", found);
        reference.iter().for_each(|reference| push("reference_", reference));
    }
    if let Some(reference) = reference {
        metrics.extend(cosines(found, reference));
        metrics.push(("agreement".into(), metrics::agreement(&reference.values, &found.values, found.width)));
        metrics.push(("kl".into(), metrics::kl(&reference.values, &found.values, found.width)));
    }
    metrics
}
