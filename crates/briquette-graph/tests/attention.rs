//! Parameters left after removing half of each group, for networks with norms over channels and attention.

#![allow(clippy::unwrap_used)]

mod net;

use briquette_core::DType;
use briquette_formats::TensorInfo;
use briquette_graph::coupling::coupling_groups;
use briquette_graph::families::build;
use briquette_graph::op::ElementFunction;
use briquette_graph::{Config, Extents, Graph, Headers, Primitive, ValueId};
use net::{Net, by_hand, halved, share};

const TO_LAST: [usize; 4] = [0, 2, 3, 1];
const TO_SECOND: [usize; 4] = [0, 3, 1, 2];

/// Two linear layers around a GELU.
fn feed_forward(net: &mut Net, x: ValueId, width: usize) -> ValueId {
    let inner = net.linear(x, [width, 4 * width], true);
    let inner = net.to.function("gelu", ElementFunction::Gelu, inner);
    net.linear(inner, [4 * width, width], true)
}

/// Layer norm over the second axis.
fn norm_of_channels(net: &mut Net, x: ValueId, n: usize) -> ValueId {
    let x = net.transpose(x, &TO_LAST);
    let x = net.layer_norm(x, n);
    net.transpose(x, &TO_SECOND)
}

/// Mean over space, layer norm and 1,000 classes.
fn classify(net: &mut Net, x: ValueId, n: usize) -> ValueId {
    let x = net.to.node("avgpool", Primitive::AdaptivePool(vec![1, 1]), &[x.into()]);
    let x = norm_of_channels(net, x, n);
    let x = net.reshape(x, &[1, n]);
    net.linear(x, [n, 1000], true)
}

/// torchvision's ConvNeXt-T.
fn convnext_tiny() -> Graph {
    by_hand(|net| {
        let images = net.to.input("images", &[1, 3, 224, 224]);
        let x = net.patches(images, [3, 96], 4);
        let mut x = norm_of_channels(net, x, 96);
        for (stage, (width, n_blocks)) in [(96, 3), (192, 3), (384, 9), (768, 3)].into_iter().enumerate() {
            if stage > 0 {
                x = norm_of_channels(net, x, width / 2);
                x = net.patches(x, [width / 2, width], 2);
            }
            for _ in 0..n_blocks {
                let inner = net.conv_with_bias(x, [width, width], 7, 1, width);
                let inner = net.transpose(inner, &TO_LAST);
                let inner = net.layer_norm(inner, width);
                let inner = feed_forward(net, inner, width);
                let inner = net.transpose(inner, &TO_SECOND);
                let name = net.name();
                let scale = net.to.declare(&name, DType::F32, &[width, 1, 1]);
                let op = Primitive::Elementwise(ElementFunction::Mul);
                let inner = net.to.node("layer_scale", op, &[scale.into(), inner.into()]);
                x = net.to.add("residual", x, inner);
            }
        }
        classify(net, x, 768)
    })
}

/// Sides of a window of Swin-T.
const WINDOW: usize = 7;

/// Moves the first `by` elements of an axis to its end.
fn rolled(net: &mut Net, x: ValueId, axis: usize, [by, extent]: [usize; 2]) -> ValueId {
    let (first, rest) = (net.slice(x, axis, 0, by), net.slice(x, axis, by, extent - by));
    net.to.node("roll", Primitive::Concat { axis }, &[rest.into(), first.into()])
}

