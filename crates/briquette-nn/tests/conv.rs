//! Tests convolutions on codes.

use briquette_cpu::OutputBounds;
use briquette_formats::Checkpoint;
use briquette_nn::layers::{After, Conv2d, Conv2dConfig, Then};
use briquette_nn::{Compression, DynamicSpec, Export, NameMap, Prune, Quantize};
use briquette_nn::{held, load_compressed, load_into, quantize_dynamic};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, PaddingConfig2d};
use burn::tensor::{Device, Distribution, FloatDType, Tensor};

#[derive(Module, Debug)]
struct Net {
    first: Conv2d,
    norm: BatchNorm,
    last: Conv2d,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: Conv2dConfig::new([3, 64], [3, 3]).with_padding(PaddingConfig2d::Same).init(device),
            norm: BatchNormConfig::new(64).init(device),
            last: Conv2dConfig::new([64, 64], [3, 3])
                .with_stride([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 0, 2, 1))
                .with_bias(false)
                .init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.last.forward(self.first.forward_then(x, After::Norm(&self.norm), relu_after()))
    }
}

fn images() -> Tensor<4> {
    Tensor::random([2, 3, 13, 17], Distribution::Normal(0.0, 1.0), &Device::flex())
}

/// Returns the largest difference, relative to the largest value.
fn apart<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> f32 {
    let largest = a.clone().abs().max().into_scalar::<f32>();
    (a - b).abs().max().into_scalar::<f32>() / largest
}

#[test]
fn convolutions_equal_burns_convolution() {
    let device = Device::flex();
    for padding in [PaddingConfig2d::Valid, PaddingConfig2d::Same, PaddingConfig2d::Explicit(0, 1, 2, 1)] {
        let like = burn::nn::conv::Conv2dConfig::new([4, 6], [3, 2])
            .with_stride([2, 1])
            .with_groups(2)
            .with_padding(padding.clone())
            .init(&device);
        let mut ours =
            Conv2dConfig::new([4, 6], [3, 2]).with_stride([2, 1]).with_groups(2).with_padding(padding).init(&device);
        (ours.weight, ours.bias) = (like.weight.clone(), like.bias.clone());
        let x = Tensor::<4>::random([2, 4, 9, 8], Distribution::Default, &device);
        assert_eq!(ours.forward(x.clone()).into_data(), like.forward(x.clone()).into_data());
        assert_eq!(format!("{ours}"), format!("{like}"));
        let codes = quantize_dynamic(ours, &DynamicSpec::new()).unwrap().module;
        assert!(apart(like.forward(x.clone()), codes.forward(x)) < 0.03);
    }
}

#[test]
fn dynamic_int8_is_close_small_and_can_be_materialized() {
    let model = Net::new(&Device::flex());
    let plain = model.forward(images());
    let floats = held(&model)["f32"].n_bytes;
    let rules = Compression::new().prune(Prune::new("last.weight", 0.5).unwrap());
    let pruned = rules.attach(model.clone()).unwrap().materialize();
    let model = quantize_dynamic(model, &DynamicSpec::new()).unwrap().module;
    assert_eq!(held(&model)["int8"].n_tensors, 2);
    assert!(held(&model).values().map(|held| held.n_bytes).sum::<usize>() * 3 < floats, "{:?}", held(&model));
    let quick = model.forward(images());
    assert_eq!(plain.dims(), quick.dims());
    assert_eq!(model.clone().valid().forward(images()).dims(), quick.dims());
    let undone = model.materialize();
    assert_eq!(held(&undone).len(), 1);
    let x = images();
    assert!(
        apart(undone.forward(x.clone()), quantize_dynamic(undone, &DynamicSpec::new()).unwrap().module.forward(x))
            < 0.05
    );
    let sparse = quantize_dynamic(pruned.clone(), &DynamicSpec::new()).unwrap().module;
    let dense = quantize_dynamic(pruned, &DynamicSpec::new().dense()).unwrap().module;
    assert_eq!(held(&sparse)["sparse int8"].n_tensors, 1);
    let x = images();
    assert_eq!(sparse.forward(x.clone()).into_data(), dense.forward(x).into_data());
}

#[test]
fn grouped_convolutions_run_on_codes() {
    let device = Device::flex();
    for (channels, groups) in [([8, 8], 8), ([8, 4], 2), ([4, 64], 2), ([6, 12], 6)] {
        let conv = Conv2dConfig::new(channels, [3, 3]).with_groups(groups).init(&device);
        let x = Tensor::<4>::random([2, channels[0], 7, 9], Distribution::Default, &device);
        let plain = conv.forward(x.clone());
        let codes = quantize_dynamic(conv, &DynamicSpec::new()).unwrap().module;
        assert!(apart(plain, codes.forward(x.clone())) < 0.03, "{channels:?} in {groups}");
        let half = codes.forward(x.cast(FloatDType::F16));
        assert_eq!(half.dtype(), burn::tensor::DType::F16);
    }
}

fn relu_after() -> Then {
    Then { bounds: OutputBounds::Relu, ..Then::default() }
}

/// Returns a batch norm that is not the identity.
fn some_norm(n: usize, device: &Device) -> BatchNorm {
    let random = |low, high| Tensor::<1>::random([n], Distribution::Uniform(low, high), &Device::flex());
    let mut norm = BatchNormConfig::new(n).init(device);
    norm.gamma = norm.gamma.map(|_| random(-2.0, 2.0).to_device(device));
    norm.beta = norm.beta.map(|_| random(-1.0, 1.0).to_device(device));
    norm.running_mean.update(random(-1.0, 1.0));
    norm.running_var.update(random(0.1, 3.0));
    norm
}

