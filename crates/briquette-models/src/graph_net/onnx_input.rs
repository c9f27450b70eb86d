//! The task and the input of an ONNX model without a family.

use super::checked_nodes::check_nodes;
use super::example::EXAMPLE;
use super::headers::config_beside;
use super::input::{InputOf, image_shape, vocabulary};
use super::program::needed_nodes;
use crate::config::Folder;
use crate::{Input, ModelTask};
use briquette_core::{Error, Result, shown_path};
use briquette_formats::{Checkpoint, InputFile};
use briquette_graph::onnx::{InputDims, RunnableModel};
use briquette_graph::{Config, Graph, Headers, InputSource, Task, family_of};
use std::path::Path;

/// Returns the task of an ONNX model.
///
/// | input | first output | task |
/// |---|---|---|
/// | images `[batch, channels, height, width]` | `[batch, classes]` | classifier |
/// | token ids `[batch, tokens]` | `[batch, tokens, vocabulary]` | decoder |
/// | token ids `[batch, tokens]` | `[batch, tokens, width]` | encoder |
/// | token ids `[batch, tokens]` | `[batch, classes]` named `logits`, or a config.json of a `..ForSequenceClassification` | encoder |
///
/// The scores of a masked language model look like those of a decoder: a config.json next to it that names a family of encoders
/// makes it one.
///
/// # Errors
/// - Config: inputs or outputs are none of these, or an operator cannot be run.
/// - Input: the file is damaged.
/// - Io: the file cannot be read.
pub(crate) fn onnx_task(path: &Path, config: &Config) -> Result<ModelTask> {
    let found = RunnableModel::read(InputFile::open(path)?).and_then(|model| task_of(&model, config));
    let is_encoder = || {
        let family = config.model_type().and_then(|_| family_of(&Headers::new(&[], None), config));
        family.is_some_and(|family| family.task == Task::Encoder)
    };
    match found.map_err(|error| error.at(shown_path(path)))? {
        ModelTask::Decoder if is_encoder() => Ok(ModelTask::Encoder),
        task => Ok(task),
    }
}

/// Returns whether the first output of a network of texts has logits of classes: `[batch, classes]`, or `[batch, tokens, classes]`.
///
/// The output is named `logits`, or config.json names a class with such a head. Logits of tokens are not those of the vocabulary.
pub(super) fn gives_classes(model: &RunnableModel, graph: &Graph, output: &[usize], config: &Config) -> bool {
    let is_named = model.output_names().first() == Some(&"logits");
    let has = |head: &str| config.architecture().is_some_and(|class| class.contains(head));
    let takes_texts = graph.inputs.iter().any(|input| input.source == InputSource::TokenIds);
    takes_texts
        && match *output {
            [_, _] => is_named || has("ForSequenceClassification"),
            [_, _, width] => {
                let is_other = vocabulary(graph).is_some_and(|vocabulary| vocabulary != width);
                is_other && (is_named || has("ForTokenClassification"))
            }
            _ => false,
        }
}

fn task_of(model: &RunnableModel, config: &Config) -> Result<ModelTask> {
    let graph = model.graph(&InputDims::from(EXAMPLE))?;
    check_inputs(model, &graph)?;
    let shapes = graph.lower()?.shapes;
    let first = graph.outputs.first().copied();
    let output = first.map(|output| shapes[output.0].as_slice()).unwrap_or_default();
    // The shape after an operator that cannot be run is not known.
    check_nodes(&graph, &shapes, &needed_nodes(&graph, &[], first.as_slice()))?;
    let has = |source: InputSource| graph.inputs.iter().any(|input| input.source == source);
    match (image_shape(&graph).is_some(), output) {
        (true, [_, _]) => Ok(ModelTask::Classifier),
        (true, other) => Err(Error::config(format!(
            "the first output: found the shape {other:?}, expected classes [batch, classes]; export it with a classifier"
        ))),
        (false, &[_, _, width]) if vocabulary(&graph) == Some(width) && !has(InputSource::TokenTypeIds) => {
            Ok(ModelTask::Decoder)
        }
        (false, [_, _, _]) => Ok(ModelTask::Encoder),
        (false, other) if gives_classes(model, &graph, other, config) => Ok(ModelTask::Encoder),
        (false, other) => Err(Error::config(format!(
            "the first output: found the shape {other:?}, expected [batch, tokens, width], or classes [batch, classes] named logits; \
             export hidden states or logits"
        ))),
    }
}

/// Refuses inputs that are neither images nor texts, and extents that data cannot have.
fn check_inputs(model: &RunnableModel, graph: &Graph) -> Result<()> {
    let has = |source: InputSource| graph.inputs.iter().any(|input| input.source == source);
    let other = graph.inputs.iter().find(|input| input.source == InputSource::Caller);
    let is_mixed = has(InputSource::Images) == has(InputSource::TokenIds);
    if let Some(input) = other.or(graph.inputs.first().filter(|_| is_mixed)) {
        let message = format!("found the shape {:?}, expected images or token ids only", input.shape);
        let message = format!("{message}; inspect, plan and compress without data run no model");
        return Err(Error::config(message).at(format_args!("input {:?}", graph.values[input.value.0])));
    }
    let fixed = match (model.fixed_batch(), model.fixed_tokens()) {
        (Some(batch), _) if batch != 1 => format!("a fixed batch of {batch}"),
        (_, Some(tokens)) => format!("a fixed length of {tokens} tokens"),
        _ => return Ok(()),
    };
    Err(Error::config(format!("the inputs: found {fixed}, expected a dynamic extent; export it with dynamic axes")))
}

/// Returns the input of an ONNX model: images or texts, with the settings of the files next to it.
///
/// # Errors
/// - Input: the file or a file next to it is damaged.
/// - Config: the network takes neither text nor images.
/// - Io: a file cannot be read.
pub(crate) fn onnx_input(path: &Path, checkpoint: &Checkpoint) -> Result<Input> {
    let model = RunnableModel::read(InputFile::open(path)?)?;
    let (folder, config) = (Folder::of(checkpoint), config_beside(checkpoint)?);
    let usual = Config::parse(None)?;
    let max_positions = || Ok(longest_text(&config).unwrap_or(usize::MAX));
    let described = InputOf {
        build: &|extents| model.graph(&InputDims::from(extents)),
        folder,
        config: &config,
        usual: &usual,
        max_positions: &max_positions,
    };
    described.input().map_err(|error| error.at(shown_path(path)))
}

/// Returns the most tokens of a text that a config.json next to an ONNX model allows; none if it names no number.
///
/// RoBERTa and MPNet count positions from the one after the padding's, so that the first rows of their tables are not tokens'.
pub(super) fn longest_text(config: &Config) -> Option<usize> {
    let n_positions = ["max_position_embeddings", "n_positions"].into_iter().find_map(|key| config.number(key))?;
    let model_type = config.text("model_type").unwrap_or_default();
    let skips_padding = ["roberta", "xlm-roberta", "camembert", "mpnet"].contains(&model_type);
    let n_skipped = if skips_padding { config.number("pad_token_id").unwrap_or(1.0) + 1.0 } else { 0.0 };
    Some((n_positions - n_skipped).max(0.0) as usize)
}
