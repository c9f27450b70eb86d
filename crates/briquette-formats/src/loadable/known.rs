//! The families that transformers is known to load from compressed-tensors, as of its version 5.23.
//!
//! A line goes in when `bench/interop_families.py` has loaded it. Heads that share the embedding, routers, convolutions and
//! tables that are looked up are no Linear layers here, whatever their shape.

use super::family::{FAMILY, Limits, LoadableFamily};

/// Why transformers cannot load packed codes of some families: it writes to `weight` while it looks for what is missing.
const INITIALISES: Limits =
    Limits::Packed("transformers sets up its layers by a `weight` that packed codes do not have");

/// The layers of Llama, and of all that have its names.
const LLAMA: [&str; 3] =
    ["layers.*.self_attn.q_proj|k_proj|v_proj|o_proj", "layers.*.mlp.gate_proj|up_proj|down_proj", "score"];

/// The layers of BERT, and of all that have its names.
const BERT: [&str; 5] = [
    "encoder.layer.*.attention.self.query|key|value",
    "encoder.layer.*.attention.output.dense",
    "encoder.layer.*.intermediate|output.dense",
    "pooler.dense",
    "classifier|qa_outputs",
];

pub(super) const FAMILIES: &[LoadableFamily] = &[
    LoadableFamily {
        model_types: &["bert"],
        base: "bert",
        linear: &[
            BERT[0],
            BERT[1],
            BERT[2],
            BERT[3],
            BERT[4],
            "cls.predictions.transform.dense",
            "cls.seq_relationship",
        ],
        heads: &["cls.predictions.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["roberta", "xlm-roberta", "camembert"],
        base: "roberta",
        linear: &[BERT[0], BERT[1], BERT[2], BERT[3], BERT[4], "classifier.dense|out_proj"],
        heads: &["lm_head.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["albert"],
        base: "albert",
        linear: &[
            "encoder.embedding_hidden_mapping_in",
            "encoder.albert_layer_groups.*.albert_layers.*.attention.query|key|value|dense",
            "encoder.albert_layer_groups.*.albert_layers.*.ffn|ffn_output",
            "pooler",
            "predictions.dense",
            "classifier|qa_outputs",
        ],
        heads: &["predictions.decoder"],
        optional: &["pooler"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["distilbert"],
        base: "distilbert",
        linear: &[
            "transformer.layer.*.attention.q_lin|k_lin|v_lin|out_lin",
            "transformer.layer.*.ffn.lin1|lin2",
            "vocab_transform|pre_classifier|classifier|qa_outputs",
        ],
        heads: &["vocab_projector"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["electra"],
        base: "electra",
        linear: &[
            BERT[0],
            BERT[1],
            BERT[2],
            BERT[4],
            "embeddings_project",
            "generator_predictions.dense",
            "discriminator_predictions.dense",
            "classifier.dense|out_proj",
        ],
        heads: &["generator_lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["deberta-v2"],
        base: "deberta",
        linear: &[
            "encoder.layer.*.attention.self.query_proj|key_proj|value_proj",
            BERT[1],
            BERT[2],
            BERT[3],
            BERT[4],
            "cls.predictions.transform.dense",
        ],
        heads: &["cls.predictions.decoder"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["mpnet"],
        base: "mpnet",
        linear: &[
            "encoder.layer.*.attention.attn.q|k|v|o",
            "encoder.layer.*.intermediate|output.dense",
            "pooler.dense",
            "classifier.dense|out_proj",
            "qa_outputs",
        ],
        heads: &["lm_head.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["modernbert"],
        base: "model",
        linear: &["layers.*.attn.Wqkv|Wo", "layers.*.mlp.Wi|Wo", "head.dense", "classifier"],
        heads: &["decoder"],
        limits: INITIALISES,
        ..FAMILY
    },
    LoadableFamily {
        model_types: &[
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "gemma",
            "gemma2",
            "gemma3_text",
            "granite",
            "olmo2",
            "smollm3",
        ],
        base: "model",
        linear: &LLAMA,
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["mixtral"],
        base: "model",
        linear: &[LLAMA[0], LLAMA[2]],
        experts: &["layers.*.block_sparse_moe.experts.*.w1|w2|w3"],
        heads: &["lm_head"],
        renamed: &[(".block_sparse_moe.", ".mlp.")],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["phi3"],
        base: "model",
        linear: &["layers.*.self_attn.qkv_proj|o_proj", "layers.*.mlp.gate_up_proj|down_proj", LLAMA[2]],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["qwen3_moe", "qwen2_moe", "olmoe"],
        base: "model",
        linear: &[LLAMA[0], LLAMA[1], LLAMA[2], "layers.*.mlp.shared_expert.gate_proj|up_proj|down_proj"],
        experts: &["layers.*.mlp.experts.*.gate_proj|up_proj|down_proj"],
        heads: &["lm_head"],
        ..FAMILY
    },
    // Its experts are one tensor each layer, which stays as it is.
    LoadableFamily {
        model_types: &["gpt_oss"],
        base: "model",
        linear: &[LLAMA[0], LLAMA[2]],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["gpt2"],
        base: "transformer",
        heads: &["lm_head"],
        limits: Limits::Codes(
            "its matrices are Conv1D layers in transformers, and compressed-tensors codes Linear ones",
        ),
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["gpt_neox"],
        base: "gpt_neox",
        linear: &["layers.*.attention.query_key_value|dense", "layers.*.mlp.dense_h_to_4h|dense_4h_to_h"],
        // One head, whose name transformers changes.
        heads: &["lm_head", "embed_out"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["opt"],
        base: "model",
        linear: &[
            "decoder.layers.*.self_attn.q_proj|k_proj|v_proj|out_proj",
            "decoder.layers.*.fc1|fc2",
            "decoder.project_in|project_out",
            "score",
        ],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["t5"],
        base: "transformer",
        linear: &[
            "encoder|decoder.block.*.layer.*.SelfAttention|EncDecAttention.q|k|v|o",
            "encoder|decoder.block.*.layer.*.DenseReluDense.wi|wi_0|wi_1|wo",
        ],
        heads: &["lm_head"],
        limits: INITIALISES,
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["bart"],
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
    // transformers sets up its feature projection by `weight`, which packed codes lack; it is small, and stays as it is.
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
];
