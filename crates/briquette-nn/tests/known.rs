//! Tests the roles of parameters, detected or assigned, and their storage in files.

use crate::fixture::values;
use briquette_core::{ErrorKind, OutputAxis, Role, fake_quantize};
use briquette_formats::{Checkpoint, InputFile, Manifest, TensorSource};
use briquette_nn::layers;
use briquette_nn::{Compression, DynamicSpec, Export, Layer, NameMap, OwnLayer, Prune, Quantize, Roles};
use briquette_nn::{decisions, held, load_into, parameters, quantize_dynamic};
use burn::module::{Module, Param};
use burn::nn::conv::{Conv1d, Conv1dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::tensor::{Device, Distribution, Tensor};

fn random<const D: usize>(shape: [usize; D]) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::random(shape, Distribution::Default, &Device::flex()))
}

/// Layers of another crate with the names of burn's layers.
mod own {
    use super::*;

    #[derive(Module, Debug)]
    pub(super) struct Embedding {
        pub(super) cls: Param<Tensor<3>>,
        pub(super) pos: Param<Tensor<3>>,
        pub(super) scale: Param<Tensor<2>>,
    }

    /// `[out, in]`, as in PyTorch.
    #[derive(Module, Debug)]
    pub(super) struct Linear {
        pub(super) weight: Param<Tensor<2>>,
        pub(super) bias: Option<Param<Tensor<1>>>,
    }

    impl OwnLayer for Linear {
        const NAME: &'static str = "Linear";
        const PARAMETERS: &'static [(&'static str, Role, OutputAxis)] = &[("weight", Role::Linear, OutputAxis::First)];
    }

    pub(super) fn linear(n_in: usize, n_out: usize) -> Linear {
        Linear { weight: random([n_out, n_in]), bias: Some(random([n_out])) }
    }
}

#[derive(Module, Debug)]
struct Net {
    embedding: own::Embedding,
    wide: own::Linear,
    square: own::Linear,
    raw: Param<Tensor<2>>,
    wave: Conv1d,
    up: ConvTranspose2d,
}

fn net() -> Net {
    let device = Device::flex();
    let net = Net {
        embedding: own::Embedding { cls: random([1, 1, 32]), pos: random([1, 50, 32]), scale: random([3, 1]) },
        wide: own::linear(32, 8),
        square: own::linear(16, 16),
        raw: random([32, 6]),
        wave: Conv1dConfig::new(4, 6, 3).init(&device),
        up: ConvTranspose2dConfig::new([4, 6], [2, 3]).init(&device),
    };
    net.wave.weight.val();
    net.up.weight.val();
    net
}

#[test]
fn burns_layers_are_identified_by_more_than_their_name() {
    let found = parameters(&net());
    let of = |path: &str| found.iter().find(|parameter| parameter.path == path).unwrap();
    for path in ["embedding.cls", "embedding.pos", "embedding.scale", "wide.weight", "square.weight", "raw"] {
        assert_eq!((of(path).layer, of(path).role), (None, Role::Unknown), "{path}: {}", of(path).why);
    }
    assert_eq!((of("wave.weight").layer, of("wave.weight").rows().n_rows), (Some(Layer::Conv), 6));
    let up = of("up.weight");
    assert_eq!((up.layer, up.axis, up.rows().n_rows), (Some(Layer::ConvTranspose), OutputAxis::Second, 6));
    // Without a lookalike in the module, a square Linear and one without bias are identified as burn's.
    let device = Device::flex();
    for has_bias in [true, false] {
        let linear = burn::nn::LinearConfig::new(8, 8).with_bias(has_bias).init(&device);
        assert_eq!(parameters(&linear)[0].layer, Some(Layer::Linear));
        assert!(!parameters(&linear)[0].runs_on_codes);
    }
    // A lookalike is never identified as burn's layer, whatever its fields and shapes are.
    let alike = [own::linear(32, 8), own::linear(8, 8), own::Linear { weight: random([8, 32]), bias: None }];
    for linear in alike {
        let found = parameters(&linear);
        assert_eq!((found[0].layer, found[0].role), (None, Role::Unknown), "{}", found[0].why);
        let both = parameters(&(linear, burn::nn::LinearConfig::new(8, 8).with_bias(false).init(&device)));
        let burns = both.iter().find(|parameter| parameter.path == "1.weight").unwrap();
        assert_eq!((both[0].role, burns.layer), (Role::Unknown, Some(Layer::Linear)));
    }
    let ours = layers::EmbeddingConfig::new(8, 8).init(&device);
    assert_eq!((parameters(&ours)[0].role, parameters(&ours)[0].runs_on_codes), (Role::Embedding, true));
}

