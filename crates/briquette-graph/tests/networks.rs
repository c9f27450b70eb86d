//! Parameters left after removing half of each group, for networks of known size.

#![allow(clippy::unwrap_used)]

mod net;

use briquette_core::DType;
use briquette_formats::TensorInfo;
use briquette_graph::coupling::coupling_groups;
use briquette_graph::families::build;
use briquette_graph::op::ElementFunction;
use briquette_graph::{Config, Extents, Graph, Headers, Primitive, ValueId};
use net::{Net, by_hand, halved, share};

fn mobilenet_v2() -> Graph {
    by_hand(|net| {
        let images = net.to.input("images", &[1, 3, 224, 224]);
        let mut x = net.cbr(images, [3, 32], 3, 2, 1);
        let mut n_in = 32;
        let stages =
            [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];
        for (factor, n_out, n_blocks, stride) in stages {
            for index in 0..n_blocks {
                let stride = if index == 0 { stride } else { 1 };
                let inner = n_in * factor;
                let wide = if factor == 1 { x } else { net.cbr(x, [n_in, inner], 1, 1, 1) };
                let wide = net.cbr(wide, [inner, inner], 3, stride, inner);
                let narrow = net.conv(wide, [inner, n_out], 1, 1, 1);
                let narrow = net.norm(narrow, n_out);
                x = if stride == 1 && n_in == n_out { net.to.add("residual", x, narrow) } else { narrow };
                n_in = n_out;
            }
        }
        let x = net.cbr(x, [320, 1280], 1, 1, 1);
        net.classify(x, 1280)
    })
}

/// Squeeze and excitation: a scale for each channel, from the means of all channels.
fn excite(net: &mut Net, x: ValueId, n: usize, n_squeezed: usize) -> ValueId {
    let mean = net.to.node("mean", Primitive::AdaptivePool(vec![1, 1]), &[x.into()]);
    let inner = net.conv_with_bias(mean, [n, n_squeezed], 1, 1, 1);
    let inner = net.to.function("silu", ElementFunction::Silu, inner);
    let scale = net.conv_with_bias(inner, [n_squeezed, n], 1, 1, 1);
    let scale = net.to.function("sigmoid", ElementFunction::Sigmoid, scale);
    net.to.node("scale", Primitive::Elementwise(ElementFunction::Mul), &[scale.into(), x.into()])
}

fn efficientnet_b0() -> Graph {
    by_hand(|net| {
        let images = net.to.input("images", &[1, 3, 224, 224]);
        let mut x = net.cbr(images, [3, 32], 3, 2, 1);
        let mut n_in = 32;
        let stages = [
            (1, 3, 1, 16, 1),
            (6, 3, 2, 24, 2),
            (6, 5, 2, 40, 2),
            (6, 3, 2, 80, 3),
            (6, 5, 1, 112, 3),
            (6, 5, 2, 192, 4),
            (6, 3, 1, 320, 1),
        ];
        for (factor, kernel, stride, n_out, n_blocks) in stages {
            for index in 0..n_blocks {
                let stride = if index == 0 { stride } else { 1 };
                let inner = n_in * factor;
                let wide = if factor == 1 { x } else { net.cbr(x, [n_in, inner], 1, 1, 1) };
                let wide = net.cbr(wide, [inner, inner], kernel, stride, inner);
                let wide = excite(net, wide, inner, n_in / 4);
                let narrow = net.conv(wide, [inner, n_out], 1, 1, 1);
                let narrow = net.norm(narrow, n_out);
                x = if stride == 1 && n_in == n_out { net.to.add("residual", x, narrow) } else { narrow };
                n_in = n_out;
            }
        }
        let x = net.cbr(x, [320, 1280], 1, 1, 1);
        net.classify(x, 1280)
    })
}

fn densenet_121() -> Graph {
    by_hand(|net| {
        let images = net.to.input("images", &[1, 3, 224, 224]);
        let x = net.cbr(images, [3, 64], 7, 2, 1);
        let mut x = net.pool(x, 3, 2, 1);
        let mut n = 64;
        for (stage, n_layers) in [6, 12, 24, 16].into_iter().enumerate() {
            let mut features = vec![x];
            for _ in 0..n_layers {
                let joined = net.concat(&features);
                let y = net.norm(joined, n);
                let y = net.relu(y);
                let y = net.cbr(y, [n, 128], 1, 1, 1);
                features.push(net.conv(y, [128, 32], 3, 1, 1));
                n += 32;
            }
            x = net.concat(&features);
            x = net.norm(x, n);
            if stage < 3 {
                x = net.relu(x);
                x = net.conv(x, [n, n / 2], 1, 1, 1);
                x = net.pool(x, 2, 2, 0);
                n /= 2;
            }
        }
        net.classify(x, n)
    })
}

fn shuffle(net: &mut Net, x: ValueId, n: usize, side: usize) -> ValueId {
    let x = net.to.node("cut", Primitive::Reshape(vec![1, 2, n / 2, side, side]), &[x.into()]);
    let x = net.to.node("turn", Primitive::Transpose(vec![0, 2, 1, 3, 4]), &[x.into()]);
    net.to.node("join", Primitive::Reshape(vec![1, n, side, side]), &[x.into()])
}

