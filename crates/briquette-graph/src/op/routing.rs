//! How tokens choose experts.

use serde::Serialize;

/// The choice of experts for each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Routing {
    /// Experts that run for each token.
    pub top_k: usize,
    /// Whether the shares of the chosen experts are divided by their sum.
    pub is_normalized: bool,
}
