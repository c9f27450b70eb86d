//! Every value keeps its position, for every output axis, storage and file format of the model.

use crate::archives::{dict, key, zip};
use crate::sandbox::Sandbox;
use crate::weights::{Random, Tensor, safetensors_of, tensors_of};
use briquette::core::{DType, Decision, Mask, fake_quantize, rows};
use briquette::prune::Ratio;
use briquette::quant::{Scheme, fit};
use std::collections::BTreeMap;

/// A weight with its output axis; rows are computed independently of the library.
struct Weight {
    tensor: Tensor,
    axis: &'static str,
}

impl Weight {
    /// Returns the numbers of outputs and of inputs of each output.
    fn rows(&self) -> (usize, usize) {
        let shape = &self.tensor.shape;
        let n_rows = match self.axis {
            "first" => shape[0],
            "last" => shape[1],
            "second" => shape[1],
            _ => shape[0] * shape[1],
        };
        (n_rows, shape.iter().product::<usize>() / n_rows)
    }

    /// Returns the position of a weight in the tensor's own order.
    fn place(&self, row: usize, col: usize) -> usize {
        let (n_rows, n_cols) = self.rows();
        match self.axis {
            "last" => col * n_rows + row,
            "second" => {
                let kernel: usize = self.tensor.shape[2..].iter().product();
                (col / kernel * n_rows + row) * kernel + col % kernel
            }
            _ => row * n_cols + col,
        }
    }

    /// Returns the positions of all weights, row by row.
    fn places(&self) -> Vec<usize> {
        let (n_rows, n_cols) = self.rows();
        (0..n_rows).flat_map(|row| (0..n_cols).map(move |col| (row, col))).map(|(r, c)| self.place(r, c)).collect()
    }
}

/// How to compress: scheme, sparsity and storage.
#[derive(Clone, Copy)]
struct Request {
    scheme: Option<&'static str>,
    sparsity: Option<f64>,
    storage: &'static str,
}

const fn quantized(scheme: &'static str, storage: &'static str) -> Request {
    Request { scheme: Some(scheme), sparsity: None, storage }
}

const fn pruned(scheme: &'static str, sparsity: f64, storage: &'static str) -> Request {
    Request { scheme: Some(scheme), sparsity: Some(sparsity), storage }
}

/// Dense codes, bitmasks and entropy-coded blocks of each kind of scheme, and floats without codes.
const REQUESTS: [Request; 13] = [
    quantized("int8", "plain"),
    quantized("int8-dynamic", "entropy"),
    pruned("int8", 0.7, "plain"),
    pruned("int8-dynamic-sym", 0.7, "entropy"),
    quantized("int4-g16", "plain"),
    pruned("int4-g16-asym", 0.6, "plain"),
    pruned("int4-g16", 0.6, "entropy"),
    quantized("int3", "entropy"),
    quantized("step0.02", "plain"),
    pruned("step0.02-tensor-dynamic", 0.5, "entropy"),
    quantized("int5-asym", "plain"),
    Request { scheme: None, sparsity: Some(0.7), storage: "plain" },
    Request { scheme: None, sparsity: Some(0.02), storage: "plain" },
];

