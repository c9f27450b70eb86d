//! `calibrate`: gathers input statistics of layers.

use super::choice::ModelArgs;
use super::common::Common;
use super::options::options;
use super::show::show;
use super::tables::bytes;
use briquette::Result;
use briquette::core::printable::printable;
use briquette::pipeline::calibrate::{CalibrationRequest, calibrate as run};
use briquette::pipeline::recipe::raw;
use briquette::pipeline::report::CalibrationReport;
use clap::Args;
use std::path::{Path, PathBuf};

/// Number of layers that a message lists.
const N_LISTED: usize = 8;

/// The data and settings of a calibration.
#[derive(Debug, Clone, Args)]
pub(crate) struct CalibrateArgs {
    /// Text lines or .jsonl (encoders, text classifiers), a text file (decoders), .jsonl pairs (T5, BART, Whisper), a folder of
    /// classes or an array (image classifiers)
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    pub(crate) data: PathBuf,
    /// The file to write; it may not be in the model's directory
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: PathBuf,
    /// Replace the file if it exists
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
    /// Largest number of sentences, images or windows of text
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Data")]
    pub(crate) samples: u64,
    /// Seed that chooses the items
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Data")]
    pub(crate) seed: u64,
    /// Also gather Gram matrices: n² numbers for a layer with n inputs
    #[arg(long, help_heading = "Output")]
    pub(crate) gram: bool,
    /// Also gather the importance of each input by a backward pass, for the shrink method taylor
    #[arg(long, help_heading = "Output")]
    pub(crate) gradients: bool,
    /// How to read the model
    #[command(flatten, next_help_heading = "Input")]
    pub(crate) model: ModelArgs,
    /// Memory limit; checked with the weights before loading, and with measurements while running
    #[arg(long, value_name = "BYTES", help_heading = "Memory")]
    pub(crate) memory_limit: Option<String>,
    /// Keep only one block's weights in memory at a time; models with blocks always do here
    #[arg(long, help_heading = "Memory")]
    pub(crate) offload: bool,
    /// Truncate texts to this many tokens
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(crate) max_length: Option<usize>,
    /// Scale the shorter side of images to this length, at most 16384
    #[arg(long, value_name = "PIXELS", help_heading = "Data")]
    pub(crate) size: Option<usize>,
    /// Fail at an image that cannot be decoded, instead of counting it
    #[arg(long, help_heading = "Data")]
    pub(crate) strict: bool,
}

/// Runs a model on data, and reports the layers that were observed.
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
        choice: what.model.choice(),
        arch: what.model.arch.clone(),
        data,
        n_samples: usize::try_from(what.samples).unwrap_or(usize::MAX),
        seed: what.seed,
        has_gram: what.gram,
        has_gradients: what.gradients,
        memory: raw::RawMemory { limit: what.memory_limit.clone(), offload: what.offload, ..Default::default() },
        output: what.output.clone(),
    };
    let found = run(&request, &options(common, what.force)?)?;
    show(common, &found, || Ok(text_of(&found)))
}

fn text_of(found: &CalibrationReport) -> String {
    let n_vectors = found.layers.iter().map(|layer| layer.n_vectors).max().unwrap_or(0);
    let mut out = format!(
        "{} on {}: {} items of {}, {} layers with up to {n_vectors} input vectors\n",
        found.arch,
        found.device,
        found.n_items,
        printable(&found.data),
        found.layers.len(),
    );
    if found.n_skipped > 0 {
        out += &format!("{} images could not be decoded\n", found.n_skipped);
    }
    let few: Vec<&str> = found.layers.iter().filter(|layer| layer.is_few).map(|layer| layer.name.as_str()).collect();
    out += &listed(&few, "had fewer than 512 input vectors, which is unreliable; use more data");
    let unseen: Vec<&str> = found.unseen.iter().map(String::as_str).collect();
    out += &listed(&unseen, "have no statistics, because they do not expose their inputs or did not run");
    out + &format!("wrote {}, {}\n", printable(&found.output), bytes(found.n_bytes))
}

/// Returns a line about some layers, with the names of the first few.
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
