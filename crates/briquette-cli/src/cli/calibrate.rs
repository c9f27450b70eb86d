//! `calibrate`: statistics of what goes into each layer.

use super::args::{CalibrateArgs, Common};
use super::options::options;
use super::show::show;
use super::tables::bytes;
use briquette::Result;
use briquette::core::printable::printable;
use briquette::pipeline::calibrate::{CalibrationRequest, calibrate as run};
use briquette::pipeline::recipe::raw;
use briquette::pipeline::report::CalibrationReport;
use std::path::Path;

/// Layers that a message lists.
const N_LISTED: usize = 8;

/// Runs a model over data, and says what it saw.
pub(super) fn calibrate(common: &Common, model: &Path, what: &CalibrateArgs) -> Result<u8> {
    let data = raw::RawData {
        eval: Some(what.data.clone()),
        max_length: what.max_length,
        size: what.size,
        strict: what.strict,
        ..Default::default()
    };
    let request = CalibrationRequest {
        model: model.to_path_buf(),
        choice: what.choice.choice(),
        arch: what.arch.clone(),
        data,
        n_samples: usize::try_from(what.samples).unwrap_or(usize::MAX),
        seed: what.seed,
        has_gram: what.gram,
        output: what.output.clone(),
    };
    let found = run(&request, &options(common, what.force)?)?;
    show(common, &found, || Ok(text_of(&found)))
}

fn text_of(found: &CalibrationReport) -> String {
    let n_vectors = found.layers.iter().map(|layer| layer.n_vectors).max().unwrap_or(0);
    let mut out = format!(
        "{} on {}: {} items of {}, {} layers that saw up to {n_vectors} vectors\n",
        found.arch,
        found.device,
        found.n_items,
        printable(&found.data),
        found.layers.len(),
    );
    if found.n_skipped > 0 {
        out += &format!("{} images did not decode\n", found.n_skipped);
    }
    let few: Vec<&str> = found.layers.iter().filter(|layer| layer.is_few).map(|layer| layer.name.as_str()).collect();
    out += &listed(&few, "saw fewer than 512 vectors, which says little: take more data");
    let unseen: Vec<&str> = found.unseen.iter().map(String::as_str).collect();
    out += &listed(&unseen, "have no statistics: they do not show their inputs, or saw none");
    out + &format!("wrote {}, {}\n", printable(&found.output), bytes(found.n_bytes))
}

/// A line about some layers, the first by name.
fn listed(layers: &[&str], what: &str) -> String {
    let more = layers.len().saturating_sub(N_LISTED);
    let named: Vec<String> = layers.iter().take(N_LISTED).map(|layer| printable(layer)).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    if layers.is_empty() {
        String::new()
    } else {
        format!("{} layers {what}: {}{more}\n", layers.len(), named.join(", "))
    }
}
