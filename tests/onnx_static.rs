//! `export --to onnx --quantize int8-static`: the written model is run here, and its errors are read.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::tensors_of;
use briquette::formats::InputFile;
use briquette::formats::onnx::{AttributeValue, Model, Node};
use std::collections::BTreeMap;

pub(crate) const DATA: &str = "digits-data.safetensors";
const EXPORT: &str = "export digits --to onnx --quantize int8-static";

/// Returns a sandbox with the digits network and its data.
pub(crate) fn digits() -> Sandbox {
    let sandbox = Sandbox::with("digits");
    copy(&repository().join("fixtures").join(DATA), &sandbox.path(DATA));
    sandbox
}

/// Extents and elements of a value.
pub(crate) type Array = (Vec<usize>, Vec<f64>);

/// A model of one image a run, as ONNX defines its operators.
pub(crate) struct Interpreter {
    model: Model,
    pub(crate) constants: BTreeMap<String, Array>,
}

impl Interpreter {
    pub(crate) fn open(sandbox: &Sandbox, name: &str) -> Self {
        let file = InputFile::open(&sandbox.path(name)).unwrap();
        let model = Model::read(&file).unwrap();
        let constant = |tensor: &briquette::formats::onnx::Tensor| {
            let found = tensor.constant(&file, 1 << 20).unwrap().unwrap();
            (tensor.name.clone(), (found.shape, found.values))
        };
        let constants = model.graph.initializers.iter().map(constant).collect();
        Self { model, constants }
    }

    pub(crate) fn logits(&self, image: Array) -> Vec<f64> {
        let mut values = self.constants.clone();
        values.insert("pixel_values".into(), image);
        for node in &self.model.graph.nodes {
            let inputs: Vec<&Array> = node.inputs.iter().map(|name| &values[name]).collect();
            let output = run(node, &inputs);
            values.insert(node.outputs[0].clone(), output);
        }
        values.remove("logits").unwrap().1
    }
}

fn run(node: &Node, inputs: &[&Array]) -> Array {
    let (shape, x) = inputs[0];
    match node.op_type.as_str() {
        "QuantizeLinear" => {
            let (scale, zero) = (inputs[1].1[0], inputs[2].1[0]);
            let code = |value: &f64| ((value / scale).round_ties_even() + zero).clamp(0.0, 255.0);
            (shape.clone(), x.iter().map(code).collect())
        }
        "DequantizeLinear" => {
            let n_each = if inputs[1].1.len() > 1 { x.len() / inputs[1].1.len() } else { x.len() };
            let value = |(at, code): (usize, &f64)| (code - inputs[2].1[at / n_each]) * inputs[1].1[at / n_each];
            (shape.clone(), x.iter().enumerate().map(value).collect())
        }
        "Conv" => conv(inputs, ints(node, "pads")[0]),
        "MaxPool" => max_pool(inputs[0]),
        "Reshape" => (vec![1, x.len()], x.clone()),
        "Gemm" => {
            let (n_out, n_in) = (inputs[1].0[0], inputs[1].0[1]);
            let product = |out: usize| (0..n_in).map(|at| x[at] * inputs[1].1[out * n_in + at]).sum::<f64>();
            (vec![1, n_out], (0..n_out).map(|out| product(out) + inputs[2].1[out]).collect())
        }
        other => panic!("found {other}, which is no operator of codes"),
    }
}

fn ints(node: &Node, name: &str) -> Vec<usize> {
    match node.attribute(name) {
        Some(AttributeValue::Ints(values)) => values.iter().map(|value| usize::try_from(*value).unwrap()).collect(),
        other => panic!("found {other:?}"),
    }
}

/// A convolution with a step of 1 and the same zeros on all sides.
fn conv(inputs: &[&Array], pad: usize) -> Array {
    let ((x_shape, x), (w_shape, w)) = (inputs[0], inputs[1]);
    let ([n_in, height, width], [n_out, rows, columns]) =
        ([x_shape[1], x_shape[2], x_shape[3]], [w_shape[0], w_shape[2], w_shape[3]]);
    let pixel = |channel: usize, y: usize, x_at: usize| match (y.checked_sub(pad), x_at.checked_sub(pad)) {
        (Some(y), Some(x_at)) if y < height && x_at < width => x[(channel * height + y) * width + x_at],
        _ => 0.0,
    };
    let mut found = Vec::with_capacity(n_out * height * width);
    for at in 0..n_out * height * width {
        let (out, y, x_at) = (at / (height * width), at / width % height, at % width);
        let term = |k: usize| {
            let (channel, row, column) = (k / (rows * columns), k / columns % rows, k % columns);
            pixel(channel, y + row, x_at + column) * w[out * n_in * rows * columns + k]
        };
        found.push((0..n_in * rows * columns).map(term).sum::<f64>() + inputs[2].1[out]);
    }
    (vec![1, n_out, height, width], found)
}

