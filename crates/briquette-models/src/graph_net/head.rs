//! Whether a network ends with the head of its task.

use super::GraphNet;
use super::input::vocabulary;
use crate::ModelTask;
use briquette_core::{Error, Result};
use briquette_graph::op::{Composite, ElementFunction, Primitive};
use briquette_graph::{Graph, Op, ValueId};

impl GraphNet {
    /// Refuses a network that ends with hidden states, where the task needs logits.
    ///
    /// # Errors
    /// Input: a language model has no head over the vocabulary, or a classifier has no classes.
    pub(crate) fn check_head(&self, task: ModelTask) -> Result<()> {
        let (graph, output) = (self.graph(), self.outline.output);
        let message = match task {
            ModelTask::Encoder => return Ok(()),
            ModelTask::Decoder | ModelTask::EncoderDecoder => {
                let n_scores = self.output_width();
                if vocabulary(graph).is_some_and(|words| n_scores >= words) {
                    return Ok(());
                }
                match task {
                    ModelTask::Decoder => {
                        "it has no head over the vocabulary; expected a language model; save it as ...ForCausalLM"
                    }
                    _ => "it has no head over the vocabulary; save it as ...ForConditionalGeneration",
                }
            }
            ModelTask::Classifier if is_of_classes(graph, output) => return Ok(()),
            ModelTask::Classifier => "it has no classifier; save it as ...ForImageClassification",
        };
        Err(Error::input(format!("{message}; commands that run no model need no head")))
    }
}

/// Returns whether a linear layer makes this value; DeiT returns the mean of two layers.
fn is_of_classes(graph: &Graph, output: ValueId) -> bool {
    let Some(maker) = graph.nodes.iter().find(|node| node.outputs.contains(&output)) else { return false };
    match &maker.op {
        Op::Composite(Composite::Linear) => true,
        Op::Primitive(Primitive::Scale(_) | Primitive::Elementwise(ElementFunction::Add)) => {
            maker.values().all(|(_, value)| is_of_classes(graph, value))
        }
        _ => false,
    }
}
