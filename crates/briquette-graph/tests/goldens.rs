//! Graphs of the models in `fixtures/families`: shapes of outputs, roles, siblings, heads and multiply-adds.

#![allow(clippy::unwrap_used)]

use briquette_core::Role;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::coupling::coupling_groups;
use briquette_graph::multiply_adds::multiply_adds;
use briquette_graph::roles::roles;
use briquette_graph::siblings::siblings;
use briquette_graph::ties::heads;
use briquette_graph::{Composite, Extents, Graph, InputSource, Op, Operand, ValueId, graph_of};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What is known of each model: its family, its blocks, groups of linear layers with one input, and the table that is also the head.
const MODELS: &[(&str, &str, usize, usize, Option<&str>)] = &[
    ("albert", "ALBERT", 2, 1, Some("albert.embeddings.word_embeddings.weight")),
    ("albert-classify", "ALBERT", 2, 1, None),
    ("bart", "BART", 4, 6, Some("model.shared.weight")),
    ("bart-base", "BART", 4, 6, None),
    ("bert", "BERT", 2, 2, None),
    ("bert-mlm", "BERT", 2, 2, Some("bert.embeddings.word_embeddings.weight")),
    ("bert-tokens", "BERT", 2, 2, None),
    ("camembert", "RoBERTa", 2, 2, None),
    ("camembert-tokens", "RoBERTa", 2, 2, None),
    ("clip", "CLIP", 4, 4, None),
    ("clip-classify", "CLIP", 2, 2, None),
    ("clip-text", "CLIP text", 2, 2, None),
    ("clip-vision", "CLIP", 2, 2, None),
    ("convnext", "ConvNeXt", 4, 0, None),
    ("convnext-torchvision", "ConvNeXt", 4, 0, None),
    ("deit", "ViT", 2, 2, None),
    ("densenet", "DenseNet", 7, 0, None),
    ("dinov2", "ViT", 2, 2, None),
    ("distilbert", "DistilBERT", 2, 2, None),
    ("distilbert-mlm", "DistilBERT", 2, 2, Some("distilbert.embeddings.word_embeddings.weight")),
    ("distilbert-tokens", "DistilBERT", 2, 2, None),
    ("efficientnet", "EfficientNet", 9, 0, None),
    ("efficientnet_lite", "EfficientNet-Lite", 7, 0, None),
    ("efficientnet_v2", "EfficientNet", 7, 0, None),
    ("electra", "ELECTRA", 2, 2, None),
    ("electra-tokens", "ELECTRA", 2, 2, None),
    ("gemma", "Gemma", 2, 4, Some("model.embed_tokens.weight")),
    ("gemma2", "Gemma", 2, 4, Some("model.embed_tokens.weight")),
    ("gemma3", "Gemma", 2, 4, Some("model.embed_tokens.weight")),
    ("gemma3-images", "Gemma", 2, 4, Some("language_model.model.embed_tokens.weight")),
    ("gpt2", "GPT-2", 2, 0, Some("transformer.wte.weight")),
    ("gpt2-classify", "GPT-2", 2, 0, None),
    ("gpt_neox", "GPT-NeoX", 2, 0, None),
    ("gpt_neox-tokens", "GPT-NeoX", 2, 0, None),
    ("granite", "Llama", 2, 4, None),
    ("llama", "Llama", 2, 4, None),
    ("llama-base", "Llama", 2, 4, None),
    ("llama-classify", "Llama", 2, 4, None),
    ("llama-dynamic", "Llama", 2, 4, None),
    ("llama-yarn", "Llama", 2, 4, None),
    ("mbart", "BART", 4, 6, Some("model.shared.weight")),
    ("mistral", "Llama", 2, 4, None),
    ("mixtral", "Llama", 2, 2, None),
    ("mobilenet_v2", "MobileNetV2", 17, 0, None),
    ("mobilenet_v2-transformers", "MobileNetV2", 16, 0, None),
    ("mobilenet_v3-large", "MobileNetV3", 15, 0, None),
    ("mobilenet_v3-small", "MobileNetV3", 11, 0, None),
    ("modernbert", "ModernBERT", 3, 0, Some("model.embeddings.tok_embeddings.weight")),
    ("modernbert-classify", "ModernBERT", 3, 0, None),
    ("modernbert-mean", "ModernBERT", 3, 0, None),
    ("modernbert-tokens", "ModernBERT", 3, 0, None),
    ("mpnet", "MPNet", 2, 2, None),
    ("mpnet-classify", "MPNet", 2, 2, None),
    ("nomic_bert", "NomicBERT", 2, 2, Some("nomic_bert.embeddings.word_embeddings.weight")),
    ("nomic_bert-classify", "NomicBERT", 2, 2, None),
    ("olmo2", "Llama", 2, 4, None),
    ("opt", "OPT", 2, 2, Some("model.decoder.embed_tokens.weight")),
    ("opt-classify", "OPT", 2, 2, None),
    ("phi3", "Llama", 2, 0, None),
    ("phi3-longrope", "Llama", 2, 0, None),
    ("qwen2", "Llama", 2, 4, Some("model.embed_tokens.weight")),
    ("qwen3", "Llama", 2, 4, Some("model.embed_tokens.weight")),
    ("qwen3-tokens", "Llama", 2, 4, None),
    ("qwen3_moe", "Llama", 2, 2, None),
    ("resnet", "ResNet", 4, 0, None),
    ("resnet-basic", "ResNet", 3, 0, None),
    ("resnet-early", "ResNet", 3, 0, None),
    ("roberta", "RoBERTa", 2, 2, Some("roberta.embeddings.word_embeddings.weight")),
    ("siglip-classify", "CLIP", 2, 2, None),
    ("siglip-text", "CLIP text", 2, 2, None),
    ("siglip-vision", "CLIP", 2, 2, None),
    ("smollm3", "Llama", 2, 4, Some("model.embed_tokens.weight")),
    ("swin", "Swin", 4, 4, None),
    ("swin-padded", "Swin", 4, 4, None),
    ("swin-torchvision", "Swin", 4, 0, None),
    ("t5", "T5", 2, 2, None),
    ("t5-gated", "T5", 2, 4, None),
    ("t5-translate", "T5", 5, 8, Some("shared.weight")),
    ("t5-translate-gated", "T5", 4, 10, Some("shared.weight")),
    ("vgg", "VGG", 0, 0, None),
    ("vgg_bn", "VGG", 0, 0, None),
    ("vit", "ViT", 2, 2, None),
    ("vit-base", "ViT", 2, 2, None),
    ("vit-timm", "ViT", 2, 0, None),
    ("whisper", "Whisper", 4, 6, Some("model.decoder.embed_tokens.weight")),
    ("xlm-roberta", "RoBERTa", 2, 2, None),
];

