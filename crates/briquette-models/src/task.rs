//! Tasks of models.

use serde::{Deserialize, Serialize};

/// The task of a model, which determines its data and evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelTask {
    /// Images to logits of classes.
    Classifier,
    /// Sentences to embeddings.
    Encoder,
    /// Text to logits of the next token.
    Decoder,
}
