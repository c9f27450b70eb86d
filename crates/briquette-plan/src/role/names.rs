//! Parameters that belong to no layer of their own, by the last segment of their names.

use briquette_core::Role;
use briquette_flow::known::{Known, Reason};

/// How a last segment is compared.
enum Word {
    /// It is this.
    Is(&'static str),
    /// It begins with this.
    Begins(&'static str),
    /// It ends with this.
    Ends(&'static str),
    /// It contains this.
    Has(&'static str),
}
use Word::{Begins, Ends, Has, Is};

/// The first that fits counts. In lower case.
const TABLE: &[(Word, Role, Reason)] = &[
    // Matrices of torch's own modules that hold several.
    (Ends("_proj_weight"), Role::Linear, Reason::PartOfModule),
    (Begins("weight_ih"), Role::Linear, Reason::PartOfModule),
    (Begins("weight_hh"), Role::Linear, Reason::PartOfModule),
    (Begins("weight_hr"), Role::Linear, Reason::PartOfModule),
    // Weight norm, as parametrization and as it was before.
    (Is("original0"), Role::Parameter, Reason::WeightNormLengths),
    (Is("weight_g"), Role::Parameter, Reason::WeightNormLengths),
    (Is("original1"), Role::Conv, Reason::WeightNormDirections),
    (Is("weight_v"), Role::Conv, Reason::WeightNormDirections),
    // What is added. relative_position_bias_table: Swin, BEiT; bias_k, bias_v: MultiheadAttention; r_w_bias: XLNet.
    (Ends("bias_table"), Role::Bias, Reason::BiasTable),
    (Ends("bias"), Role::Bias, Reason::BiasName),
    (Begins("bias_"), Role::Bias, Reason::BiasName),
    // Tokens: ViT, DeiT, BEiT, MAE, DINOv2 with registers, BLIP-2, SigLIP, Perceiver.
    (Ends("_token"), Role::Parameter, Reason::BareParameter),
    (Ends("_tokens"), Role::Parameter, Reason::BareParameter),
    (Is("probe"), Role::Parameter, Reason::BareParameter),
    (Is("latents"), Role::Parameter, Reason::BareParameter),
    (Is("query"), Role::Parameter, Reason::BareParameter),
    (Is("queries"), Role::Parameter, Reason::BareParameter),
    (Has("codevector"), Role::Parameter, Reason::BareParameter),
    (Has("codebook"), Role::Parameter, Reason::BareParameter),
    // Scans: Mamba, RWKV.
    (Is("a_log"), Role::Parameter, Reason::BareParameter),
    (Is("a_logs"), Role::Parameter, Reason::BareParameter),
    (Is("d"), Role::Parameter, Reason::BareParameter),
    (Is("ds"), Role::Parameter, Reason::BareParameter),
    (Begins("time_"), Role::Parameter, Reason::BareParameter),
    // Scales: CLIP, SwinV2, CaiT, ConvNeXt V2, BEiT.
    (Ends("scale"), Role::Parameter, Reason::BareParameter),
    (Has("layer_scale"), Role::Parameter, Reason::BareParameter),
    (Begins("lambda"), Role::Parameter, Reason::BareParameter),
    (Begins("gamma"), Role::Parameter, Reason::BareParameter),
    (Begins("beta"), Role::Parameter, Reason::BareParameter),
    (Is("sinks"), Role::Parameter, Reason::BareParameter),
];

/// What a bare parameter of rank 2 or more is, where its last segment, in lower case, shows it.
pub(super) fn of(leaf: &str, rank: usize) -> Option<Known> {
    if leaf.contains("embed") || leaf.ends_with("_emb") || leaf.starts_with("pos_") {
        // Positions of pictures have an axis more than a table: their batch.
        return Some(match rank {
            2 if leaf.contains("embed") => Known::new(Role::Embedding, Reason::EmbeddingName),
            _ => Known::new(Role::Parameter, Reason::BareParameter),
        });
    }
    let fits = |word: &Word| match *word {
        Is(word) => leaf == word,
        Begins(word) => leaf.starts_with(word),
        Ends(word) => leaf.ends_with(word),
        Has(word) => leaf.contains(word),
    };
    let (_, role, why) = TABLE.iter().find(|(word, ..)| fits(word))?;
    let role = if *why == Reason::WeightNormDirections && rank == 2 { Role::Linear } else { *role };
    Some(Known::new(role, *why))
}
