//! Graphs of the checkpoints in `fixtures`, and errors for damaged ones.

#![allow(clippy::unwrap_used)]

use briquette_core::{DType, ErrorKind, Shape};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use briquette_graph::blocks::border;
use briquette_graph::coupling::coupling_groups;
use briquette_graph::families::build;
use briquette_graph::fold::sections;
use briquette_graph::multiply_adds::multiply_adds;
use briquette_graph::onnx::InputDims;
use briquette_graph::{
    Composite, Config, Extents, Graph, Headers, Node, Op, Operand, Primitive, ValueId, graph_of, known_graph_of,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn graph(name: &str) -> Graph {
    let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    graph_of(&checkpoint, Extents::default()).unwrap().unwrap()
}

fn tensors(name: &str) -> (Vec<TensorInfo>, serde_json::Value) {
    let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    (checkpoint.tensors().to_vec(), serde_json::from_slice(&config).unwrap())
}

fn error(tensors: &[TensorInfo], config: &serde_json::Value) -> briquette_core::Error {
    let config = Config::parse(Some(config.to_string().as_bytes())).unwrap();
    let error = build(&Headers::new(tensors, None), &config, Extents::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Input, "{error}");
    assert!(!error.to_string().contains('\n'));
    error
}

#[test]
fn every_fixture_of_a_known_family_has_a_graph() {
    for (name, family, n_blocks) in [
        ("models/bert-tiny", "BERT", 2),
        ("models/llama-tied", "Llama", 2),
        ("models/llama-untied", "Llama", 2),
        ("models/llama-qwen", "Llama", 2),
        ("models/resnet50-tiny.safetensors", "ResNet", 16),
        ("digits", "digits", 0),
        ("digits-sharded", "digits", 0),
    ] {
        let graph = graph(name);
        assert_eq!((graph.family.as_str(), graph.blocks.len()), (family, n_blocks), "{name}");
        let is_counter = |name: &String| name.ends_with("num_batches_tracked");
        assert!(graph.unused.iter().all(is_counter), "{name}: {:?}", graph.unused);
        let groups = coupling_groups(&graph, &graph.lower().unwrap()).unwrap();
        assert!(!groups.is_empty(), "{name}");
        for block in &graph.blocks {
            let border = border(&graph, block);
            assert_eq!((border.inputs.len(), border.outputs.len()), (1, 1), "{name}: {}", block.name);
        }
    }
}

#[test]
fn multiply_adds_of_the_digits_network_are_those_counted_by_hand() {
    let graph = graph("digits");
    let found = multiply_adds(&graph, &graph.lower().unwrap());
    let of = |name: &str| found[graph.nodes.iter().position(|node| node.name == name).unwrap()];
    assert_eq!(of("conv1"), 64 * 16 * 9);
    assert_eq!(of("conv2"), 64 * 32 * 16 * 9);
    assert_eq!((of("fc1"), of("fc2"), of("pool")), (512 * 80, 800, 0));
}

#[test]
fn a_missing_weight_is_named() {
    let (mut tensors, config) = tensors("models/bert-tiny");
    tensors.retain(|info| info.name != "encoder.layer.1.output.dense.weight");
    let error = error(&tensors, &config).to_string();
    assert!(error.starts_with("encoder.layer.1.output.dense.weight: the checkpoint lacks"), "{error}");
}

#[test]
fn a_weight_that_does_not_fit_is_named_with_its_node() {
    let (mut tensors, config) = tensors("models/llama-untied");
    let place = tensors.iter().position(|info| info.name == "model.layers.1.mlp.down_proj.weight").unwrap();
    tensors[place].shape = Arc::new(Shape(vec![32, 47]));
    let error = error(&tensors, &config).to_string();
    let expected = "node \"model.layers.1.mlp.down_proj\" (linear): weight \"model.layers.1.mlp.down_proj.weight\" \
                    [32, 47] does not fit: found 47 inputs, expected 48";
    assert_eq!(error, expected);
}

#[test]
fn a_layer_may_have_a_width_of_its_own() {
    let (mut tensors, config) = tensors("models/llama-untied");
    for (name, shape) in [
        ("mlp.down_proj", [32, 40]),
        ("mlp.gate_proj", [40, 32]),
        ("mlp.up_proj", [40, 32]),
        ("self_attn.q_proj", [16, 32]),
        ("self_attn.k_proj", [8, 32]),
        ("self_attn.v_proj", [8, 32]),
        ("self_attn.o_proj", [32, 16]),
    ] {
        let name = format!("model.layers.1.{name}.weight");
        tensors.iter_mut().find(|info| info.name == name).unwrap().shape = Arc::new(Shape(shape.to_vec()));
    }
    let config = Config::parse(Some(config.to_string().as_bytes())).unwrap();
    let graph = build(&Headers::new(&tensors, None), &config, Extents::default()).unwrap().unwrap();
    let heads = |node: &Node| match &node.op {
        Op::Composite(Composite::Attention(settings)) => Some((settings.heads, settings.kv_heads)),
        _ => None,
    };
    assert_eq!(graph.nodes.iter().filter_map(heads).collect::<Vec<_>>(), [(4, 2), (2, 1)]);
}

#[test]
fn a_config_that_lies_about_sizes_is_an_input_error() {
    for (model, key, value) in [
        ("models/bert-tiny", "num_hidden_layers", 3_u64),
        ("models/bert-tiny", "hidden_size", 48),
        ("models/bert-tiny", "vocab_size", u64::MAX),
        ("models/bert-tiny", "num_attention_heads", 0),
        ("models/bert-tiny", "num_attention_heads", 5),
        ("models/llama-tied", "head_dim", 7),
        ("models/llama-tied", "head_dim", 1 << 31),
        ("models/llama-tied", "num_hidden_layers", 1),
    ] {
        let (tensors, mut config) = tensors(model);
        config[key] = value.into();
        let error = error(&tensors, &config);
        assert_eq!(error.exit_code(), 4, "{key}: {error}");
    }
}

#[test]
fn tensors_at_their_limits_are_input_errors() {
    let (sound, config) = tensors("models/bert-tiny");
    for shape in [vec![usize::MAX, 32], vec![1 << 40, 32], vec![0, 32], vec![], vec![32], vec![20, 32, 1]] {
        for place in 0..sound.len() {
            let mut tensors = sound.clone();
            let (name, shape) = (sound[place].name.clone(), Arc::new(Shape(shape.clone())));
            tensors[place] = TensorInfo { name, dtype: DType::F32, shape: shape.clone() };
            if shape != sound[place].shape {
                let config = Config::parse(Some(config.to_string().as_bytes())).unwrap();
                // Tables of positions and segments may have more rows; nothing else fits, and nothing panics.
                if let Ok(graph) = build(&Headers::new(&tensors, None), &config, Extents::default()) {
                    assert!(
                        ["position_", "token_type_"].iter().any(|word| tensors[place].name.contains(word)),
                        "{}",
                        tensors[place].name
                    );
                    let found = coupling_groups(&graph.clone().unwrap(), &graph.unwrap().lower().unwrap());
                    assert!(found.is_err(), "{} {shape:?}", tensors[place].name);
                }
            }
        }
    }
}

fn built(tensors: &[TensorInfo], config: &serde_json::Value) -> Graph {
    let config = Config::parse(Some(config.to_string().as_bytes())).unwrap();
    build(&Headers::new(tensors, None), &config, Extents::default()).unwrap().unwrap()
}

fn shape_of_last_output(graph: &Graph) -> Vec<usize> {
    graph.lower().unwrap().shapes[graph.outputs.last().unwrap().0].clone()
}

#[test]
fn the_class_decides_whether_a_text_or_each_token_has_classes() {
    // The names of both are equal if the checkpoint has a pooler, as older token classifiers do.
    let (tensors, mut config) = tensors("families/bert");
    assert_eq!(shape_of_last_output(&built(&tensors, &config)), [1, 2]);
    config["architectures"] = serde_json::json!(["BertForTokenClassification"]);
    assert_eq!(shape_of_last_output(&built(&tensors, &config)), [1, 64, 2]);
    config["num_labels"] = 3.into();
    let error = error(&tensors, &config).to_string();
    assert_eq!(error, "config.json: num_labels is 3, but classifier.weight has 2; correct it");
}

#[test]
fn a_decoder_with_classes_and_no_class_name_has_classes_for_each_token() {
    let (tensors, mut config) = tensors("families/llama-classify");
    assert_eq!(shape_of_last_output(&built(&tensors, &config)), [1, 64, 5]);
    config.as_object_mut().unwrap().remove("architectures");
    assert_eq!(shape_of_last_output(&built(&tensors, &config)), [1, 64, 5]);
    config["architectures"] = serde_json::json!(["LlamaForCausalLM"]);
    let error = error(&tensors, &config).to_string();
    assert!(error.contains("and no lm_head.weight, like a LlamaForSequenceClassification"), "{error}");
}

#[test]
fn a_clip_of_images_and_texts_has_both_networks_and_ends_with_images() {
    let (images, of_images) = tensors("families/clip-vision");
    let (texts, of_texts) = tensors("families/clip-text");
    let config = serde_json::json!({ "model_type": "clip", "text_config": of_texts, "vision_config": of_images });
    let graph = built(&[images, texts].concat(), &config);
    assert_eq!((graph.family.as_str(), graph.blocks.len(), graph.inputs.len()), ("CLIP", 4, 3));
    assert_eq!(graph.unused, Vec::<String>::new());
    let shapes = graph.lower().unwrap().shapes;
    let found: Vec<&Vec<usize>> = graph.outputs.iter().map(|output| &shapes[output.0]).collect();
    assert_eq!(found, [&vec![1, 64, 16], &vec![1, 64, 12], &vec![1, 17, 16], &vec![1, 16], &vec![1, 12]]);
}

#[test]
fn the_original_nomic_bert_has_keys_of_its_own() {
    let (tensors, config) = tensors("families/nomic_bert");
    let old = serde_json::json!({
        "model_type": "nomic_bert", "n_embd": 16, "n_head": 4, "n_layer": 2, "activation_function": "swiglu",
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "layer_norm_epsilon": 1e-12, "n_positions": 64
    });
    assert_eq!(built(&tensors, &old), built(&tensors, &config));
    for (key, value) in [
        ("prenorm", serde_json::json!(true)),
        ("activation_function", serde_json::json!("gelu")),
        ("rotary_emb_fraction", serde_json::json!(0.5)),
        ("rotary_scaling_factor", serde_json::json!(0)),
        ("n_layer", serde_json::json!(3)),
    ] {
        let mut changed = old.clone();
        changed[key] = value;
        let error = error(&tensors, &changed).to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn a_t5_with_a_decoder_needs_all_of_it() {
    let (mut tensors, config) = tensors("families/t5");
    let shape = Shape(vec![16, 16]).into();
    tensors.push(TensorInfo {
        name: "decoder.block.0.layer.0.SelfAttention.q.weight".into(),
        dtype: DType::F16,
        shape,
    });
    let error = error(&tensors, &config).to_string();
    let missing = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
    assert_eq!(error, format!("{missing}: the checkpoint lacks this tensor, which a T5 needs"));
}

#[test]
fn settings_that_gemma_3_with_images_leaves_out_have_the_usual_values() {
    let (tensors, mut config) = tensors("families/gemma3-images");
    let heads = |graph: &Graph| {
        let attention = graph.nodes.iter().find_map(|node| match &node.op {
            Op::Composite(Composite::Attention(settings)) => Some(settings.clone()),
            _ => None,
        });
        attention.unwrap()
    };
    let text = config["text_config"].as_object_mut().unwrap();
    for key in ["rope_parameters", "layer_types", "sliding_window", "tie_word_embeddings", "model_type"] {
        text.remove(key);
    }
    let found = heads(&built(&tensors, &config));
    assert_eq!((found.window, found.rotary.unwrap().theta), (Some(4096), 10000.0));
}

#[test]
fn cycles_and_loose_ends_are_input_errors() {
    let sound = graph("digits");
    let message = |graph: &Graph| {
        let error = graph.lower().unwrap_err();
        assert_eq!(error.exit_code(), 4);
        error.to_string()
    };
    let mut cyclic = sound.clone();
    let last = *cyclic.nodes.last().unwrap().outputs.first().unwrap();
    cyclic.nodes[2].inputs[0] = Operand::Value(last);
    assert!(message(&cyclic).contains("depends on its own output"));
    let mut loose = sound.clone();
    loose.values.push("nothing".into());
    loose.nodes[2].inputs[0] = Operand::Value(ValueId(loose.values.len() - 1));
    assert!(message(&loose).contains("\"nothing\", which no node computes"));
    let mut absent = sound.clone();
    absent.nodes[2].inputs[0] = Operand::Value(ValueId(1 << 40));
    assert!(message(&absent).contains("does not have"));
    let mut double = sound.clone();
    double.nodes[1].outputs = double.nodes[0].outputs.clone();
    assert!(message(&double).contains("has a value already"));
    let mut short = sound;
    short.nodes[0].op = Primitive::MatMul { transpose_b: true }.into();
    assert!(message(&short).contains("found 3 inputs, expected 2 to 2"));
}

#[test]
fn a_model_of_no_family_has_no_graph_and_the_error_names_those_that_have() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("models/bert-tiny/model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "yolo"}"#).unwrap();
    let message = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert!(graph_of(&checkpoint, Extents::default()).unwrap().is_none());
        let error = known_graph_of(&checkpoint, &InputDims::default()).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().lines().count()), (4, 1), "{error}");
        error.to_string()
    };
    let error = message(folder.path());
    assert!(
        error.contains(r#"found model_type "yolo", expected"#) && error.contains("Llama (llama, mistral"),
        "{error}"
    );
    assert!(error.contains("ResNet") && error.contains("compress and export need no graph"), "{error}");
    let error = message(&fixture("pt/ema.pt"));
    assert!(error.contains(r#"found no model_type, and names such as "0.weight""#), "{error}");
}

#[test]
fn equal_blocks_are_one_section_and_others_are_not() {
    let shown = |name: &str| {
        let graph = graph(name);
        let found = sections(&graph, &graph.lower().unwrap());
        let n_nodes: usize = found.iter().flat_map(|section| &section.parts).map(|part| part.len()).sum();
        assert_eq!(n_nodes, graph.nodes.len(), "{name}");
        found.iter().map(|section| section.blocks.join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(shown("models/bert-tiny"), ["", "encoder.layer.0 encoder.layer.1", ""]);
    assert_eq!(shown("digits"), [""]);
    let resnet = shown("models/resnet50-tiny.safetensors");
    assert_eq!(resnet[..4], ["", "layer1.0", "layer1.1 layer1.2", "layer2.0"]);
    assert_eq!((resnet.len(), resnet.last().unwrap().as_str()), (10, ""));
}

#[test]
fn a_block_with_a_width_of_its_own_stands_alone_and_the_next_refers_to_the_first() {
    let (mut tensors, config) = tensors("models/llama-untied");
    let config = {
        let mut config = config;
        config["num_hidden_layers"] = 3.into();
        Config::parse(Some(config.to_string().as_bytes())).unwrap()
    };
    let third: Vec<TensorInfo> = tensors
        .iter()
        .filter(|info| info.name.starts_with("model.layers.0."))
        .map(|info| TensorInfo { name: info.name.replace(".0.", ".2.").into(), ..info.clone() })
        .collect();
    tensors.extend(third);
    for (name, shape) in [("down_proj", [32, 40]), ("gate_proj", [40, 32]), ("up_proj", [40, 32])] {
        let name = format!("model.layers.1.mlp.{name}.weight");
        tensors.iter_mut().find(|info| info.name == name).unwrap().shape = Shape(shape.to_vec()).into();
    }
    let graph = build(&Headers::new(&tensors, None), &config, Extents::default()).unwrap().unwrap();
    let found = sections(&graph, &graph.lower().unwrap());
    let same: Vec<Option<usize>> = found.iter().map(|section| section.same_as).collect();
    assert_eq!(same, [None, None, None, Some(1), None]);
}