/// Tensors that no node uses, by a part of their names: counters, buffers, a token of DINOv2's pretraining, and images of decoders.
const UNUSED: &[&str] = &[
    "num_batches_tracked",
    "relative_position_index",
    "logit_scale",
    "embeddings.mask_token",
    "vision_tower.",
    "multi_modal_projector.",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// The shapes of a golden file, by name.
fn golden(name: &str) -> BTreeMap<String, Vec<usize>> {
    let file = Checkpoint::open(&fixture(&format!("families/{name}/golden.safetensors"))).unwrap();
    file.tensors().iter().map(|info| (info.name.to_string(), info.shape.0.clone())).collect()
}

/// The graph for the inputs of the golden file.
fn graph(name: &str) -> Graph {
    let golden = golden(name);
    let mut extents = Extents { batch: 2, ..Extents::default() };
    if let Some(ids) = golden.get("target").or(golden.get("ids")) {
        extents.tokens = ids[1];
    }
    if let Some(images) = golden.get("images") {
        extents.image = [images[2], images[3]];
    }
    let checkpoint = Checkpoint::open(&fixture(&format!("families/{name}"))).unwrap();
    graph_of(&checkpoint, extents).unwrap().expect(name)
}

#[test]
fn every_model_is_listed() {
    let folders = std::fs::read_dir(fixture("families")).unwrap();
    let found: BTreeSet<String> = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, MODELS.iter().map(|(name, ..)| name.to_string()).collect());
}

#[test]
fn outputs_have_the_shapes_of_the_reference() {
    for (name, ..) in MODELS {
        let (graph, golden) = (graph(name), golden(name));
        let shapes = graph.lower().unwrap().shapes;
        let mut found: Vec<&Vec<usize>> = graph.outputs.iter().map(|output| &shapes[output.0]).collect();
        let expected: Vec<&Vec<usize>> =
            ["hidden", "pooled", "logits"].into_iter().filter_map(|key| golden.get(key)).collect();
        // Decoders and convolutional networks give only the output of their head.
        if *name == "clip" {
            // The file has the outputs of images, and the graph begins with the outputs of texts.
            found.drain(..2);
        }
        if *name == "vit-timm" {
            // timm returns logits only.
            found.remove(0);
        }
        let expected = if found.len() == 1 { &expected[expected.len() - 1..] } else { &expected };
        assert_eq!(found, expected, "{name}");
        for input in graph.inputs {
            assert_ne!(input.source, InputSource::Caller, "{name}: {}", graph.values[input.value.0]);
        }
    }
}

