//! Text decoders.

use crate::loadable::family::{FAMILY, INITIALISES, Limits, LoadableFamily};

/// The layers of Llama and of models with the same names.
const LLAMA: [&str; 3] =
    ["layers.*.self_attn.q_proj|k_proj|v_proj|o_proj", "layers.*.mlp.gate_proj|up_proj|down_proj", "score"];

pub(super) const FAMILIES: &[LoadableFamily] = &[
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
            "stablelm",
            "cohere",
            "cohere2",
            "olmo",
            "olmo3",
            "helium",
            "ernie4_5",
            "seed_oss",
            "apertus",
            "exaone4",
            "arcee",
            "ministral",
            "hunyuan_v1_dense",
            "vaultgemma",
            "cwm",
            "jais2",
            "nemotron",
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
    // The experts of a layer are one tensor, which stays floats.
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
            "its matrices are Conv1D layers in transformers, and compressed-tensors only quantizes Linear layers",
        ),
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["gpt_neox"],
        base: "gpt_neox",
        linear: &["layers.*.attention.query_key_value|dense", "layers.*.mlp.dense_h_to_4h|dense_4h_to_h"],
        // One head, which transformers renames.
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
        model_types: &["glm", "glm4"],
        base: "model",
        linear: &[LLAMA[0], "layers.*.mlp.gate_up_proj|down_proj", LLAMA[2]],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["phi"],
        base: "model",
        linear: &["layers.*.self_attn.q_proj|k_proj|v_proj|dense", "layers.*.mlp.fc1|fc2", LLAMA[2]],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["starcoder2"],
        base: "model",
        linear: &[LLAMA[0], "layers.*.mlp.c_fc|c_proj", LLAMA[2]],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["persimmon"],
        base: "model",
        linear: &["layers.*.self_attn.query_key_value|dense", "layers.*.mlp.dense_h_to_4h|dense_4h_to_h", LLAMA[2]],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["lfm2"],
        base: "model",
        linear: &["layers.*.self_attn.q_proj|k_proj|v_proj|out_proj", "layers.*.feed_forward.w1|w2|w3"],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["xglm"],
        base: "model",
        linear: &["layers.*.self_attn.q_proj|k_proj|v_proj|out_proj", "layers.*.fc1|fc2"],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["biogpt"],
        base: "biogpt",
        linear: &["layers.*.self_attn.q_proj|k_proj|v_proj|out_proj", "layers.*.fc1|fc2"],
        heads: &["output_projection"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["gptj"],
        base: "transformer",
        linear: &["h.*.attn.q_proj|k_proj|v_proj|out_proj", "h.*.mlp.fc_in|fc_out"],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["codegen"],
        base: "transformer",
        linear: &["h.*.attn.qkv_proj|out_proj", "h.*.mlp.fc_in|fc_out"],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["gpt_neo"],
        base: "transformer",
        linear: &["h.*.attn.attention.q_proj|k_proj|v_proj|out_proj", "h.*.mlp.c_fc|c_proj"],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["gpt_bigcode"],
        base: "transformer",
        linear: &["h.*.attn.c_attn|c_proj", "h.*.mlp.c_fc|c_proj"],
        heads: &["lm_head"],
        limits: INITIALISES,
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["bloom"],
        base: "transformer",
        linear: &["h.*.self_attention.query_key_value|dense", "h.*.mlp.dense_h_to_4h|dense_4h_to_h"],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["falcon"],
        base: "transformer",
        linear: &["h.*.self_attention.query_key_value|dense", "h.*.mlp.dense_h_to_4h|dense_4h_to_h"],
        heads: &["lm_head"],
        limits: Limits::Packed("its own Linear layer multiplies by a `weight` that packed codes do not have"),
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["mpt"],
        base: "transformer",
        linear: &["blocks.*.attn.Wqkv|out_proj", "blocks.*.ffn.up_proj|down_proj"],
        heads: &["lm_head"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["gpt_neox_japanese"],
        base: "gpt_neox_japanese",
        linear: &["layers.*.attention.query_key_value|dense", "layers.*.mlp.dense_h_to_4h|dense_4h_to_h"],
        heads: &["embed_out"],
        ..FAMILY
    },
];
