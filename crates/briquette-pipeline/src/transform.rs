//! Transforms: stages that replace tensors of a model by tensors of other shapes or values.
//!
//! A transform takes a network (headers, weights, graph and statistics of layer inputs) and returns a source of tensors, the
//! graph of the new network, and the changed keys of `config.json`. The output is written tensor by tensor and verified.

mod changed;
mod edit;
mod factorize;
mod fold;
mod headed;
#[cfg(all(test, feature = "model"))]
#[allow(clippy::unwrap_used)]
mod masked_tests;
mod network;
mod network_edit;
mod predicted;
#[cfg(feature = "model")]
mod random_inputs;
mod rotated;
mod shrink;

use crate::onnx_network;
use briquette_core::{Error, Result};
use briquette_formats::input_stats::StatisticsFile;
use briquette_formats::{
    Checkpoint, Compressed, Draft, OutputFormat, TensorInfo, TensorSource, companions, model_config,
};
use briquette_graph::Graph;
use briquette_recipe::{Recipe, TransformStage};
use briquette_writer::context::{RunOptions, Workers};
use briquette_writer::manifest::ManifestSource;
use briquette_writer::plan::Nonfinite;
use briquette_writer::{self as flow, Plan, WriteJob};
use network::{Network, Transform, Transformed};
use std::path::Path;

/// Returns the implementation of a stage.
fn transform_of(stage: &TransformStage) -> &dyn Transform {
    match stage {
        TransformStage::Factorize(stage) => stage,
        TransformStage::Shrink(stage) => stage,
        TransformStage::Fold(stage) => stage,
    }
}

/// Returns the file of the figures of a stage.
pub(crate) fn report_file(stage: &TransformStage) -> &'static str {
    transform_of(stage).report_file()
}

/// Transforms a model, and writes the result as a directory of plain tensors.
///
/// # Errors
/// See [`Transform::apply`].
pub(crate) fn run(
    recipe: &Recipe,
    stage: &TransformStage,
    model: &Path,
    output: &Path,
    options: &RunOptions,
) -> Result<()> {
    let transform = transform_of(stage);
    let checkpoint = Checkpoint::open_as(model, &recipe.choice)?;
    let is_quantized = checkpoint.compressed() == Compressed::Quantized || checkpoint.quantized_by().is_some();
    if is_quantized || checkpoint.has_codes_of_nodes()? {
        let message = "the model is already quantized; start from the original weights, or export it to dense first";
        return Err(Error::refused(message).at(checkpoint.path().display()));
    }
    let statistics = transform.statistics().map(|path| {
        let file = StatisticsFile::read(path)?;
        file.check_model(&checkpoint).map_err(|error| error.at(path.display()))?;
        Ok::<_, Error>(file)
    });
    let network = Network {
        recipe,
        checkpoint: &checkpoint,
        config: model_config::read(&checkpoint)?,
        statistics: statistics.transpose()?,
        #[cfg(feature = "model")]
        options,
        #[cfg(feature = "model")]
        scratch: output.parent().unwrap_or(Path::new(".")),
    };
    let workers = Workers::new(options)?;
    let found = transform.apply(&network, &workers)?;
    write(&found, &network, transform, output, &workers)
}

/// Writes and verifies a directory of plain tensors, the model's companion files, and the report.
fn write(
    found: &Transformed,
    network: &Network,
    transform: &dyn Transform,
    output: &Path,
    workers: &Workers,
) -> Result<()> {
    let (draft, checkpoint) = (Draft::create(output, &[], false)?, network.checkpoint);
    let mut plan = Plan::unchanged(found.model.tensors(), OutputFormat::Dense, Nonfinite::Unchanged);
    let small_files = |_: &Plan, _: &ManifestSource| {
        companions::copy_into(&draft, checkpoint, &|| workers.check_stop())?;
        if let Some(network) = &found.network {
            for (name, bytes) in onnx_network::files(checkpoint, network.to_vec())? {
                draft.write_file(&name, &bytes)?;
            }
        }
        let config = model_config::with_quantization(network.config.clone(), None, &checkpoint.directory())?;
        if let Some(config) = config {
            let config = model_config::with_values(&config, &found.config, &checkpoint.directory())?;
            draft.write_file(Path::new(model_config::FILE_NAME), &config)?;
        }
        let mut report = found.report.clone();
        transform.check(network, draft.path(), &mut report)?;
        let json = serde_json::to_vec_pretty(&report).map_err(|error| Error::bug(format!("the report: {error}")))?;
        draft.write_file(Path::new(transform.report_file()), &json)
    };
    let written = flow::write(WriteJob {
        plan: &mut plan,
        source: &found.model,
        draft: &draft,
        recipe: serde_json::json!({ "stage": [] }),
        producer: concat!("briquette ", env!("CARGO_PKG_VERSION")),
        workers,
        small_files: &small_files,
        kept: &|_, _| Vec::new(),
        is_over: &mut |_| {},
    });
    written.map(drop)?;
    checkpoint.check_unchanged()?;
    if let Some(graph) = &found.graph {
        check_shapes(graph, found.model.tensors())?;
    }
    draft.publish()
}

/// Compares the graph of the new network with its tensors.
fn check_shapes(graph: &Graph, tensors: &[TensorInfo]) -> Result<()> {
    for info in tensors {
        let Some(weight) = graph.weight(&info.name) else { continue };
        let expected = &graph.weights[weight.0].shape;
        if *expected != *info.shape {
            let message = format!("has shape {}, expected {expected}", info.shape);
            return Err(Error::bug(message).at(format_args!("tensor {:?}", info.name)));
        }
    }
    Ok(())
}

/// Predicts the tensors after all transforms of a recipe from headers, and checks that they are possible.
///
/// Returns none if no part shrinks or folds, if a part factorizes, or if weights decide how many units each group keeps.
///
/// # Errors
/// - Config: a stage does not fit the model.
/// - Input: no family knows the model, or the statistics of a layer are missing.
pub(crate) fn predicted(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<Option<Vec<TensorInfo>>> {
    let found = predicted::predicted(recipe, checkpoint)?;
    shrink::check_statistics(recipe, checkpoint)?;
    fold::check_statistics(recipe, checkpoint)?;
    Ok(found.filter(|found| found.is_exact).map(|found| found.tensors))
}

/// Describes what the shrink and fold stages of a recipe do, from headers alone.
///
/// # Errors
/// - Config: a stage does not fit the model.
/// - Input: no family knows the model.
pub fn notes(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<Vec<String>> {
    let found = predicted::predicted(recipe, checkpoint)?;
    Ok(found.map_or_else(Vec::new, |found| found.notes))
}
