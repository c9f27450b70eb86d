//! What a file holds beside the model, such as the state of an optimizer.

/// Something that a file holds besides the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its key.
    pub key: String,
    /// Bytes of its tensors.
    pub n_bytes: u64,
    /// Whether it looks like a model too, so that it could be chosen by its key.
    pub is_model: bool,
}
