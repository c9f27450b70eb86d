//! Students of other sizes, for every fixture of a family.

use super::*;
use crate::fresh::draw;
use crate::graph_net::RunInputs;
use crate::graph_net::headers::config_of;
use briquette_formats::Checkpoint;
use briquette_graph::InputSource;
use briquette_graph::resize::resized;
use burn::module::Module;
use burn::tensor::TensorData;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn families() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families")
}

/// Half the width with heads of the same width, another inner width, and another number of layers.
fn sizes_of(fixture: &str) -> Option<Value> {
    let usual = json!({ "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 20, "num_hidden_layers": 3 });
    let with = |more: Value| {
        let mut all = usual.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let family = fixture.split(['-', '_']).next().unwrap();
    Some(match (fixture, family) {
        // Sizes inside others, heads of two tokens, heads after a projection, and encoder-decoders.
        (
            "vit-timm" | "t5-translate" | "t5-translate-gated" | "gemma3-images" | "dinov2" | "opt-classify"
            | "siglip-vision" | "clip" | "clip-classify" | "siglip-classify",
            _,
        ) => return None,
        (_, "bert" | "roberta" | "xlm" | "camembert" | "mpnet" | "nomic") => usual,
        (_, "vit" | "deit") | ("clip-vision" | "clip-text" | "siglip-text" | "gpt_neox" | "gpt_neox-tokens", _) => {
            usual
        }
        (_, "distilbert") => json!({ "dim": 8, "n_heads": 2, "hidden_dim": 20, "n_layers": 3 }),
        (_, "electra" | "albert") => with(json!({ "embedding_size": 6 })),
        (_, "modernbert") => with(json!({ "num_hidden_layers": 2 })),
        (_, "t5") => json!({ "d_model": 8, "num_heads": 2, "d_ff": 20, "num_layers": 3 }),
        (_, "gpt2") => json!({ "n_embd": 8, "n_head": 2, "n_layer": 3 }),
        (_, "opt") => {
            json!({ "hidden_size": 8, "num_attention_heads": 2, "ffn_dim": 20, "num_hidden_layers": 3, "word_embed_proj_dim": 6 })
        }
        ("llama-yarn", _) => json!({ "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1 }),
        // Its list of layers without rotary positions has an entry for each layer.
        (_, "smollm3") => with(json!({ "num_hidden_layers": 2, "num_key_value_heads": 1 })),
        (
            _,
            "llama" | "mistral" | "qwen2" | "phi3" | "olmo2" | "granite" | "mixtral" | "gemma" | "gemma2" | "gemma3",
        ) => with(json!({ "num_key_value_heads": 1 })),
        ("qwen3_moe", _) => with(json!({ "num_key_value_heads": 1, "moe_intermediate_size": 6 })),
        (_, "qwen3") => with(json!({ "num_key_value_heads": 1 })),
        _ => return None,
    })
}

/// Inputs with the shapes of the graph.
fn inputs_of(network: &GraphNet, device: &Device) -> RunInputs {
    let images = network.graph().inputs.iter().find(|input| input.source == InputSource::Images);
    match images {
        Some(input) => {
            let n = input.shape.iter().product::<usize>();
            let pixels: Vec<f32> = (0..n).map(|at| (at * 7 % 13) as f32 / 13.0).collect();
            let shape: [usize; 4] = input.shape.as_slice().try_into().unwrap();
            RunInputs::images(burn::tensor::Tensor::from_data(TensorData::new(pixels, shape), device))
        }
        None => {
            let ids: Vec<i64> = (0..12).map(|at| at * 5 % 30 + 3).collect();
            RunInputs::tokens(burn::tensor::Tensor::from_data(TensorData::new(ids, [2, 6]), device))
        }
    }
}

#[test]
fn students_of_other_sizes_run_and_other_networks_are_refused_in_one_line() {
    let device = Device::flex();
    let (mut n_sized, mut failed) = (0, Vec::new());
    for entry in std::fs::read_dir(families()).unwrap() {
        let fixture = entry.unwrap().file_name().into_string().unwrap();
        let checkpoint = Checkpoint::open(&families().join(&fixture)).unwrap();
        let Ok((network, _)) = GraphNet::unfilled(&checkpoint, &device) else { continue };
        let family =
            family_of(&crate::graph_net::GraphHeaders::of(&checkpoint).headers(), &config_of(&checkpoint).unwrap())
                .unwrap();
        let mut config: Map<String, Value> = std::fs::read(families().join(&fixture).join("config.json"))
            .map_or(Map::new(), |bytes| serde_json::from_slice(&bytes).unwrap());
        let sizes = sizes_of(&fixture);
        let asked = sizes.clone().unwrap_or_else(|| json!({ "hidden_size": 8 }));
        let how = Smaller::Sizes(asked.as_object().unwrap().clone());
        match (network.smaller(family, &mut config, &how, &device), sizes) {
            (Ok((student, _)), Some(sizes)) => {
                n_sized += 1;
                draw(&student);
                let output = student.forward(&inputs_of(&student, &device)).to_f32("outputs").unwrap();
                if !output.iter().all(|value| value.is_finite()) || student.num_params() == network.num_params() {
                    failed.push(format!("{fixture}: {} and {} parameters", student.num_params(), network.num_params()));
                }
                if sizes.as_object().unwrap().iter().any(|(key, value)| config[key] != *value) {
                    failed.push(format!("{fixture}: {config:?}"));
                }
            }
            (Err(error), None) => {
                let text = error.to_string();
                let says = ["keys of config.json", "cannot be changed", "unknown size", "keep the sizes"];
                if text.contains('\n')
                    || !text.starts_with("student: ")
                    || !says.iter().any(|phrase| text.contains(phrase))
                {
                    failed.push(format!("{fixture}: {text}"));
                }
            }
            (Ok(_), None) => failed.push(format!("{fixture} is not refused")),
            (Err(error), Some(_)) => failed.push(format!("{fixture}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(n_sized > 40, "{n_sized}");
}

#[test]
fn the_same_sizes_give_the_same_tensors() {
    let device = Device::flex();
    for entry in std::fs::read_dir(families()).unwrap() {
        let fixture = entry.unwrap().file_name().into_string().unwrap();
        if sizes_of(&fixture).is_none() {
            continue;
        }
        let checkpoint = Checkpoint::open(&families().join(&fixture)).unwrap();
        let Ok((network, _)) = GraphNet::unfilled(&checkpoint, &device) else { continue };
        let config = config_of(&checkpoint).unwrap();
        let TensorShapes(found) =
            resized(network.graph(), &config, &config).unwrap_or_else(|error| panic!("{fixture}: {error}"));
        let own = network.graph().weights.iter().map(|weight| (weight.name.clone(), weight.shape.0.clone()));
        assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), own.collect::<BTreeMap<_, _>>(), "{fixture}");
    }
}

#[test]
fn a_size_without_a_rule_is_refused_with_those_that_have_one() {
    let (device, checkpoint) = (Device::flex(), Checkpoint::open(&families().join("roberta")).unwrap());
    let (network, _) = GraphNet::unfilled(&checkpoint, &device).unwrap();
    let refusal = |sizes: Value| {
        let mut config: Map<String, Value> =
            serde_json::from_slice(&std::fs::read(families().join("roberta/config.json")).unwrap()).unwrap();
        let family = family_of(&Headers::new(&[], None), &parsed(&config).unwrap()).unwrap();
        let how = Smaller::Sizes(sizes.as_object().unwrap().clone());
        network.smaller(family, &mut config, &how, &device).unwrap_err().to_string()
    };
    let found = refusal(json!({ "type_vocab_size": 2 }));
    assert!(
        found.contains("type_vocab_size cannot be changed; the sizes that can are hidden_size, intermediate_size"),
        "{found}"
    );
    assert!(refusal(json!({ "num_attention_heads": 3 })).contains("3 heads do not divide 16"));
    assert!(refusal(json!({ "vocab_size": 41 })).contains("vocab_size"));
    assert!(refusal(json!({ "hidden_size": 0 })).contains("hidden_size: found 0"));
}