fn shufflenet_v2() -> Graph {
    by_hand(|net| {
        let images = net.to.input("images", &[1, 3, 224, 224]);
        let x = net.cbr(images, [3, 24], 3, 2, 1);
        let mut x = net.pool(x, 3, 2, 1);
        let (mut n_in, mut side) = (24, 56);
        for (n_blocks, n) in [(4, 116), (8, 232), (4, 464)] {
            let half = n / 2;
            side /= 2;
            for index in 0..n_blocks {
                let is_first = index == 0;
                let parts = if is_first {
                    vec![x, x]
                } else {
                    net.to.nodes("halves", Primitive::Split { axis: 1, sizes: vec![half; 2] }, &[x.into()], 2)
                };
                let (own, stride) = if is_first { (n_in, 2) } else { (half, 1) };
                let left = if is_first {
                    let y = net.conv(parts[0], [own, own], 3, stride, own);
                    let y = net.norm(y, own);
                    net.cbr(y, [own, half], 1, 1, 1)
                } else {
                    parts[0]
                };
                let right = net.cbr(parts[1], [own, half], 1, 1, 1);
                let right = net.conv(right, [half, half], 3, stride, half);
                let right = net.norm(right, half);
                let right = net.cbr(right, [half, half], 1, 1, 1);
                let joined = net.concat(&[left, right]);
                x = shuffle(net, joined, n, side);
            }
            n_in = n;
        }
        let x = net.cbr(x, [464, 1024], 1, 1, 1);
        net.classify(x, 1024)
    })
}

fn tensor(name: String, shape: &[usize]) -> TensorInfo {
    TensorInfo::checked(name, DType::F32, shape.to_vec()).unwrap()
}

fn resnet_18() -> Graph {
    let mut tensors = Vec::new();
    let mut conv = |conv: String, norm: String, shape: &[usize]| {
        tensors.push(tensor(format!("{conv}.weight"), shape));
        for part in ["weight", "bias", "running_mean", "running_var"] {
            tensors.push(tensor(format!("{norm}.{part}"), &shape[..1]));
        }
    };
    conv("conv1".into(), "bn1".into(), &[64, 3, 7, 7]);
    let mut n_in = 64;
    for (stage, n) in [64, 128, 256, 512].into_iter().enumerate() {
        for block in 0..2 {
            let path = format!("layer{}.{block}", stage + 1);
            conv(format!("{path}.conv1"), format!("{path}.bn1"), &[n, n_in, 3, 3]);
            conv(format!("{path}.conv2"), format!("{path}.bn2"), &[n, n, 3, 3]);
            if n_in != n {
                conv(format!("{path}.downsample.0"), format!("{path}.downsample.1"), &[n, n_in, 1, 1]);
            }
            n_in = n;
        }
    }
    tensors.extend([tensor("fc.weight".into(), &[1000, 512]), tensor("fc.bias".into(), &[1000])]);
    build(&Headers::new(&tensors, None), &Config::parse(None).unwrap(), Extents::default()).unwrap().unwrap()
}

/// all-MiniLM-L6-v2 without its pooler.
fn minilm() -> Graph {
    let (width, inner) = (384, 1536);
    let mut tensors = Vec::new();
    let mut linear = |path: String, n_out: usize, n_in: usize| {
        tensors.extend([tensor(format!("{path}.weight"), &[n_out, n_in]), tensor(format!("{path}.bias"), &[n_out])]);
    };
    for layer in 0..6 {
        let at = |name: &str| format!("encoder.layer.{layer}.{name}");
        for name in ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"] {
            linear(at(name), width, width);
        }
        linear(at("intermediate.dense"), inner, width);
        linear(at("output.dense"), width, inner);
    }
    let mut norms = vec!["embeddings.LayerNorm".to_string()];
    for layer in 0..6 {
        norms.extend(["attention.output", "output"].map(|name| format!("encoder.layer.{layer}.{name}.LayerNorm")));
    }
    for norm in norms {
        tensors.extend(["weight", "bias"].map(|part| tensor(format!("{norm}.{part}"), &[width])));
    }
    for (table, n) in [("word", 30522), ("position", 512), ("token_type", 2)] {
        tensors.push(tensor(format!("embeddings.{table}_embeddings.weight"), &[n, width]));
    }
    let config = br#"{"model_type": "bert", "hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 6}"#;
    let config = Config::parse(Some(config)).unwrap();
    build(&Headers::new(&tensors, None), &config, Extents::default()).unwrap().unwrap()
}

#[test]
fn resnet_18_keeps_the_parameters_that_torch_pruning_keeps() {
    let found = halved(&resnet_18());
    assert_eq!(found.0, 11_689_512);
    assert_eq!(format!("{:.3}", found.1 as f64 / 1e6), "3.056");
    assert_eq!(share(found), "0.26");
}

#[test]
fn minilm_loses_heads_and_inner_widths_and_keeps_its_width() {
    let graph = minilm();
    let found = halved(&graph);
    assert_eq!(share(found), "0.76");
    let groups = coupling_groups(&graph, &graph.lower().unwrap()).unwrap();
    let mut sizes: Vec<usize> = groups.iter().map(|group| group.units.len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [vec![12; 6], vec![1536; 6]].concat());
}

#[test]
fn networks_with_depthwise_convolutions_shuffles_and_joins_keep_what_the_prototype_kept() {
    for (graph, n_parameters, expected) in [
        (mobilenet_v2(), 3_504_872, "0.35"),
        (efficientnet_b0(), 5_288_548, "0.32"),
        (densenet_121(), 7_978_856, "0.29"),
        (shufflenet_v2(), 2_278_604, "0.39"),
    ] {
        let found = halved(&graph);
        assert_eq!(found.0, n_parameters);
        assert_eq!(share(found), expected);
    }
}

#[test]
fn multiply_adds_of_resnet_18_are_those_of_torchvision() {
    let graph = resnet_18();
    let all: u64 = briquette_graph::multiply_adds::multiply_adds(&graph, &graph.lower().unwrap()).iter().sum();
    // torchvision gives 1.81 GFLOPS, in multiply-adds.
    assert_eq!(format!("{:.2}", all as f64 / 1e9), "1.81");
}