/// Returns weights of every output axis: below and above a hash block of 65,536 elements, of odd sizes, and
/// square.
fn weights(seed: u64, dtype: DType) -> Vec<Weight> {
    let mut random = Random(seed);
    let mut near = |n: usize, step: usize| (n + random.below(n as u64 / 2) as usize).next_multiple_of(step);
    let mut shapes = Vec::new();
    for (size, n) in [("small", 24), ("large", 272)] {
        shapes.push(("first", size, vec![near(n, 1), near(n, 16)]));
        shapes.push(("last", size, vec![near(n, 16), near(n, 1)]));
        shapes.push(("second", size, vec![near(n / 4, 4), near(n, 1), 4, 4]));
        shapes.push(("stacked", size, vec![3, near(n / 2, 1), near(n, 16)]));
    }
    shapes.extend(["first", "last"].map(|axis| (axis, "square", vec![64, 64])));
    let weight = |(index, (axis, size, shape)): (usize, (&'static str, &str, Vec<usize>))| {
        let mut tensor = Tensor::random(&format!("{axis}.{size}"), &shape, seed + index as u64 + 1);
        let values = tensor.floats();
        tensor.dtype = dtype;
        tensor.bytes = vec![0; values.len() * dtype.n_bits() / 8];
        rows::from_f32(&values, dtype, &mut tensor.bytes);
        Weight { tensor, axis }
    };
    shapes.into_iter().enumerate().map(weight).collect()
}

/// Returns the fake-quantized weight in its own order and type.
fn fake_quantized(weight: &Weight, request: Request) -> Vec<u8> {
    let ((n_rows, n_cols), places, dtype) = (weight.rows(), weight.places(), weight.tensor.dtype);
    let mut own = vec![0.0; places.len()];
    rows::to_f32(&weight.tensor.bytes, dtype, &mut own);
    let by_row: Vec<f32> = places.iter().map(|&place| own[place]).collect();
    let mask = request.sparsity.map(|share| {
        let mut order: Vec<usize> = (0..by_row.len()).collect();
        order.sort_by(|&a, &b| by_row[a].abs().total_cmp(&by_row[b].abs()));
        let mut keep = vec![true; order.len()];
        order[..Ratio::new(share).unwrap().of(order.len())].iter().for_each(|&place| keep[place] = false);
        Mask::from_fn(n_rows, n_cols, |row, col| keep[row * n_cols + col])
    });
    let dropped = Decision { mask: mask.clone(), quant: None };
    let kept = fake_quantize(&by_row, n_rows, n_cols, &dropped);
    let scheme = request.scheme.map(|scheme| scheme.parse::<Scheme>().unwrap());
    let quant = scheme.map(|scheme| fit(&kept, n_cols, mask.as_ref(), &scheme.weights));
    let values = fake_quantize(&by_row, n_rows, n_cols, &Decision { mask, quant });
    places.iter().zip(values).for_each(|(&place, value)| own[place] = value);
    let mut bytes = vec![0; weight.tensor.bytes.len()];
    rows::from_f32(&own, dtype, &mut bytes);
    bytes
}

/// Returns a recipe that compresses a model in this way.
fn recipe(weights: &[Weight], request: Request, model: &str, output: &str) -> String {
    let mut text = format!("[model]\npath = \"{model}\"\n");
    for Weight { tensor, axis } in weights {
        let role = if *axis == "second" { "conv" } else { "linear" };
        let name = &tensor.name;
        text += &format!("[[model.roles]]\ninclude = [\"{name}\"]\nrole = \"{role}\"\noutputs = \"{axis}\"\n");
    }
    text += &format!("[output]\npath = \"{output}\"\n");
    if request.storage != "plain" {
        text += &format!("storage = \"{}\"\n", request.storage);
    }
    if let Some(share) = request.sparsity {
        text += &format!("[[stage]]\nkind = \"prune\"\nsparsity = {share}\n");
    }
    if let Some(scheme) = request.scheme {
        text += &format!("[[stage]]\nkind = \"quantize\"\nscheme = \"{scheme}\"\n");
    }
    text
}

/// Returns the bytes of a PyTorch archive.
fn pytorch_of(weights: &[Weight]) -> Vec<u8> {
    let number = |n: usize| [b"J".as_slice(), &(n as u32).to_le_bytes()].concat();
    let (mut items, mut entries) = (Vec::new(), Vec::new());
    for (index, Weight { tensor, .. }) in weights.iter().enumerate() {
        let class = if tensor.dtype == DType::BF16 { "BFloat16Storage" } else { "FloatStorage" };
        let n = tensor.shape.iter().product();
        let strides = (0..tensor.shape.len()).map(|axis| tensor.shape[axis + 1..].iter().product());
        let tuple = |extents: Vec<usize>| {
            [b"(".as_slice(), &extents.into_iter().flat_map(number).collect::<Vec<u8>>(), b"t"].concat()
        };
        items.extend(key(&tensor.name));
        items.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n");
        items.extend(format!("{class}\n").into_bytes());
        items.extend([key(&index.to_string()), key("cpu"), number(n), b"tQK\0".to_vec()].concat());
        items.extend([tuple(tensor.shape.clone()), tuple(strides.collect())].concat());
        items.extend(b"\x89ccollections\nOrderedDict\n)RtR");
        entries.push((format!("m/data/{index}"), &tensor.bytes));
    }
    let pickle = dict(&items);
    let mut files: Vec<(&str, &[u8])> = vec![("m/data.pkl", &pickle)];
    files.extend(entries.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
    zip(&files)
}

/// Compresses a model of each dtype from this kind of file in every way, exports it to every format, and
/// compares all values.
fn check(source: &str) {
    for (seed, dtype) in [(11, DType::F32), (12, DType::BF16)] {
        let sandbox = Sandbox::new();
        let weights = weights(seed, dtype);
        let tensors: Vec<Tensor> = weights.iter().map(|weight| weight.tensor.clone()).collect();
        sandbox.write("m.safetensors", safetensors_of(&tensors));
        sandbox.write("m.pt", pytorch_of(&weights));
        sandbox.ok("export m.safetensors --to burnpack -o packed");
        let model = if source == "burnpack" { "packed/model.bpk".into() } else { format!("m.{source}") };
        let by_name =
            |tensors: Vec<Tensor>| tensors.into_iter().map(|t| (t.name.clone(), t)).collect::<BTreeMap<_, _>>();
        assert_eq!(tensors_of(&sandbox.path(&model)), by_name(tensors), "{model}");
        for (index, &request) in REQUESTS.iter().enumerate() {
            let expected =
                weights.iter().map(|weight| Tensor { bytes: fake_quantized(weight, request), ..weight.tensor.clone() });
            check_outputs(&sandbox, (&weights, request, &model), &by_name(expected.collect()), &format!("o{index}"));
        }
    }
}

fn check_outputs(
    sandbox: &Sandbox,
    (weights, request, model): (&[Weight], Request, &str),
    expected: &BTreeMap<String, Tensor>,
    output: &str,
) {
    sandbox.write("r.toml", recipe(weights, request, model, output));
    sandbox.ok("run r.toml");
    sandbox.ok(&format!("verify {output} --against {model}"));
    let mut outputs = vec![output.to_string()];
    for format in ["dense", "burnpack", "briquette"] {
        let exported = format!("{output}-{format}");
        sandbox.ok(&format!("export {output} --to {format} -o {exported}"));
        sandbox.ok(&format!("verify {exported} --against {output}"));
        outputs.push(exported);
    }
    for output in outputs {
        let found = tensors_of(&sandbox.path(&output));
        for (name, expected) in expected {
            let same = found[name] == *expected;
            let what = (request.scheme, request.sparsity, request.storage);
            assert!(same, "{name} {:?} of {output}, {what:?}", expected.shape);
        }
    }
}

#[test]
fn exports_of_safetensors_models_equal_fake_quantization() {
    check("safetensors");
}

#[test]
fn exports_of_pytorch_models_equal_fake_quantization() {
    check("pt");
}

#[test]
fn exports_of_burnpack_models_equal_fake_quantization() {
    check("burnpack");
}

#[test]
fn a_model_in_burns_layout_keeps_its_order_in_every_format() {
    let sandbox = Sandbox::with("digits");
    sandbox.ok("compress digits -o d --layout burn --quantize int8");
    for format in ["dense", "burnpack", "briquette"] {
        sandbox.ok(&format!("export d --to {format} -o {format}"));
        for (first, least) in [("digits", 0.9999), ("d", 1.0)] {
            let diff = sandbox.json(&format!("diff {first} {format}"));
            for tensor in diff["tensors"].as_array().unwrap().iter().filter(|tensor| tensor["is_equal"] != true) {
                assert!(tensor["error"]["cosine"].as_f64().unwrap() >= least && least < 1.0, "{format}: {tensor}");
            }
        }
    }
}

#[test]
fn unchanged_tensors_keep_their_order_on_every_output_axis() {
    for (shape, huge) in [([24, 40], 1e30), ([300, 260], 1e30)] {
        let sandbox = Sandbox::new();
        let mut large = Tensor::random("large.weight", &shape, 1);
        large.bytes[..4].copy_from_slice(&f32::to_le_bytes(huge));
        let mut half = Tensor::random("half.weight", &shape, 2);
        let values = half.floats();
        (half.dtype, half.bytes) = (DType::F16, vec![0; 2 * values.len()]);
        rows::from_f32(&values, DType::F16, &mut half.bytes);
        let other = Tensor::random("other.weight", &shape, 3);
        sandbox.write("m.safetensors", safetensors_of(&[half.clone(), large.clone(), other]));
        // One tensor exceeds f16, and one has that type already.
        sandbox.ok("compress m.safetensors -o out --layout burn --cast f16 --allow-nonfinite");
        let found = tensors_of(&sandbox.path("out"));
        assert_eq!((&found["half.weight"], &found["large.weight"]), (&half, &large), "{shape:?}");
        sandbox.ok("verify out --against m.safetensors");
    }
}

#[test]
fn burns_layout_is_refused_for_compressed_tensors() {
    let sandbox = Sandbox::new();
    let config = r#"{"model_type": "bert"}"#;
    let names = ["bert.encoder.layer.0.attention.self.query.weight", "bert.pooler.dense.weight"];
    let tensors = names.map(|name| Tensor::random(name, &[64, 64], 1));
    sandbox.write("model/model.safetensors", safetensors_of(&tensors));
    sandbox.write("model/config.json", config);
    sandbox.ok("compress model -o small --layout burn --quantize int8");
    let flags = "--format compressed-tensors --allow-untested";
    for line in [
        format!("compress model -o out --layout burn --quantize int8 {flags}"),
        format!("compress model -o out --layout burn --prune 0.5 {flags}"),
        "export small --to compressed-tensors --allow-untested -o out".into(),
    ] {
        sandbox.run(&line).assert_fails(6, &[names[0], "[in, out]", "PyTorch's layout"]);
    }
    assert!(!sandbox.path("out").exists());
}

#[test]
fn conv1d_matrices_stay_floats_in_compressed_tensors() {
    for (config, shape) in [(r#"{"model_type": "decision_transformer"}"#, [32, 96]), ("{}", [256, 768])] {
        let sandbox = Sandbox::new();
        let [n_in, n_out] = shape;
        let tensors = [
            Tensor::random("encoder.h.0.attn.c_attn.weight", &[n_in, n_out], 1),
            Tensor::random("encoder.h.0.attn.c_attn.bias", &[n_out], 2),
            Tensor::random("encoder.h.0.attn.c_proj.weight", &[n_in, n_in], 3),
            Tensor::random("encoder.h.0.attn.c_proj.bias", &[n_in], 4),
            Tensor::random("predict_state.weight", &[32, n_in], 5),
            Tensor::random("predict_state.bias", &[32], 6),
        ];
        sandbox.write("model/model.safetensors", safetensors_of(&tensors));
        sandbox.write("model/config.json", config);
        sandbox.ok("compress model -o out --quantize int8 --format compressed-tensors --allow-untested");
        sandbox.ok("verify out --against model");
        let found = tensors_of(&sandbox.path("out"));
        for tensor in tensors.iter().filter(|tensor| !tensor.name.starts_with("predict_state.weight")) {
            assert_eq!(&found[&tensor.name], tensor, "{}", tensor.name);
        }
    }
}