#[test]
fn unknown_parameters_are_skipped_until_roles_include_them() {
    let net = net();
    let quantized = quantize_dynamic(net.clone(), &DynamicSpec::new().with_slower()).unwrap();
    assert_eq!(quantized.decoded(), ["wave.weight", "up.weight"], "{:?}", quantized.held);
    let same = quantized.module;
    for (a, b) in [(&same.wide.weight, &net.wide.weight), (&same.embedding.scale, &net.embedding.scale)] {
        assert_eq!(values(a.val()), values(b.val()));
    }
    let roles = Roles::new().layer::<own::Linear>().linear("raw", OutputAxis::Last).unwrap();
    let assigned = quantize_dynamic(net.clone(), &DynamicSpec::new().roles(roles).with_slower()).unwrap();
    assert_eq!(assigned.decoded(), ["wide.weight", "square.weight", "raw", "wave.weight", "up.weight"]);
    // Each output has its own scale: the code of its largest weight is exactly 127.
    let columns: Vec<f32> = values(net.raw.val()).chunks(6).fold(vec![0.0; 6], |largest, row| {
        largest.iter().zip(row).map(|(a, b): (&f32, &f32)| a.max(b.abs())).collect()
    });
    let found = values(assigned.module.raw.val()).chunks(6).fold(vec![0.0; 6], |largest, row| {
        largest.iter().zip(row).map(|(a, b): (&f32, &f32)| a.max(b.abs())).collect()
    });
    assert!(columns.iter().zip(&found).all(|(a, b)| (a - b).abs() <= a * 1e-6), "{columns:?} {found:?}");
    let apart = (assigned.module.up.weight.val() - net.up.weight.val()).abs().max().into_scalar::<f32>();
    assert!(apart > 0.0 && apart < 0.01, "{apart}");
}

#[test]
fn roles_that_match_nothing_or_do_not_fit_are_refused() {
    let error = |roles: Roles| quantize_dynamic(net(), &DynamicSpec::new().roles(roles)).unwrap_err();
    let missing = error(Roles::new().leave("row").unwrap());
    assert_eq!(missing.kind, ErrorKind::Config);
    assert!(missing.to_string().contains("\"row\" matches no parameter") && missing.to_string().contains("raw"));
    let flat = error(Roles::new().conv("raw", OutputAxis::Second).unwrap());
    assert!(flat.to_string().starts_with("raw: its shape [32, 6] has no output axis Second"), "{flat}");
    let glob = quantize_dynamic(net(), &DynamicSpec::new().include("wavy.*").unwrap()).unwrap_err();
    assert!(glob.kind == ErrorKind::Config && glob.to_string().contains("wavy"), "{glob}");
    let none = quantize_dynamic(own::linear(4, 8), &DynamicSpec::new()).unwrap_err();
    assert!(none.to_string().contains("nothing to quantize"), "{none}");
}

#[test]
fn layers_decoded_for_each_use_are_listed_with_a_remedy() {
    #[derive(Module, Debug)]
    struct Mixed {
        ours: layers::Linear,
        burns: burn::nn::Linear,
        norm: burn::nn::LayerNorm,
    }
    let device = Device::flex();
    let mixed = Mixed {
        ours: layers::LinearConfig::new(32, 32).init(&device),
        burns: burn::nn::LinearConfig::new(32, 32).init(&device),
        norm: burn::nn::LayerNormConfig::new(32).init(&device),
    };
    let usual = quantize_dynamic(mixed.clone(), &DynamicSpec::new()).unwrap();
    assert_eq!((usual.decoded().len(), usual.held["int8"].paths.as_slice()), (0, &["ours.weight".to_string()][..]));
    let warning = usual.warning().unwrap();
    assert!(warning.starts_with("not quantized: burns.weight (it would be slower than floats"), "{warning}");
    assert_eq!(usual.left.into_keys().collect::<Vec<_>>(), ["burns.weight"]);
    assert_eq!(values(usual.module.burns.weight.val()), values(mixed.burns.weight.val()));
    let quantized = quantize_dynamic(mixed, &DynamicSpec::new().with_slower()).unwrap();
    assert_eq!(quantized.held["int8"].paths, ["ours.weight"]);
    assert_eq!(quantized.held["int8 as floats"].paths, ["burns.weight"]);
    assert!(quantized.held["f32"].paths.contains(&"norm.gamma".to_string()));
    let warning = quantized.warning().unwrap();
    assert!(warning.contains("burns.weight") && warning.contains("briquette::nn::layers"), "{warning}");
    assert!(!warning.contains("ours.weight"));
    let fast = quantize_dynamic(quantized.module.ours.clone(), &DynamicSpec::new()).unwrap();
    assert!(fast.warning().is_none() && held(&fast.module)["int8"].n_tensors == 1);
}

