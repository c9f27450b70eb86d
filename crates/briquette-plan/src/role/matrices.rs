//! Matrices called `weight`: linear layers, embeddings, norms over two axes.

use super::conv1d;
use super::neighbours::{Name, Neighbours};
use briquette_core::OutputAxis;
use briquette_core::Role;
use briquette_flow::known::{Known, Reason};

/// Names of layers that hold a table though they do not say "embedding".
const TABLES: [&str; 4] = ["wte", "wpe", "shared", "emb"];
/// Words in names that say "embedding" though the layer multiplies: `embed_out` of GPT-NeoX, `embeddings_project` of ELECTRA,
/// `embedding_hidden_mapping_in` of ALBERT, `embed_proj`.
const NO_TABLES: [&str; 4] = ["embed_out", "proj", "mapping", "linear"];
/// Tables of biases by the distance between two positions, as in T5.
const BIASES: [&str; 1] = ["relative_attention_bias"];

/// The role of the matrix `owner.weight`. `conv1d` is the reason why `c_attn` and the like are stored `[in, out]`, if they are;
/// `is_told` says that the layout of weights is known, so that biases need not show it.
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

/// The role of a matrix that has no bias beside it, by its name.
fn by_name(name: Name) -> Known {
    let is_embedding = |segment: &str| segment.contains("embed") || TABLES.contains(&segment);
    let multiplies = |segment: &str| NO_TABLES.iter().any(|word| segment.contains(word));
    if name.owners().any(is_embedding) && !multiplies(name.layer()) {
        return Known::new(Role::Embedding, Reason::EmbeddingName);
    }
    if name.owners().any(is_norm) {
        return Known::new(Role::Norm, Reason::NormName);
    }
    Known::new(Role::Linear, Reason::Matrix)
}

/// Whether a segment of a name means a norm: `norm1`, `LayerNorm`, `bn_2`, `ln`.
pub(super) fn is_norm(segment: &str) -> bool {
    let stem = segment.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
    segment.contains("norm") || stem == "bn" || stem == "ln"
}