#[test]
fn fused_norm_shortcut_and_relu_equal_separate_operations() {
    let device = Device::flex();
    let codes = quantize_dynamic(Conv2dConfig::new([5, 40], [1, 1]).init(&device), &DynamicSpec::new()).unwrap().module;
    let floats = Conv2dConfig::new([5, 40], [3, 3]).with_padding(PaddingConfig2d::Same).init(&device);
    let norm = some_norm(40, &device);
    for conv in [codes, floats] {
        let x = Tensor::<4>::random([2, 5, 6, 7], Distribution::Default, &device);
        let shortcut = Tensor::<4>::random([2, 40, 6, 7], Distribution::Default, &device);
        let plain = norm.forward(conv.forward(x.clone()));
        let relu = burn::tensor::activation::relu::<4>;
        let then = |then: Then| conv.forward_then(x.clone(), After::Norm(&norm), then);
        assert!(apart(plain.clone(), then(Then::default())) < 1e-5);
        assert!(apart(relu(plain.clone()), then(relu_after())) < 1e-5);
        let add = Then { shortcut: Some(shortcut.clone()), ..Then::default() };
        assert!(apart(plain.clone() + shortcut.clone(), then(add.clone())) < 1e-5);
        let (bounds, channels_last) = (OutputBounds::Relu6, true);
        let added = then(Then { bounds, channels_last, ..add });
        assert!(apart((plain.clone() + shortcut.clone()).clamp(0.0, 6.0), added) < 1e-5);
        // A shortcut that is repeated over the image is added in a pass of its own.
        let one = shortcut.clone().narrow(2, 0, 1).narrow(3, 0, 1);
        let repeated = then(Then { shortcut: Some(one.clone()), bounds: OutputBounds::Relu, ..Then::default() });
        assert!(apart(relu(plain + one), repeated) < 1e-5);
        let bias = Tensor::<1>::random([40], Distribution::Default, &device);
        let biased = conv.forward_then(x.clone(), After::Bias(bias.clone()), relu_after());
        assert!(apart(relu(conv.forward(x) + bias.reshape([1, 40, 1, 1])), biased) < 1e-5);
        assert!(shortcut.max().into_scalar::<f32>() <= 1.0, "the shortcut is unchanged");
    }
}

#[test]
fn a_training_norm_uses_batch_statistics_for_constant_inputs_too() {
    let training = Device::flex().autodiff();
    let conv = Conv2dConfig::new([3, 8], [3, 3]).init(&training);
    let norm = some_norm(8, &training);
    for x in [images(), Tensor::from_inner(images())] {
        let expected = norm.forward(Tensor::from_inner(conv.forward(x.clone()).inner()));
        let y = conv.forward_then(x, After::Norm(&norm), Then::default());
        assert!(apart(expected.inner(), y.clone().inner()) < 1e-5);
        let grads = y.powi_scalar(3).sum().backward();
        assert!(conv.weight.val().grad(&grads).is_some());
    }
}

#[test]
fn directories_load_as_codes_with_the_same_values() {
    for (scheme, kind, tolerance) in
        [("int8-dynamic", "int8", 0.05), ("int8-dynamic-sym", "int8", 0.05), ("int8", "int8 as floats", 1e-6)]
    {
        let dir = tempfile::tempdir().unwrap();
        let rules = Compression::new().quantize(Quantize::new("{first,last}.weight", scheme).unwrap());
        let model = rules.attach(Net::new(&Device::flex())).unwrap();
        let out = dir.path().join("model");
        Export::to(&out).names(NameMap::torch()).write(&model).unwrap();
        let checkpoint = Checkpoint::open(&out).unwrap();
        let new = || Net::new(&Device::flex());
        let floats = load_into(new(), &checkpoint, &NameMap::torch()).unwrap();
        let codes = load_compressed(new(), &checkpoint, &NameMap::torch()).unwrap();
        assert_eq!(held(&codes)[kind].n_tensors, 2, "{scheme} {:?}", held(&codes));
        let x = images();
        let apart = apart(floats.forward(x.clone()), codes.forward(x));
        assert!(apart <= tolerance, "{scheme}: {apart}");
        let value = |net: Net| net.materialize().last.weight.val().into_data();
        assert_eq!(value(codes), value(floats), "{scheme}");
    }
}

/// A model of burn's own layers.
#[derive(Module, Debug)]
struct Stock {
    conv: burn::nn::conv::Conv2d,
    head: burn::nn::Linear,
}

#[test]
fn burns_own_layers_decode_their_codes() {
    let device = Device::flex();
    let conv = burn::nn::conv::Conv2dConfig::new([32, 48], [3, 3]).init(&device);
    let model = Stock { conv, head: burn::nn::LinearConfig::new(48, 300).init(&device) };
    let floats = held(&model)["f32"].n_bytes;
    let model = quantize_dynamic(model, &DynamicSpec::new().with_slower()).unwrap().module;
    assert!(held(&model).values().map(|held| held.n_bytes).sum::<usize>() * 3 < floats, "{:?}", held(&model));
    let x = Tensor::<4>::random([1, 32, 5, 5], Distribution::Default, &device);
    let run =
        |model: &Stock| model.head.forward(model.conv.forward(x.clone()).mean_dim(3).mean_dim(2).flatten::<2>(1, 3));
    // The outputs are equal, not just close, since only the weights were quantized.
    assert_eq!(run(&model).into_data(), run(&model.clone().materialize()).into_data());
}