#[test]
fn blocks_siblings_heads_and_unused_tensors_are_known() {
    for &(name, family, n_blocks, n_siblings, head) in MODELS {
        let graph = graph(name);
        assert_eq!((graph.family.as_str(), graph.blocks.len()), (family, n_blocks), "{name}");
        let groups = siblings(&graph);
        assert_eq!(groups.len(), n_siblings, "{name}: {groups:?}");
        let found: Vec<&str> = heads(&graph).iter().map(|weight| graph.weights[weight.0].name.as_str()).collect();
        assert_eq!(found, Vec::from_iter(head), "{name}");
        let is_known = |tensor: &&String| !UNUSED.iter().any(|part| tensor.contains(part));
        assert_eq!(graph.unused.iter().find(is_known), None, "{name}");
    }
}

#[test]
fn roles_follow_from_the_layers() {
    for (name, ..) in MODELS {
        let graph = graph(name);
        let is_vector = |name: &str| graph.weight(name).is_some_and(|weight| graph.weights[weight.0].shape.rank() == 1);
        for (weight, found) in graph.weights.iter().zip(roles(&graph)) {
            let path = weight.name.as_str();
            let expected = match weight.shape.rank() {
                4 => Role::Conv,
                3 if path.contains("encoder.conv") => Role::Conv,
                3 => Role::Parameter,
                // A bias of all items, and positions of frames, which are added whole.
                2 if path == "final_logits_bias" => Role::Parameter,
                2 if path.ends_with("encoder.embed_positions.weight") && graph.family == "Whisper" => Role::Parameter,
                2 if path.ends_with("mlp.gate.weight") || path.ends_with("moe.gate.weight") => Role::Parameter,
                2 if path.contains("relative_attention_bias") || path.contains("relative_position_bias") => Role::Bias,
                // Positions of patches are added whole, and not looked up.
                2 if path.contains("embeddings.position_embedding")
                    && !path.starts_with("text")
                    && graph.family == "CLIP" =>
                {
                    Role::Parameter
                }
                2 if ["embed", "wte", "wpe", "shared"].iter().any(|word| path.contains(word)) => {
                    let is_layer = path.contains("project") || path.contains("mapping") || path.contains("embed_out");
                    if is_layer { Role::Linear } else { Role::Embedding }
                }
                2 => Role::Linear,
                // The weight of a norm is a vector, as its bias and statistics are.
                _ if path.rsplit_once('.').is_some_and(|(layer, _)| is_vector(&format!("{layer}.weight"))) => {
                    Role::Norm
                }
                _ => Role::Bias,
            };
            assert_eq!(found.role, expected, "{name}: {path}");
        }
    }
}

#[test]
fn a_linear_layer_needs_its_elements_times_the_rows_of_its_input() {
    for (name, ..) in MODELS {
        let graph = graph(name);
        let lowered = graph.lower().unwrap();
        let found = multiply_adds(&graph, &lowered);
        for (node, n) in graph.nodes.iter().zip(found) {
            let (Op::Composite(Composite::Linear), &[Operand::Value(ValueId(x)), Operand::Weight(weight), ..]) =
                (&node.op, node.inputs.as_slice())
            else {
                continue;
            };
            let shape = &lowered.shapes[x];
            let rows: usize = shape[..shape.len() - 1].iter().product();
            let elements: usize = graph.weights[weight.0].shape.0.iter().product();
            assert_eq!(n, (rows * elements) as u64, "{name}: {}", node.name);
        }
    }
}

#[test]
fn heads_and_inner_widths_can_be_removed_from_every_model() {
    for (name, _, n_blocks, ..) in MODELS {
        let graph = graph(name);
        let groups = coupling_groups(&graph, &graph.lower().unwrap()).unwrap();
        let is_transformer = graph.nodes.iter().any(|node| matches!(node.op, Op::Composite(Composite::Attention(_))));
        let n_expected = match graph.family.as_str() {
            // Blocks share one attention and one feed-forward block.
            "ALBERT" => 2,
            // One table of biases joins the heads of all blocks.
            "MPNet" | "T5" => n_blocks + 1,
            "VGG" => 5,
            _ if is_transformer => 2 * n_blocks,
            _ => *n_blocks,
        };
        assert!(groups.len() >= n_expected, "{name}: {}", groups.len());
    }
}
