//! Embeddings that are also the output head, where rounding errors reach every output.

use crate::Stage;
use crate::plan::role::RoleContext;
use crate::plan::topology::Topology;
use briquette_core::Result;
use briquette_core::{Role, RoleRule};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, json, model_config};
use briquette_graph::WeightId;
use briquette_graph::ties::heads as of_graph;
use briquette_writer::Plan;
use briquette_writer::ties::{self, Ties};
use serde::Deserialize;
use std::collections::{BTreeSet, HashSet};

/// Segments of names that only a vocabulary head has.
const HEADS: [&str; 5] = ["lm_head", "embed_out", "proj_out", "predictions", "output_projection"];
/// Words in the names of architectures that predict tokens and so have a head.
const WITH_HEAD: [&str; 5] = ["CausalLM", "LMHead", "MaskedLM", "ConditionalGeneration", "PreTraining"];

/// The keys of `config.json` about heads. Multimodal models have a nested table for their text model.
#[derive(Debug, Default, Deserialize)]
struct Said {
    #[serde(default)]
    architectures: Option<Vec<String>>,
    #[serde(default)]
    tie_word_embeddings: Option<bool>,
    #[serde(default)]
    vocab_size: Option<usize>,
    #[serde(default)]
    text_config: Option<Box<Said>>,
}

/// Returns whether one of these stages would quantize tied heads below eight bits by default.
pub(super) fn matter<'a>(mut stages: impl Iterator<Item = &'a Stage>) -> bool {
    stages.any(|stage| matches!(stage, Stage::Quantize(stage) if stage.spares_heads()))
}

/// Returns the tensors of a plan that are both embedding and head.
pub(super) fn of(plan: &Plan, ties: &Ties, checkpoint: &Checkpoint, topology: &Topology) -> Result<BTreeSet<usize>> {
    in_model(&tensors_of(plan), ties, checkpoint, topology)
}

/// Returns the same as [`of`] without a `config.json`: embeddings stored under two names.
pub(super) fn tied(plan: &Plan, ties: &Ties) -> BTreeSet<usize> {
    stored_twice(&tensors_of(plan), ties)
}

fn tensors_of<'a>(plan: &Plan<'a>) -> Vec<(&'a TensorInfo, Role)> {
    plan.tensors.iter().map(|tensor| (tensor.info, tensor.role)).collect()
}

/// Returns the names of tensors of a checkpoint that are both embedding and head.
///
/// # Errors
/// Input or Io: the checkpoint is invalid or cannot be read.
pub fn names(checkpoint: &Checkpoint, roles: &[RoleRule]) -> Result<BTreeSet<String>> {
    let ties = ties::ties_of(checkpoint, &briquette_writer::Stop::default())?;
    let topology = Topology::of(checkpoint, checkpoint.layout())?;
    let known = RoleContext::of_model(checkpoint, &topology, checkpoint.layout(), roles)?;
    let tensors: Vec<(&TensorInfo, Role)> =
        checkpoint.tensors().iter().map(|info| (info, known.of(info).role)).collect();
    let found = in_model(&tensors, &ties, checkpoint, &topology)?;
    Ok(found.into_iter().map(|index| tensors[index].0.name.to_string()).collect())
}

/// Finds embeddings that are stored under two names, and embeddings that are the head of the network's graph.
///
/// Without a graph, `config.json` shows whether a model without a stored head uses its embedding.
fn in_model(
    tensors: &[(&TensorInfo, Role)],
    ties: &Ties,
    checkpoint: &Checkpoint,
    topology: &Topology,
) -> Result<BTreeSet<usize>> {
    let mut heads = stored_twice(tensors, ties);
    match topology.graph() {
        Some(graph) => {
            let found: HashSet<WeightId> = of_graph(graph).into_iter().collect();
            let is_head = |index: &usize| graph.weight(&tensors[*index].0.name).is_some_and(|id| found.contains(&id));
            heads.extend((0..tensors.len()).filter(|index| tensors[*index].1 == Role::Embedding).filter(is_head));
        }
        None => heads.extend(without_head(tensors, &Said::by(checkpoint)?)),
    }
    Ok(heads)
}

/// Finds embeddings whose bytes are stored under two names.
fn stored_twice(tensors: &[(&TensorInfo, Role)], ties: &Ties) -> BTreeSet<usize> {
    let is_embedding = |index: usize| tensors[index].1 == Role::Embedding;
    let of_embeddings = ties.iter().filter(|(index, first)| is_embedding(**index) || is_embedding(**first));
    let mut heads: BTreeSet<usize> = of_embeddings.map(|(_, first)| *first).collect();
    let others: Vec<usize> = ties.iter().filter(|(_, first)| heads.contains(first)).map(|(index, _)| *index).collect();
    heads.extend(others);
    heads
}

/// Finds embeddings of models that need a head but store none.
fn without_head(tensors: &[(&TensorInfo, Role)], said: &Said) -> BTreeSet<usize> {
    let is_head = |name: &str| name.split('.').any(|segment| HEADS.contains(&segment));
    if !said.is_tied() || tensors.iter().any(|(info, _)| is_head(&info.name)) {
        return BTreeSet::new();
    }
    let vocabulary = said.vocabulary();
    let is_table = |index: &usize| {
        let (info, role) = tensors[*index];
        role == Role::Embedding && vocabulary.is_none_or(|n| info.shape.0.first() == Some(&n))
    };
    (0..tensors.len()).filter(is_table).collect()
}

impl Said {
    fn by(checkpoint: &Checkpoint) -> Result<Self> {
        let config = model_config::read(checkpoint)?;
        Ok(config.and_then(|bytes| json::parsed(&bytes).ok()).unwrap_or_default())
    }

    /// Returns whether a model without a stored head uses its embedding as the head.
    ///
    /// If the config has no such key, the name of the architecture decides.
    fn is_tied(&self) -> bool {
        let names = self.architectures.as_deref();
        let with_head = names.map(|names| names.iter().any(|name| WITH_HEAD.iter().any(|word| name.contains(word))));
        let inner = self.text_config.as_ref().and_then(|inner| inner.tie_word_embeddings);
        match (self.tie_word_embeddings.or(inner), with_head) {
            (Some(is_tied), None) => is_tied,
            (is_tied, Some(with_head)) => with_head && is_tied != Some(false),
            (None, None) => false,
        }
    }

    fn vocabulary(&self) -> Option<usize> {
        self.vocab_size.or(self.text_config.as_ref()?.vocab_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_a_head_ties_it_to_the_embedding_if_it_needs_one() {
        let cases = [
            (r#"{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": true}"#, true),
            (r#"{"architectures": ["GPT2LMHeadModel"]}"#, true),
            (r#"{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": false}"#, false),
            (r#"{"architectures": ["BertModel"], "tie_word_embeddings": true}"#, false),
            (r#"{"architectures": ["BertModel"]}"#, false),
            (r#"{"tie_word_embeddings": true}"#, true),
            (
                r#"{"architectures": ["XForConditionalGeneration"], "text_config": {"tie_word_embeddings": false}}"#,
                false,
            ),
            ("{}", false),
        ];
        for (json, expected) in cases {
            assert_eq!(serde_json::from_str::<Said>(json).unwrap().is_tied(), expected, "{json}");
        }
    }
}
