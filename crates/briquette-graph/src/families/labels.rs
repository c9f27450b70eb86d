//! Layers of classes, and the classes that `config.json` declares.

use super::heads::{has, pooled};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, Node, ValueId};
use crate::headers::Headers;
use crate::op::{Composite, ElementFunction, Op};
use briquette_core::{Error, Result};

/// Names of the last layer of a classifier of texts or tokens.
const CLASS_LAYERS: [&str; 3] = ["classifier", "classifier.out_proj", "score"];

const KINDS: [&str; 3] = ["regression", "single_label_classification", "multi_label_classification"];

/// Adds the layer of classes if the checkpoint has it: for every token of a token classifier, else for a text.
///
/// Names do not tell a token classifier with a pooler from a classifier of texts. The class in `config.json` does.
pub(super) fn classes(
    to: &mut GraphBuilder,
    config: &Config,
    path: &str,
    text: ValueId,
    tokens: ValueId,
) -> Result<Option<ValueId>> {
    if !has(to, path) {
        return Ok(None);
    }
    check_labels(to, config, path)?;
    to.linear(path, if is_of_tokens(config) { tokens } else { text }).map(Some)
}

/// `out_proj(function(dense(first token)))` below `classifier`, or `classifier` for every token.
pub(super) fn classifier(
    to: &mut GraphBuilder,
    config: &Config,
    function: ElementFunction,
    x: ValueId,
) -> Result<Option<ValueId>> {
    match pooled(to, "classifier.dense", function, x)? {
        Some(state) => {
            check_labels(to, config, "classifier.out_proj")?;
            to.linear("classifier.out_proj", state).map(Some)
        }
        None => classes(to, config, "classifier", x, x),
    }
}

/// Ends the graph of a decoder that predicts no tokens, with the classes of each token if it has them.
///
/// A text has the classes of its last token.
pub(super) fn finish_with_classes(mut to: GraphBuilder, config: &Config, x: ValueId) -> Result<Graph> {
    let mut outputs = vec![x];
    if let Some(path) = ["score", "classifier"].into_iter().find(|path| has(&to, path)) {
        outputs.extend(classes(&mut to, config, path, x, x)?);
    }
    Ok(to.finish(&outputs))
}

/// The logits of a text network's layer of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassLogits {
    /// The logits: of a text `[batch, classes]`, or of its tokens `[batch, tokens, classes]`.
    pub logits: ValueId,
    /// Whether the classes of a text are those of its last token.
    pub of_last_token: bool,
}

/// Returns the logits of a text network with a layer of classes: of texts, or of their tokens.
///
/// `shapes` has the shape of each value. A layer with one output, for regression or choices, gives a score. A decoder whose layer of
/// classes has no bias classifies texts by their last token; token classifiers have a bias.
pub fn text_classes(graph: &Graph, shapes: &[Vec<usize>]) -> Option<ClassLogits> {
    let takes = |source: InputSource| graph.inputs.iter().any(|input| input.source == source);
    if !takes(InputSource::TokenIds) || takes(InputSource::Images) || takes(InputSource::TargetIds) {
        return None;
    }
    let is_causal =
        |node: &Node| matches!(&node.op, Op::Composite(Composite::Attention(attention)) if attention.causal);
    let mut makers = graph.nodes.iter().filter(|node| CLASS_LAYERS.contains(&node.name.as_str()));
    makers.find_map(|node| {
        let logits = *node.outputs.first().filter(|value| graph.outputs.contains(value))?;
        let of_last_token = node.inputs.len() == 2 && graph.nodes.iter().any(is_causal);
        let has_classes = shapes[logits.0].last().is_some_and(|&classes| classes > 0);
        has_classes.then_some(ClassLogits { logits, of_last_token })
    })
}

/// Returns whether a decoder has a layer of classes instead of a head over the vocabulary.
pub(super) fn has_classes(headers: &Headers) -> bool {
    let has = |name: &str| headers.has(name);
    (has("score.weight") || has("classifier.weight")) && !has("lm_head.weight") && !has("embed_out.weight")
}

/// Returns whether a decoder predicts tokens: its class says so, or there is none and no layer of classes.
pub(super) fn predicts_tokens(to: &GraphBuilder, config: &Config, class: &str) -> bool {
    match config.architecture() {
        Some(name) => name.ends_with(class),
        None => !has(to, "score"),
    }
}

/// Returns whether the class of the model is a token classifier.
pub(super) fn is_of_tokens(config: &Config) -> bool {
    config.architecture().is_some_and(|name| name.ends_with("TokenClassification"))
}

/// Compares `num_labels`, `id2label` and `problem_type` with the outputs of a layer.
pub(super) fn check_labels(to: &GraphBuilder, config: &Config, path: &str) -> Result<()> {
    let name = format!("{path}.weight");
    let is_choice = config.architecture().is_some_and(|name| name.ends_with("ForMultipleChoice"));
    // The builder names a tensor that is missing. A choice has one output, whatever its labels are.
    let Some([n_outputs, _]) = to.headers().matrix(&name).filter(|_| !is_choice) else { return Ok(()) };
    config.check("num_labels", n_outputs, &name)?;
    let error = |message: String| Err(Error::input(format!("{message}; correct it")).at("config.json"));
    if let Some(n) = config.n_entries("id2label").filter(|n| *n != n_outputs) {
        return error(format!("id2label has {n} labels, but {name} has {n_outputs}"));
    }
    match config.text("problem_type") {
        Some(kind) if !KINDS.contains(&kind) => {
            error(format!("problem_type is {kind:?}, expected one of {}", KINDS.join(", ")))
        }
        Some("single_label_classification") if n_outputs == 1 => error(format!(
            "problem_type is \"single_label_classification\", but {name} has 1 output, expected 2 or more"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::DType;
    use briquette_formats::TensorInfo;

    fn checked(json: &str, n_outputs: usize) -> Result<()> {
        let tensors = [TensorInfo::checked("classifier.weight".into(), DType::F32, vec![n_outputs, 4]).unwrap()];
        let headers = Headers::new(&tensors, None);
        check_labels(&GraphBuilder::new("BERT", &headers), &Config::parse(Some(json.as_bytes())).unwrap(), "classifier")
    }

    #[test]
    fn labels_that_disagree_with_the_layer_are_one_line() {
        for (json, n_outputs, phrase) in [
            (r#"{"num_labels": 3}"#, 2, "num_labels is 3, but classifier.weight has 2"),
            (r#"{"id2label": {"0": "a", "1": "b"}}"#, 3, "id2label has 2 labels, but classifier.weight has 3"),
            (r#"{"problem_type": "ranking"}"#, 2, "problem_type is \"ranking\", expected one of regression"),
            (r#"{"problem_type": "single_label_classification"}"#, 1, "has 1 output, expected 2 or more"),
        ] {
            let error = checked(json, n_outputs).unwrap_err().to_string();
            assert!(error.contains(phrase) && error.starts_with("config.json: "), "{error}");
        }
    }

    #[test]
    fn labels_that_agree_or_are_absent_pass() {
        checked("{}", 7).unwrap();
        checked(r#"{"problem_type": null, "id2label": {"0": "a"}, "num_labels": 1}"#, 1).unwrap();
        checked(r#"{"problem_type": "regression"}"#, 1).unwrap();
        checked(r#"{"architectures": ["BertForMultipleChoice"], "num_labels": 2}"#, 1).unwrap();
    }
}
