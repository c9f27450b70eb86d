//! Text encoders.

use crate::loadable::family::{FAMILY, INITIALISES, LoadableFamily};

/// The layers of BERT and of models with the same names.
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
        model_types: &["ernie"],
        base: "ernie",
        linear: &[BERT[0], BERT[1], BERT[2], BERT[3], BERT[4], "cls.predictions.transform.dense"],
        heads: &["cls.predictions.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["megatron-bert"],
        base: "bert",
        linear: &[BERT[0], BERT[1], BERT[2], BERT[3], BERT[4], "cls.predictions.transform.dense"],
        heads: &["cls.predictions.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["layoutlm"],
        base: "layoutlm",
        linear: &[BERT[0], BERT[1], BERT[2], BERT[3], BERT[4], "cls.predictions.transform.dense"],
        heads: &["cls.predictions.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["big_bird"],
        base: "bert",
        linear: &[BERT[0], BERT[1], BERT[2], "pooler", "classifier.dense|out_proj", "cls.predictions.transform.dense"],
        heads: &["cls.predictions.decoder"],
        optional: &["pooler"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["nystromformer"],
        base: "nystromformer",
        linear: &[BERT[0], BERT[1], BERT[2], "classifier.dense|out_proj", "cls.predictions.transform.dense"],
        heads: &["cls.predictions.decoder"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["roformer"],
        base: "roformer",
        linear: &[BERT[0], BERT[1], BERT[2], "classifier.dense|out_proj", "cls.predictions.transform.dense"],
        heads: &["cls.predictions.decoder"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["deberta"],
        base: "deberta",
        linear: &[
            "encoder.layer.*.attention.self.in_proj|pos_proj|pos_q_proj",
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
        model_types: &["fnet"],
        base: "fnet",
        linear: &["embeddings.projection", BERT[2], BERT[3], BERT[4], "cls.predictions.transform.dense"],
        heads: &["cls.predictions.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["longformer"],
        base: "longformer",
        linear: &[
            "encoder.layer.*.attention.self.query|key|value|query_global|key_global|value_global",
            BERT[1],
            BERT[2],
            BERT[3],
            "classifier.dense|out_proj",
            "lm_head.dense",
        ],
        heads: &["lm_head.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["data2vec-text"],
        base: "data2vec_text",
        linear: &[BERT[0], BERT[1], BERT[2], BERT[3], "classifier.dense|out_proj", "lm_head.dense"],
        heads: &["lm_head.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["roberta-prelayernorm"],
        base: "roberta_prelayernorm",
        linear: &[BERT[0], BERT[1], BERT[2], BERT[3], "classifier.dense|out_proj", "lm_head.dense"],
        heads: &["lm_head.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["xlm-roberta-xl"],
        base: "roberta",
        linear: &[BERT[0], BERT[1], BERT[2], BERT[3], "classifier.dense|out_proj", "lm_head.dense"],
        heads: &["lm_head.decoder"],
        optional: &["pooler.dense"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["funnel"],
        base: "funnel",
        linear: &[
            "encoder.blocks.*.*.attention.q_head|k_head|v_head|post_proj",
            "encoder.blocks.*.*.ffn.linear_1|linear_2",
            "decoder.layers.*.attention.q_head|k_head|v_head|post_proj",
            "decoder.layers.*.ffn.linear_1|linear_2",
        ],
        heads: &["lm_head"],
        ..FAMILY
    },
    // Its attention multiplies by tensors of three axes, which stay floats.
    LoadableFamily {
        model_types: &["xlnet"],
        base: "transformer",
        linear: &["layer.*.ff.layer_1|layer_2", "sequence_summary.summary", "logits_proj"],
        heads: &["lm_loss"],
        ..FAMILY
    },
    LoadableFamily {
        model_types: &["xlm", "flaubert"],
        base: "transformer",
        linear: &["attentions.*.q_lin|k_lin|v_lin|out_lin", "ffns.*.lin1|lin2", "sequence_summary.summary"],
        heads: &["pred_layer.proj"],
        ..FAMILY
    },
];
