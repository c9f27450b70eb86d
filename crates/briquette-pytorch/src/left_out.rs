//! What a file holds beside the model.

/// Something that a file holds besides the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its key.
    pub key: String,
    /// Bytes of its tensors.
    pub n_bytes: u64,
    /// Whether it could be chosen as the model by its key.
    pub is_model: bool,
}
