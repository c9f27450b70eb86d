//! The graph of a model's network, as figures and as a page.

use crate::output_file::OutputFile;
pub use crate::report::graph::{GraphDetail, schema};
use crate::report::{GraphReport, html};
use briquette_core::Result;
use briquette_formats::{Checkpoint, Choice, draft};
pub use briquette_graph::Extents;
use briquette_graph::known_graph_of;
pub use briquette_graph::onnx::InputDims;
use briquette_writer::RunOptions;
use std::path::PathBuf;

/// A model, the inputs that shapes are computed for, and what to find.
#[derive(Debug, Clone, Default)]
pub struct GraphRequest {
    /// The model.
    pub model: PathBuf,
    /// The entry of the file that is the model.
    pub choice: Choice,
    /// The extents of its inputs.
    pub dims: InputDims,
    /// The contents of the report.
    pub detail: GraphDetail,
    /// The page to write.
    pub page: Option<PathBuf>,
}

/// Builds the graph of a model from its headers and `config.json`. Reads no weights.
///
/// An existing page is replaced only with `force`.
///
/// # Errors
/// - Input: no family knows the model, `config.json` contradicts its tensors, or a tensor is missing or does not fit.
/// - Refused: the page exists or is in the model's directory.
/// - Io: a file cannot be read or written.
pub fn graph(request: &GraphRequest, options: &RunOptions) -> Result<GraphReport> {
    let checkpoint = Checkpoint::open_as(&request.model, &request.choice)?;
    if let Some(page) = &request.page {
        OutputFile::Page.check(page, &checkpoint, &[], options.force)?;
    }
    let graph = known_graph_of(&checkpoint, &request.dims)?;
    let report = crate::report::graph::report(&graph, &request.model, request.detail)
        .map_err(|error| error.at(briquette_core::shown_path(&request.model)))?;
    checkpoint.check_unchanged()?;
    if let Some(page) = &request.page {
        draft::write_files(&[(page, html::of_graph(&report).as_bytes())], options.force)?;
    }
    Ok(report)
}
