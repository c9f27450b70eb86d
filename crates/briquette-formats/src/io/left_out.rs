//! Contents of a file besides the model, such as the state of an optimizer.

/// An entry of a file that is not part of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The key of the entry.
    pub key: String,
    /// Bytes of its tensors.
    pub n_bytes: u64,
    /// Whether it looks like a model, so that it could be chosen by its key.
    pub is_model: bool,
}