/// Attention within windows, with a table of biases, and with shifted windows where `shift` is not 0.
fn window_attention(net: &mut Net, x: ValueId, [side, width, heads]: [usize; 3], shift: usize) -> ValueId {
    let (n, n_tokens, head) = (side / WINDOW, WINDOW * WINDOW, width / heads);
    let mut x = x;
    if shift > 0 {
        for axis in [1, 2] {
            x = rolled(net, x, axis, [shift, side]);
        }
    }
    let x = net.reshape(x, &[1, n, WINDOW, n, WINDOW, width]);
    let x = net.transpose(x, &[0, 1, 3, 2, 4, 5]);
    let x = net.reshape(x, &[n * n, n_tokens, width]);
    let qkv = net.linear(x, [width, 3 * width], true);
    let qkv = net.reshape(qkv, &[n * n, n_tokens, 3, heads, head]);
    let qkv = net.transpose(qkv, &[2, 0, 3, 1, 4]);
    let [q, k, v] = [0, 1, 2].map(|part| {
        let part = net.slice(qkv, 0, part, 1);
        net.reshape(part, &[n * n, heads, n_tokens, head])
    });
    let scores = net.to.node("scores", Primitive::MatMul { transpose_b: true }, &[q.into(), k.into()]);
    let name = net.name();
    let table = net.to.declare(&name, DType::F32, &[(2 * WINDOW - 1).pow(2), heads]);
    let places = net.to.input("places", &[n_tokens * n_tokens]);
    let bias = net.to.node("bias", Primitive::Gather, &[table.into(), places.into()]);
    let bias = net.reshape(bias, &[n_tokens, n_tokens, heads]);
    let bias = net.transpose(bias, &[2, 0, 1]);
    let mut scores = net.to.add("biased", scores, bias);
    if shift > 0 {
        let windows = net.reshape(scores, &[1, n * n, heads, n_tokens, n_tokens]);
        let masked = net.to.function("mask", ElementFunction::Mask, windows);
        scores = net.reshape(masked, &[n * n, heads, n_tokens, n_tokens]);
    }
    let shares = net.to.node("softmax", Primitive::Softmax { axis: 3 }, &[scores.into()]);
    let mixed = net.to.node("mixed", Primitive::MatMul { transpose_b: false }, &[shares.into(), v.into()]);
    let mixed = net.transpose(mixed, &[0, 2, 1, 3]);
    let mixed = net.reshape(mixed, &[n * n, n_tokens, width]);
    let mixed = net.linear(mixed, [width, width], true);
    let x = net.reshape(mixed, &[1, n, n, WINDOW, WINDOW, width]);
    let x = net.transpose(x, &[0, 1, 3, 2, 4, 5]);
    let mut x = net.reshape(x, &[1, side, side, width]);
    if shift > 0 {
        for axis in [1, 2] {
            x = rolled(net, x, axis, [side - shift, side]);
        }
    }
    x
}

/// Joins the channels of 2x2 patches and halves them.
fn merged(net: &mut Net, x: ValueId, side: usize, width: usize) -> ValueId {
    let half = side / 2;
    let x = net.reshape(x, &[1, half, 2, half, 2, width]);
    let x = net.transpose(x, &[0, 1, 3, 4, 2, 5]);
    let x = net.reshape(x, &[1, half, half, 4 * width]);
    let x = net.layer_norm(x, 4 * width);
    net.linear(x, [4 * width, 2 * width], false)
}

/// torchvision's Swin-T.
fn swin_tiny() -> Graph {
    by_hand(|net| {
        let images = net.to.input("images", &[1, 3, 224, 224]);
        let x = net.patches(images, [3, 96], 4);
        let x = net.transpose(x, &TO_LAST);
        let mut x = net.layer_norm(x, 96);
        let mut side = 56;
        for (stage, (width, n_blocks, heads)) in
            [(96, 2, 3), (192, 2, 6), (384, 6, 12), (768, 2, 24)].into_iter().enumerate()
        {
            if stage > 0 {
                x = merged(net, x, side, width / 2);
                side /= 2;
            }
            for index in 0..n_blocks {
                // One window fills the last stage, so nothing is shifted.
                let shift = if index % 2 == 1 && side > WINDOW { WINDOW / 2 } else { 0 };
                let normed = net.layer_norm(x, width);
                let mixed = window_attention(net, normed, [side, width, heads], shift);
                x = net.to.add("residual", x, mixed);
                let normed = net.layer_norm(x, width);
                let inner = feed_forward(net, normed, width);
                x = net.to.add("residual", x, inner);
            }
        }
        let x = net.layer_norm(x, 768);
        let x = net.transpose(x, &TO_SECOND);
        net.classify(x, 768)
    })
}

