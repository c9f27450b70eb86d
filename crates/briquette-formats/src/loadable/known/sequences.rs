//! Encoder-decoders of text or speech.

use crate::loadable::family::{FAMILY, INITIALISES, LoadableFamily};

pub(super) const FAMILIES: &[LoadableFamily] = &[
    LoadableFamily {
        model_types: &["t5", "mt5", "umt5", "longt5"],
        base: "transformer",
        linear: &[
            "encoder|decoder.block.*.layer.*.SelfAttention|LocalSelfAttention|EncDecAttention.q|k|v|o",
            "encoder|decoder.block.*.layer.*.DenseReluDense.wi|wi_0|wi_1|wo",
        ],
        heads: &["lm_head"],
        limits: INITIALISES,
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["bart", "mbart", "marian", "pegasus", "m2m_100", "blenderbot", "blenderbot-small", "plbart"],
        base: "model",
        linear: &[
            "encoder|decoder.layers.*.self_attn|encoder_attn.q_proj|k_proj|v_proj|out_proj",
            "encoder|decoder.layers.*.fc1|fc2",
            "classification_head.dense|out_proj",
        ],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["whisper"],
        base: "model",
        linear: &[
            "encoder|decoder.layers.*.self_attn|encoder_attn.q_proj|k_proj|v_proj|out_proj",
            "encoder|decoder.layers.*.fc1|fc2",
        ],
        heads: &["proj_out"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["speech_to_text"],
        base: "model",
        linear: &[
            "encoder|decoder.layers.*.self_attn|encoder_attn.q_proj|k_proj|v_proj|out_proj",
            "encoder|decoder.layers.*.fc1|fc2",
        ],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["bigbird_pegasus"],
        base: "model",
        linear: &[
            "encoder.layers.*.self_attn.self.query|key|value",
            "encoder.layers.*.self_attn.output",
            "decoder.layers.*.self_attn|encoder_attn.q_proj|k_proj|v_proj|out_proj",
            "encoder|decoder.layers.*.fc1|fc2",
        ],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["led"],
        base: "led",
        linear: &[
            "encoder.layers.*.self_attn.longformer_self_attn.query|key|value|query_global|key_global|value_global",
            "encoder.layers.*.self_attn.output",
            "decoder.layers.*.self_attn|encoder_attn.q_proj|k_proj|v_proj|out_proj",
            "encoder|decoder.layers.*.fc1|fc2",
        ],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["moonshine"],
        base: "model",
        linear: &[
            "encoder|decoder.layers.*.self_attn|encoder_attn.q_proj|k_proj|v_proj|o_proj",
            "encoder|decoder.layers.*.mlp.fc1|fc2",
        ],
        heads: &["proj_out"],
        ..FAMILY
    },
];
