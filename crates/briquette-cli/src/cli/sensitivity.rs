//! `sensitivity`: measures the sensitivity of each tensor.

use super::choice::ModelArgs;
use super::common::Common;
use super::options::options;
use super::show::show;
use super::tables::table;
use briquette::Result;
use briquette::core::printable::printable;
use briquette::pipeline::recipe::raw::RawData;
use briquette::pipeline::report::{SensitivityReport, TensorSensitivity};
use briquette::pipeline::sensitivity::{SensitivityRequest, sensitivity as run};
use clap::Args;
use std::path::{Path, PathBuf};

/// Number of tensors that the terminal shows.
const N_SHOWN: usize = 24;

/// The method and the data of a sensitivity measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct SensitivityArgs {
    /// Data: text lines or .jsonl (encoders), a text file (decoders), a folder of classes or an array
    /// (classifiers)
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    data: Option<PathBuf>,
    /// Method: gradient (one forward and backward pass), measured (with only this tensor quantized), or
    /// relative (to weights or outputs)
    #[arg(long, value_name = "HOW", help_heading = "Method")]
    how: Option<String>,
    /// Another method, to compare with
    #[arg(long, value_name = "HOW", help_heading = "Method")]
    against: Option<String>,
    /// Loss of measured: kl (decoders, classifiers), cosine (of outputs) or metric (accuracy, sts_spearman, ln
    /// perplexity)
    #[arg(long, value_name = "LOSS", requires = "data", help_heading = "Method")]
    loss: Option<String>,
    /// Input statistics from `briquette calibrate`, for relative
    #[arg(long, value_name = "FILE", conflicts_with = "data", help_heading = "Data")]
    statistics: Option<PathBuf>,
    /// File to write, for --sensitivity-file; a page with the extension .html is written beside it
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// Largest number of sentences, images or windows of text (64)
    #[arg(long, value_name = "N", requires = "data", help_heading = "Data")]
    samples: Option<usize>,
    /// Only tensors whose name matches; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Tensors")]
    include: Vec<String>,
    /// Skip tensors whose name matches; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Tensors")]
    exclude: Vec<String>,
    /// How to read the model
    #[command(flatten, next_help_heading = "Input")]
    model: ModelArgs,
    /// Truncate texts to this many tokens
    #[arg(long, value_name = "N", requires = "data", help_heading = "Data")]
    max_length: Option<usize>,
    /// Scale the shorter side of images to this length, at most 16384
    #[arg(long, value_name = "PIXELS", requires = "data", help_heading = "Data")]
    size: Option<usize>,
}

impl SensitivityArgs {
    /// Returns the paths that are read or written.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.data, &self.statistics, &self.output].into_iter().flatten().map(PathBuf::as_path)
    }
}

/// Measures sensitivities and prints them.
pub(super) fn sensitivity(common: &Common, model: &Path, what: &SensitivityArgs) -> Result<u8> {
    let what = what.clone();
    let (max_length, size) = (what.max_length, what.size);
    let request = SensitivityRequest {
        model: model.to_path_buf(),
        choice: what.model.choice(),
        arch: what.model.arch,
        how: what.how,
        against: what.against,
        loss: what.loss,
        data: RawData { eval: what.data, max_length, size, ..RawData::default() },
        statistics: what.statistics,
        n_samples: what.samples,
        include: what.include,
        exclude: what.exclude,
        output: what.output,
    };
    let found = run(&request, &options(common, what.force)?)?;
    show(common, &found, || Ok(text_of(&found, request.output.as_deref())))
}

fn text_of(found: &SensitivityReport, output: Option<&Path>) -> String {
    let mut worst: Vec<&TensorSensitivity> = found.tensors.iter().collect();
    worst.sort_by(|a, b| b.loss.total_cmp(&a.loss).then(a.name.cmp(&b.name)));
    let total: f64 = worst.iter().map(|tensor| tensor.loss).sum();
    let row = |tensor: &&TensorSensitivity| {
        let mut row = vec![
            printable(&tensor.name),
            tensor.n_weights.to_string(),
            format!("{:.3e}", tensor.loss),
            format!("{:.1} %", 100.0 * tensor.loss / total.max(1e-300)),
        ];
        row.extend(found.against.as_ref().map(|_| tensor.against.map_or("-".into(), |loss| format!("{loss:.3e}"))));
        row.push(if tensor.is_idle { "not used by any layer that ran".into() } else { String::new() });
        row
    };
    let loss = format!("loss, {}", found.unit);
    let mut headings = vec!["tensor", "weights", loss.as_str(), "of all"];
    headings.extend(found.against.as_deref());
    headings.push("");
    let rows: Vec<Vec<String>> = worst.iter().take(N_SHOWN).map(row).collect();
    let left = worst.len() - rows.len();
    let mut out = format!(
        "Loss with only this tensor quantized to about four bits (a quarter of its root mean square); by {}\n{}",
        found.how,
        table(&headings, &rows)
    );
    if left > 0 {
        out += &format!("and {left} more tensors with smaller losses\n");
    }
    if let (Some(other), Some(rank)) = (&found.against, found.rank_correlation) {
        out += &format!("rank correlation with {other}: {rank:.3}\n");
    }
    if let Some(path) = output {
        let page = path.with_extension("html");
        out += &format!("wrote {} and {}\n", printable(&path.to_string_lossy()), printable(&page.to_string_lossy()));
    }
    out
}