fn tensor(name: String, shape: &[usize]) -> TensorInfo {
    TensorInfo::checked(name, DType::F32, shape.to_vec()).unwrap()
}

/// Sizes of SmolLM2-135M. The prototype's Llama, of which 34 % were left, had sizes that were not recorded.
const SMOLLM2: Sizes = Sizes { vocabulary: 49_152, width: 576, inner: 1536, layers: 30, heads: 9, kv_heads: 3 };

struct Sizes {
    vocabulary: usize,
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
}

/// A Llama whose head is its embedding.
fn llama(sizes: &Sizes) -> Graph {
    let &Sizes { vocabulary, width, inner, layers, heads, kv_heads } = sizes;
    let of_keys = width / heads * kv_heads;
    let mut tensors = vec![tensor("model.embed_tokens.weight".into(), &[vocabulary, width])];
    for layer in 0..layers {
        for (name, shape) in [
            ("self_attn.q_proj", vec![width, width]),
            ("self_attn.k_proj", vec![of_keys, width]),
            ("self_attn.v_proj", vec![of_keys, width]),
            ("self_attn.o_proj", vec![width, width]),
            ("mlp.gate_proj", vec![inner, width]),
            ("mlp.up_proj", vec![inner, width]),
            ("mlp.down_proj", vec![width, inner]),
            ("input_layernorm", vec![width]),
            ("post_attention_layernorm", vec![width]),
        ] {
            tensors.push(tensor(format!("model.layers.{layer}.{name}.weight"), &shape));
        }
    }
    tensors.push(tensor("model.norm.weight".into(), &[width]));
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": width, "num_attention_heads": heads, "tie_word_embeddings": true,
    });
    let config = Config::parse(Some(config.to_string().as_bytes())).unwrap();
    build(&Headers::new(&tensors, None), &config, Extents::default()).unwrap().unwrap()
}

#[test]
fn convnext_and_swin_lose_widths_inner_widths_and_heads() {
    for (graph, n_parameters) in [(convnext_tiny(), 28_589_128), (swin_tiny(), 28_288_354)] {
        let found = halved(&graph);
        assert_eq!(found.0, n_parameters);
        assert_eq!(share(found), "0.26");
    }
}

#[test]
fn every_stage_of_swin_has_its_width_and_every_block_its_heads_and_inner_width() {
    let graph = swin_tiny();
    let groups = coupling_groups(&graph, &graph.lower().unwrap()).unwrap();
    let mut found: Vec<usize> = groups.iter().map(|group| group.units.len()).collect();
    let mut expected = Vec::new();
    for (width, n_blocks, heads) in [(96, 2, 3), (192, 2, 6), (384, 6, 12), (768, 2, 24)] {
        expected.push(width);
        expected.extend((0..n_blocks).flat_map(|_| [heads, 4 * width]));
    }
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn llama_loses_its_width_too_and_heads_of_queries_go_with_their_keys() {
    let Sizes { vocabulary, width, inner, layers, .. } = SMOLLM2;
    let found = halved(&llama(&SMOLLM2));
    assert_eq!(found.0, 134_515_008);
    // One of three groups of 3 heads of queries and 1 of keys is removed, and half of both widths.
    let (width, inner, of_queries, of_keys) = (width / 2, inner / 2, 6 * 64, 2 * 64);
    let layer = 2 * width * of_queries + 2 * width * of_keys + 3 * width * inner + 2 * width;
    assert_eq!(found.1, vocabulary * width + layers * layer + width);
    assert_eq!(share(found), "0.32");
}