#[test]
fn files_store_transposed_convolutions_and_lookalike_linears_untransposed() {
    let (net, dir) = (net(), tempfile::tempdir().unwrap());
    let roles = Roles::new().layer::<own::Linear>();
    let names = NameMap::torch().roles(roles.clone());
    let out = dir.path().join("net");
    let quantized = quantize_dynamic(net.clone(), &DynamicSpec::new().roles(roles).with_slower()).unwrap().module;
    Export::to(&out).names(names.clone()).write(&quantized).unwrap();
    let checkpoint = Checkpoint::open(&out).unwrap();
    let shape = |name: &str| checkpoint.tensors().iter().find(|info| info.name == name).unwrap().shape.0.clone();
    assert_eq!((shape("square.weight"), shape("wide.weight")), (vec![16, 16], vec![8, 32]));
    assert_eq!(shape("up.weight"), [4, 6, 2, 3]);
    let file = InputFile::open(&checkpoint.directory().join("briquette.json")).unwrap();
    let manifest = Manifest::read(&file).unwrap();
    assert_eq!((manifest.tensors["up.weight"].output_axis, manifest.version), (OutputAxis::Second, 5));
    let back = load_into(self::net(), &checkpoint, &names).unwrap();
    assert_eq!(values(back.square.weight.val()), values(quantized.square.weight.val()));
    assert_eq!(values(back.wide.weight.val()), values(quantized.wide.weight.val()));
    assert_eq!(values(back.up.weight.val()), values(quantized.up.weight.val()));
    assert_eq!(values(back.wave.weight.val()), values(quantized.wave.weight.val()));
}

#[test]
fn the_layout_stored_in_the_file_takes_precedence() {
    let square = || burn::nn::LinearConfig::new(8, 8).init(&Device::flex());
    let (layer, dir) = (square(), tempfile::tempdir().unwrap());
    for (written, read) in [(NameMap::torch(), NameMap::burn()), (NameMap::burn(), NameMap::torch())] {
        let out = dir.path().join("out");
        Export::to(&out).names(written).replace().write(&layer).unwrap();
        let back = load_into(square(), &Checkpoint::open(&out).unwrap(), &read).unwrap();
        assert_eq!(values(back.weight.val()), values(layer.weight.val()));
    }
}

#[test]
fn rules_skip_and_list_unknown_parameters() {
    let all = || Compression::new().quantize(Quantize::new("**", "int8").unwrap());
    let left: Vec<String> = all().left_alone(&net()).unwrap().into_iter().map(|(path, _)| path).collect();
    let unknown = ["embedding.cls", "embedding.pos", "embedding.scale", "wide.weight", "square.weight", "raw"];
    assert_eq!(left, unknown);
    let attached = all().attach(net()).unwrap();
    assert_eq!(decisions(&attached).unwrap().into_keys().collect::<Vec<_>>(), ["up.weight", "wave.weight"]);
    let error = Compression::new().prune(Prune::new("*.scale", 0.5).unwrap()).attach(net()).unwrap_err().to_string();
    assert!(error.contains("unknown role") && error.contains("embedding.scale") && error.contains("roles"), "{error}");
    // A rule with the exact path includes the parameter.
    let named = Compression::new().prune(Prune::new("raw", 0.5).unwrap()).attach(net()).unwrap();
    assert_eq!(briquette_nn::sparsity(&named).unwrap()["raw"].n_zeros, 96);
    let assigned = all().roles(Roles::new().linear("raw", OutputAxis::Last).unwrap().leave("embedding.*").unwrap());
    let attached = assigned.attach(net()).unwrap();
    assert_eq!(decisions(&attached).unwrap()["raw"].quant.as_ref().unwrap().affines.len(), 6);
    assert!(!assigned.left_alone(&net()).unwrap().iter().any(|(path, _)| path == "raw"));
}

