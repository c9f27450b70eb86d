//! What models do.

use serde::{Deserialize, Serialize};

/// What a model does, and so which data it takes and how it is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelTask {
    /// Images in, class scores out.
    Classifier,
    /// Sentences in, embeddings out.
    Encoder,
    /// Text in, scores of the next token out.
    Decoder,
}