/// The maximum of squares of 2.
fn max_pool((shape, x): &Array) -> Array {
    let [n, height, width] = [shape[1], shape[2] / 2, shape[3] / 2];
    let largest = |at: usize| {
        let (channel, y, x_at) = (at / (height * width), at / width % height, at % width);
        let one = |k: usize| x[(channel * shape[2] + 2 * y + k / 2) * shape[3] + 2 * x_at + k % 2];
        (0..4).map(one).fold(f64::NEG_INFINITY, f64::max)
    };
    (vec![1, n, height, width], (0..n * height * width).map(largest).collect())
}

pub(crate) fn best(logits: &[f64]) -> usize {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap()
}

#[test]
fn static_codes_classify_digits_as_well_as_floats() {
    let sandbox = digits();
    let data = tensors_of(&sandbox.path(DATA));
    let (images, labels) = (&data["test_x"].bytes, &data["test_y"].bytes);
    for flags in ["--range minmax", "--range percentile", "--range mse", "--range entropy", "--reduce-range"] {
        let found = sandbox.json(&format!("{EXPORT} --data {DATA} --samples 100 -o out --force {flags}"));
        assert_eq!(found["weights"], serde_json::json!({ "int8-static": 4 }), "{flags}");
        assert_eq!(found["calibration"]["n_items"], 100, "{flags}");
        sandbox.ok("verify out");
        let model = Interpreter::open(&sandbox, "out/model.onnx");
        let n_right = (0..100).filter(|&at| {
            let pixels = images[at * 64..(at + 1) * 64].iter().map(|pixel| f64::from(*pixel) / 16.0).collect();
            best(&model.logits((vec![1, 1, 8, 8], pixels))) == usize::from(labels[at])
        });
        let n_right = n_right.count();
        assert!(n_right >= 97, "{flags}: {n_right} of 100");
        let largest =
            model.constants["conv2.weight.codes"].1.iter().fold(0.0, |largest: f64, code| largest.max(code.abs()));
        assert_eq!(largest, if flags == "--reduce-range" { 64.0 } else { 127.0 }, "{flags}");
    }
}

#[test]
fn equal_exports_have_equal_bytes() {
    let sandbox = digits();
    let bytes = |out: &str, flags: &str| {
        sandbox.ok(&format!("{EXPORT} --data {DATA} --samples 30 -o {out} {flags}"));
        std::fs::read(sandbox.path(&format!("{out}/model.onnx"))).unwrap()
    };
    assert_eq!(bytes("a", ""), bytes("b", "--threads 1"));
    assert_ne!(bytes("c", "--seed 1"), bytes("d", "--seed 2"));
}

#[test]
fn each_error_of_a_static_export_is_one_line_and_writes_nothing() {
    let sandbox = digits();
    copy(&repository().join("fixtures/models/bert-tiny"), &sandbox.path("bert"));
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("sentences.txt"));
    copy(&repository().join("fixtures/onnx/convolutions.onnx"), &sandbox.path("m.onnx"));
    let static_of = |model: &str| format!("export {model} --to onnx --quantize int8-static -o out");
    let (own, data) = (static_of("digits"), format!("--data {DATA}"));
    for (line, code, phrase) in [
        (own.clone(), 2, "--quantize int8-static: found no --data"),
        (
            format!("{own} {data} --range best"),
            2,
            "--range: found \"best\", expected one of minmax, percentile, mse, entropy",
        ),
        (format!("{own} {data} --cast f16"), 2, "--cast: found f16 with int8-static"),
        (format!("{own} --data sentences.txt"), 4, "sentences.txt: found text, expected an array"),
        (format!("{own} --data absent"), 4, "absent: no such file"),
        (
            format!("{} {data}", static_of("bert")),
            2,
            "bert: found BERT with attention, expected a convolutional network",
        ),
        (format!("export m.onnx --to dense --quantize int8-static {data} -o out"), 2, "only `--to onnx` has it"),
        (
            format!("export digits --to onnx --quantize int8-dynamic {data} -o out"),
            2,
            "--data: found it with int8-dynamic",
        ),
        (format!("export digits --to onnx {data} -o out"), 2, "--quantize"),
    ] {
        sandbox.run(&line).assert_fails(code, &[phrase]);
        assert!(!sandbox.path("out").exists(), "{line}");
    }
    sandbox.ok(&format!("{own} {data} --samples 10"));
    sandbox.run(&format!("{own} {data}")).assert_fails(6, &["out: the output exists", "--force"]);
}
