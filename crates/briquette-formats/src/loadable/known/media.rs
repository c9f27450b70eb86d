//! Models of images and speech.

use crate::loadable::family::{FAMILY, INITIALISES, LoadableFamily};

/// The layers of a decoder that reads images by a vision encoder and a projector.
const IMAGE_AND_TEXT: &[&str] = &[
    "language_model.model.layers.*.self_attn.q_proj|k_proj|v_proj|o_proj",
    "language_model.model.layers.*.mlp.gate_proj|up_proj|down_proj",
    "language_model.layers.*.self_attn.q_proj|k_proj|v_proj|o_proj",
    "language_model.layers.*.mlp.gate_proj|up_proj|down_proj",
    "vision_tower.encoder.layers.*.self_attn.q_proj|k_proj|v_proj|out_proj",
    "vision_tower.encoder.layers.*.mlp.fc1|fc2",
    "vision_tower.vision_model.encoder.layers.*.self_attn.q_proj|k_proj|v_proj|out_proj",
    "vision_tower.vision_model.encoder.layers.*.mlp.fc1|fc2",
    "multi_modal_projector.linear|linear_1|linear_2",
];

/// The parts of such a model in transformers' modules.
const RENAMED_PARTS: &[(&str, &str)] = &[
    ("language_model.lm_head", "lm_head"),
    ("language_model.model.", "model.language_model."),
    ("vision_tower.vision_model.", "vision_tower."),
];

pub(super) const FAMILIES: &[LoadableFamily] = &[
    LoadableFamily {
        model_types: &["vit"],
        base: "vit",
        linear: &[
            "encoder.layer.*.attention.attention.query|key|value",
            "encoder.layer.*.attention.output.dense",
            "encoder.layer.*.intermediate|output.dense",
            "pooler.dense",
            "classifier",
        ],
        optional: &["pooler.dense"],
        renamed: &[
            ("encoder.layer.", "layers."),
            (".attention.attention.query", ".attention.q_proj"),
            (".attention.attention.key", ".attention.k_proj"),
            (".attention.attention.value", ".attention.v_proj"),
            (".attention.output.dense", ".attention.o_proj"),
            (".intermediate.dense", ".mlp.fc1"),
            (".output.dense", ".mlp.fc2"),
        ],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["clip"],
        linear: &[
            "text_model|vision_model.encoder.layers.*.self_attn.q_proj|k_proj|v_proj|out_proj",
            "text_model|vision_model.encoder.layers.*.mlp.fc1|fc2",
            "text_projection|visual_projection",
        ],
        ..FAMILY
    },
    // transformers initializes the feature projection through `weight`, which packed codes lack. It is small
    // and stays floats.
    LoadableFamily {
        model_types: &["wav2vec2"],
        base: "wav2vec2",
        linear: &[
            "encoder.layers.*.attention.q_proj|k_proj|v_proj|out_proj",
            "encoder.layers.*.feed_forward.intermediate_dense|output_dense",
        ],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["hubert"],
        base: "hubert",
        linear: &[
            "encoder.layers.*.attention.q_proj|k_proj|v_proj|out_proj",
            "encoder.layers.*.feed_forward.intermediate_dense|output_dense",
        ],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["clip_text_model"],
        base: "text_model",
        linear: &[
            "encoder.layers.*.self_attn.q_proj|k_proj|v_proj|out_proj",
            "encoder.layers.*.mlp.fc1|fc2",
            "text_projection",
        ],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["clip_vision_model"],
        base: "vision_model",
        linear: &[
            "encoder.layers.*.self_attn.q_proj|k_proj|v_proj|out_proj",
            "encoder.layers.*.mlp.fc1|fc2",
            "visual_projection",
        ],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["siglip"],
        linear: &[
            "text_model|vision_model.encoder.layers.*.self_attn.q_proj|k_proj|v_proj|out_proj",
            "text_model|vision_model.encoder.layers.*.mlp.fc1|fc2",
            "text_model.head",
        ],
        limits: INITIALISES,
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["unispeech"],
        base: "unispeech",
        linear: &[
            "encoder.layers.*.attention.q_proj|k_proj|v_proj|out_proj",
            "encoder.layers.*.feed_forward.intermediate_dense|output_dense",
        ],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["unispeech-sat"],
        base: "unispeech_sat",
        linear: &[
            "encoder.layers.*.attention.q_proj|k_proj|v_proj|out_proj",
            "encoder.layers.*.feed_forward.intermediate_dense|output_dense",
        ],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["data2vec-audio"],
        base: "data2vec_audio",
        linear: &[
            "encoder.layers.*.attention.q_proj|k_proj|v_proj|out_proj",
            "encoder.layers.*.feed_forward.intermediate_dense|output_dense",
        ],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["sew"],
        base: "sew",
        linear: &[
            "encoder.layers.*.attention.q_proj|k_proj|v_proj|out_proj",
            "encoder.layers.*.feed_forward.intermediate_dense|output_dense",
        ],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["blip"],
        linear: &[
            "text_model|text_encoder.encoder.layer.*.attention|crossattention.self.query|key|value",
            "text_model|text_encoder.encoder.layer.*.attention|crossattention.output.dense",
            "text_model|text_encoder.encoder.layer.*.intermediate|output.dense",
            "text_decoder.bert.encoder.layer.*.attention|crossattention.self.query|key|value",
            "text_decoder.bert.encoder.layer.*.attention|crossattention.output.dense",
            "text_decoder.bert.encoder.layer.*.intermediate|output.dense",
            "text_decoder.cls.predictions.transform.dense",
            "vision_model.encoder.layers.*.self_attn.qkv|projection",
            "vision_model.encoder.layers.*.mlp.fc1|fc2",
            "text_projection|visual_projection|text_proj|vision_proj|itm_head",
        ],
        heads: &["text_decoder.cls.predictions.decoder"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["llava"],
        base: "model",
        linear: IMAGE_AND_TEXT,
        heads: &["language_model.lm_head", "lm_head"],
        renamed: RENAMED_PARTS,
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["paligemma"],
        base: "model",
        linear: IMAGE_AND_TEXT,
        heads: &["language_model.lm_head", "lm_head"],
        renamed: RENAMED_PARTS,
        limits: INITIALISES,
        ..FAMILY
    },
];
