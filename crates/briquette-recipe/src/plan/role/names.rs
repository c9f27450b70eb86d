//! Bare parameters, recognized by the last segment of their names.

use super::neighbours::Name;
use briquette_core::Role;
use briquette_writer::known::{Known, Reason};

/// How a row of the table is compared with the last segment of a name.
enum Word {
    /// The segment equals this word.
    Is(&'static str),
    /// The segment begins with this word.
    Begins(&'static str),
    /// The segment ends with this word.
    Ends(&'static str),
    /// The segment contains this word.
    Has(&'static str),
}
use Word::{Begins, Ends, Has, Is};

/// Words in lower case, each with its role. The first matching row applies.
const TABLE: &[(Word, Role, Reason)] = &[
    // Matrices of torch modules that have several, such as attention and LSTM.
    (Ends("_proj_weight"), Role::Linear, Reason::PartOfModule),
    (Begins("weight_ih"), Role::Linear, Reason::PartOfModule),
    (Begins("weight_hh"), Role::Linear, Reason::PartOfModule),
    (Begins("weight_hr"), Role::Linear, Reason::PartOfModule),
    // Transformer Engine's LayerNormMLP.
    (Is("fc1_weight"), Role::Linear, Reason::PartOfModule),
    (Is("fc2_weight"), Role::Linear, Reason::PartOfModule),
    // Lengths of a weight norm without directions. With both, the shapes show more: see `weight_norm.rs`.
    (Is("original0"), Role::Parameter, Reason::WeightNormLengths),
    (Is("weight_g"), Role::Parameter, Reason::WeightNormLengths),
    // Biases. relative_position_bias_table: Swin, BEiT; bias_k, bias_v: MultiheadAttention; r_w_bias: XLNet.
    (Ends("bias_table"), Role::Bias, Reason::BiasTable),
    (Ends("bias"), Role::Bias, Reason::BiasName),
    (Begins("bias_"), Role::Bias, Reason::BiasName),
    // Learned tokens: ViT, DeiT, BEiT, MAE, DINOv2 with registers, BLIP-2, SigLIP, Perceiver.
    (Ends("_token"), Role::Parameter, Reason::BareParameter),
    (Ends("_tokens"), Role::Parameter, Reason::BareParameter),
    (Begins("rel_pos"), Role::Parameter, Reason::BareParameter),
    (Begins("emb_"), Role::Parameter, Reason::BareParameter),
    (Is("probe"), Role::Parameter, Reason::BareParameter),
    (Is("latents"), Role::Parameter, Reason::BareParameter),
    (Is("query"), Role::Parameter, Reason::BareParameter),
    (Is("queries"), Role::Parameter, Reason::BareParameter),
    (Has("codevector"), Role::Parameter, Reason::BareParameter),
    (Has("codebook"), Role::Parameter, Reason::BareParameter),
    // States of scans: Mamba, RWKV.
    (Is("a_log"), Role::Parameter, Reason::BareParameter),
    (Is("a_logs"), Role::Parameter, Reason::BareParameter),
    (Is("d"), Role::Parameter, Reason::BareParameter),
    (Is("ds"), Role::Parameter, Reason::BareParameter),
    (Begins("time_"), Role::Parameter, Reason::BareParameter),
    // Learned scales: CLIP, SwinV2, CaiT, ConvNeXt V2, BEiT.
    (Ends("scale"), Role::Parameter, Reason::BareParameter),
    (Has("layer_scale"), Role::Parameter, Reason::BareParameter),
    (Begins("lambda"), Role::Parameter, Reason::BareParameter),
    (Begins("gamma"), Role::Parameter, Reason::BareParameter),
    (Begins("beta"), Role::Parameter, Reason::BareParameter),
    (Is("sinks"), Role::Parameter, Reason::BareParameter),
];

/// Prefixes of the names of embeddings in JAX models. Other bare parameters with "embed" in their names, such
/// as positions, are added as they are.
const TABLES: [&str; 3] = ["word_embed", "tok_embed", "token_embed"];

/// Returns the role of a bare parameter of rank 2 or more, if its name shows it.
pub(super) fn of(name: Name, rank: usize) -> Option<Known> {
    let leaf = name.leaf;
    let bare = Known::new(Role::Parameter, Reason::BareParameter);
    if name.owners().any(|owner| owner.contains("codebook")) {
        return Some(bare);
    }
    if leaf.contains("embed")
        || leaf == "emb"
        || leaf.ends_with("_emb")
        || leaf.starts_with("pos_")
        || leaf.starts_with("position")
    {
        let is_table =
            ["embed", "embedding", "embeddings"].contains(&leaf) || TABLES.iter().any(|word| leaf.starts_with(word));
        return Some(if rank == 2 && is_table { Known::new(Role::Embedding, Reason::EmbeddingName) } else { bare });
    }
    let fits = |word: &Word| match *word {
        Is(word) => leaf == word,
        Begins(word) => leaf.starts_with(word),
        Ends(word) => leaf.ends_with(word),
        Has(word) => leaf.contains(word),
    };
    let (_, role, why) = TABLE.iter().find(|(word, ..)| fits(word))?;
    Some(Known::new(*role, *why))
}
