//! A network before and after a transform.

use super::changed::ChangedModel;
use briquette_core::Result;
use briquette_formats::Checkpoint;
use briquette_formats::input_stats::StatisticsFile;
use briquette_graph::Graph;
use briquette_recipe::Recipe;
use briquette_writer::context::Workers;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A model before a transform.
pub(crate) struct Network<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) checkpoint: &'a Checkpoint,
    /// Its `config.json`.
    pub(super) config: Option<Vec<u8>>,
    /// Statistics of the inputs of its layers.
    pub(super) statistics: Option<StatisticsFile>,
    #[cfg(feature = "model")]
    pub(super) options: &'a briquette_writer::context::RunOptions,
    /// An existing directory for temporary files.
    #[cfg(feature = "model")]
    pub(super) scratch: &'a Path,
}

/// A model after a transform.
pub(crate) struct Transformed<'a> {
    pub(super) model: ChangedModel<'a>,
    /// The graph of the new network, if it is known.
    pub(super) graph: Option<Graph>,
    /// The network of an ONNX model, without weights.
    pub(super) network: Option<Arc<Vec<u8>>>,
    /// Changed keys of `config.json`.
    pub(super) config: Vec<(String, Value)>,
    /// The figures of the transform.
    pub(super) report: Value,
}

/// A stage that replaces tensors of a model by tensors of other shapes or values.
pub(crate) trait Transform {
    /// The file of the figures in the directory of the new model.
    fn report_file(&self) -> &'static str;

    /// Returns the file of input statistics, if it needs one.
    fn statistics(&self) -> Option<&Path> {
        None
    }

    /// Returns the new network. Weights are read where the transform needs them, and again when the result is written.
    ///
    /// # Errors
    /// - Config: the stage does not fit the model.
    /// - Input: the model or the statistics are damaged, or of another model.
    /// - Refused: a weight is not finite.
    /// - Io and Interrupted.
    fn apply<'a>(&self, network: &Network<'a>, workers: &Workers) -> Result<Transformed<'a>>;

    /// Checks the new network, which is in the directory `written`, and adds figures to the report.
    ///
    /// # Errors
    /// Refused: the new network does not compute what it should.
    fn check(&self, _network: &Network, _written: &Path, _report: &mut Value) -> Result<()> {
        Ok(())
    }
}