#[test]
fn transposed_convolutions_have_a_scale_per_output_and_patterns_along_inputs() {
    let device = Device::flex();
    let layer = || ConvTranspose2dConfig::new([8, 6], [2, 3]).init(&device);
    let rules = Compression::new()
        .prune(Prune::n_of_m("weight", 2, 4).unwrap())
        .quantize(Quantize::new("weight", "int8").unwrap());
    let up = rules.attach(layer()).unwrap();
    let decision = &decisions(&up).unwrap()["weight"];
    assert_eq!(decision.mask.as_ref().unwrap().dim(), (6, 48));
    assert_eq!(decision.quant.as_ref().unwrap().affines.len(), 6);
    let own = values(up.weight.base());
    let rows = parameters(&up)[0].rows();
    let by_row: Vec<f32> = (0..6)
        .flat_map(|row| (0..48).map(move |col| (row, col)))
        .map(|(row, col)| own[(col / rows.run * 6 + row) * rows.run + col % rows.run])
        .collect();
    let expected = fake_quantize(&by_row, 6, 48, decision);
    for four in expected.chunks(4) {
        assert!(four.iter().filter(|value| **value != 0.0).count() <= 2, "two of four neighbouring inputs: {four:?}");
    }
    let found = values(up.weight.val());
    for row in 0..6 {
        for col in 0..48 {
            let value = found[(col / rows.run * 6 + row) * rows.run + col % rows.run];
            assert_eq!(value.to_bits(), expected[row * 48 + col].to_bits(), "{row} {col}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    Export::to(dir.path().join("up")).write(&up).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("up")).unwrap();
    let back = load_into(layer(), &checkpoint, &NameMap::torch()).unwrap();
    assert_eq!(values(back.weight.val()), found);
    let groups = Compression::new().quantize(Quantize::new("weight", "int4-g4").unwrap());
    let error = groups.attach(layer()).unwrap_err().to_string();
    assert!(error.contains("transposed convolution"), "{error}");
}

#[test]
fn own_layers_declare_roles_without_affecting_burns_layers_of_the_same_name() {
    let ones = own::Linear { weight: random([8, 32]), bias: None };
    let both = (ones, burn::nn::LinearConfig::new(32, 8).with_bias(false).init(&Device::flex()));
    let rules =
        Compression::new().roles(Roles::new().layer::<own::Linear>()).prune(Prune::n_of_m("**.weight", 2, 4).unwrap());
    let attached = rules.attach(both).unwrap();
    let (own, burns) = (values(attached.0.weight.val()), values(attached.1.weight.val()));
    for (out, group) in (0..8).flat_map(|out| (0..8).map(move |group| (out, group))) {
        let inputs = || 4 * group..4 * group + 4;
        assert_eq!(inputs().filter(|input| own[out * 32 + input] != 0.0).count(), 2, "its rows are outputs");
        assert_eq!(inputs().filter(|input| burns[input * 8 + out] != 0.0).count(), 2, "burn's columns are outputs");
    }
    let dir = tempfile::tempdir().unwrap();
    Export::to(dir.path().join("out")).write(&attached).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("out")).unwrap();
    let shape = |name: &str| checkpoint.tensors().iter().find(|info| info.name == name).unwrap().shape.0.clone();
    assert_eq!(
        [shape("0.weight"), shape("1.weight")],
        [[8, 32], [8, 32]],
        "burn's weight is transposed, the other is not"
    );
}

#[test]
fn own_recurrent_structs_may_compute_in_any_type() {
    #[derive(Module, Debug)]
    struct Lstm {
        gate: burn::nn::Linear,
    }
    let lstm = Lstm { gate: burn::nn::LinearConfig::new(4, 4).init(&Device::flex()) };
    let rules = Compression::new().compute_in(burn::tensor::FloatDType::BF16);
    assert!(rules.attach(lstm).is_ok());
}
