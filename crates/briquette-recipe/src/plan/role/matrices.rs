//! Matrices called `weight`: linear layers, embeddings, and norms over two axes.

use super::conv1d;
use super::neighbours::{Name, Neighbours};
use briquette_core::OutputAxis;
use briquette_core::Role;
use briquette_writer::known::{Known, Reason};

/// Segments of layer names that indicate an embedding without the word "embedding".
const TABLES: [&str; 4] = ["wte", "wpe", "shared", "emb"];
/// Names of embedding layers: `nn.Embedding` and `nn.EmbeddingBag` of recommenders, speech models, SAM and
/// vector quantizers.
const TABLE_LAYERS: [&str; 6] = ["bag", "codebook", "codebooks", "embs", "lut", "positions"];
/// Suffixes of such names: `tok_emb`, `item_embs`, `mask_tokens`, `iou_token`.
const TABLE_ENDS: [&str; 6] = ["_emb", "_embs", "_bag", "_token", "_tokens", "_codebook"];
/// Prefix of such names: `emb_g`.
const TABLE_START: &str = "emb_";
/// Words in names of linear layers that also contain "embed": `embed_out` of GPT-NeoX, `embeddings_project` of
/// ELECTRA, `embedding_hidden_mapping_in` of ALBERT, `embed_proj`.
const NO_TABLES: [&str; 4] = ["embed_out", "proj", "mapping", "linear"];
/// Tables of biases by relative position, as in T5.
const BIASES: [&str; 1] = ["relative_attention_bias"];
/// Words of linear and conv layers. With them, "norm" in a name means that a norm comes before or after:
/// `layernorm_qkv`, `norm_proj`, `convnormrelu1`.
const PRODUCTS: [&str; 7] = ["proj", "qkv", "conv", "linear", "dense", "fc", "mlp"];

/// Returns the role of the matrix `owner.weight`.
///
/// `conv1d` is the evidence that `c_attn` and similar weights are stored as `[in, out]`. `is_told` is true if
/// the layout is known, so that biases need not show it.
pub(super) fn of(
    name: Name,
    [first, last]: [usize; 2],
    near: &Neighbours,
    conv1d: Option<Reason>,
    is_told: bool,
) -> Known {
    if BIASES.contains(&name.layer()) {
        return Known::new(Role::Bias, Reason::BiasTable);
    }
    if near.shape(name.owner, "bias").is_some_and(|bias| bias.0 == [first, last]) {
        return Known::new(Role::Norm, Reason::BiasOfItsShape);
    }
    let turned = |why| Known { role: Role::Linear, axis: OutputAxis::Last, why };
    if let Some(why) = conv1d.filter(|_| conv1d::may_be(name)) {
        return turned(why);
    }
    match near.bias(name.owner) {
        Some(bias) if bias == first => Known::new(Role::Linear, Reason::MatrixWithBias),
        Some(bias) if bias == last && is_told => Known::new(Role::Linear, Reason::MatrixWithBias),
        Some(bias) if bias == last => turned(Reason::TurnedByBias),
        _ => by_name(name),
    }
}

/// Returns the role of a matrix without a bias, by its name.
fn by_name(name: Name) -> Known {
    if is_table(name) {
        return Known::new(Role::Embedding, Reason::EmbeddingName);
    }
    // A norm over two axes, such as one per head, must have the name of a norm, because matrices are far more
    // frequent.
    if ends_as_norm(name.layer()) {
        return Known::new(Role::Norm, Reason::NormName);
    }
    Known::new(Role::Linear, Reason::Matrix)
}

/// Returns whether a layer is an embedding by its name.
pub(super) fn is_table(name: Name) -> bool {
    let is_embedding = |segment: &str| segment.contains("embed") || TABLES.contains(&segment);
    let word = name.word();
    let is_table_word = TABLE_LAYERS.contains(&word)
        || TABLE_ENDS.iter().any(|end| word.ends_with(end))
        || word.starts_with(TABLE_START);
    let multiplies = NO_TABLES.iter().any(|word| name.layer().contains(word));
    (is_table_word || name.owners().any(is_embedding)) && !multiplies
}

/// Returns whether a segment of a name indicates a norm: `norm1`, `LayerNorm`, `layernorm_before`, `bn_2`,
/// `ln`; not `norm_proj`.
pub(super) fn is_norm(segment: &str) -> bool {
    ends_as_norm(segment) || segment.contains("norm") && !is_product(segment)
}

/// Returns whether a segment of a name indicates a linear or conv layer, even if it also contains "norm".
pub(super) fn is_product(segment: &str) -> bool {
    PRODUCTS.iter().any(|word| segment.contains(word)) && !ends_as_norm(segment)
}

/// Returns whether a segment ends like the name of a norm, except for a number: `norm1`, `q_norm`, `fc_norm`,
/// `bn_2`.
fn ends_as_norm(segment: &str) -> bool {
    let stem = segment.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
    ["norm", "norms", "normalization"].iter().any(|word| stem.ends_with(word)) || stem == "bn" || stem == "ln"
}

/// Returns whether a layer has the name of a norm.
pub(super) fn is_norm_layer(name: Name) -> bool {
    ends_as_norm(name.layer())
}
