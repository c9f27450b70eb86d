//! The paths of Swin's parts in torchvision and in transformers.

/// The paths of a network's parts.
pub(super) struct SwinNames {
    /// The convolution of patches and its norm.
    pub(super) stem: [&'static str; 2],
    pub(super) norms: [&'static str; 2],
    /// The biases of relative positions.
    pub(super) table: &'static str,
    /// One layer for queries, keys and values, or three; then the output layer.
    pub(super) projections: &'static [&'static str],
    pub(super) out: &'static str,
    pub(super) feed_forward: [&'static str; 2],
    /// The last norm and the classifier.
    pub(super) last: [&'static str; 2],
}

pub(super) const TORCHVISION: SwinNames = SwinNames {
    stem: ["features.0.0", "features.0.2"],
    norms: ["norm1", "norm2"],
    table: "attn.relative_position_bias_table",
    projections: &["attn.qkv"],
    out: "attn.proj",
    feed_forward: ["mlp.0", "mlp.3"],
    last: ["norm", "head"],
};
pub(super) const HUGGING_FACE: SwinNames = SwinNames {
    stem: ["embeddings.patch_embeddings.projection", "embeddings.norm"],
    norms: ["layernorm_before", "layernorm_after"],
    table: "attention.self.relative_position_bias_table",
    projections: &["attention.self.query", "attention.self.key", "attention.self.value"],
    out: "attention.output.dense",
    feed_forward: ["intermediate.dense", "output.dense"],
    last: ["layernorm", "classifier"],
};
