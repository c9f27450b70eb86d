//! Contents of a file besides the model, such as the state of an optimizer.

/// An entry of a file that is not part of the model, or that cannot be read as a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The key of the entry.
    pub key: String,
    /// Bytes of its tensors.
    pub n_bytes: u64,
    /// Whether it looks like a model, so that it could be chosen by its key.
    pub is_model: bool,
    /// Whether it is a weight of the model whose elements have no fixed length, so that it is not read.
    pub is_unread: bool,
}
