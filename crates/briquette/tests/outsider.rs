//! Uses the library in training code with a network of unknown architecture.
//!
//! Checks what the README promises about masks, optimizers, resuming, exports and codes.

#[path = "../../briquette-nn/tests/fixture/seeded.rs"]
mod seeded;

use briquette::core::OutputAxis;
use briquette::formats::Checkpoint;
use briquette::nn::layers;
use briquette::nn::{Compression, DynamicSpec, Export, NameMap, Prune, Quantize, Roles, Schedule};
use briquette::nn::{decisions, held, load_into, parameters, quantize_dynamic, sparsity};
use burn::module::{Module, Param};
use burn::nn::conv::{Conv1d, Conv1dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::{Embedding, EmbeddingConfig, Gelu, Linear, LinearConfig, Lstm, LstmConfig, Relu};
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::store::ModuleRecord;
use burn::tensor::{Device, Int, Tensor, TensorData};
use seeded::seeded;

/// A network of burn layers and bare parameters.
#[derive(Module, Debug)]
struct Outsider {
    table: Embedding,
    wave: Conv1d,
    memory: Lstm,
    up: ConvTranspose2d,
    stem: Stem,
    gelu: Gelu,
    /// Used as `x.matmul(mix)`.
    mix: Param<Tensor<2>>,
    /// A single number.
    gain: Param<Tensor<1>>,
    /// Has the values of the table, transposed.
    head: Linear,
}

#[derive(Module, Debug)]
enum Stem {
    Dense(Linear),
    Direct(Relu),
}

const N_WORDS: usize = 24;
const WIDTH: usize = 16;

impl Outsider {
    fn new(seed: u64, device: &Device) -> Self {
        let net = Self {
            wave: Conv1dConfig::new(WIDTH, WIDTH, 3).init(device),
            memory: LstmConfig::new(WIDTH, WIDTH, true).init(device),
            up: ConvTranspose2dConfig::new([1, 2], [2, 2]).init(device),
            stem: Stem::Dense(LinearConfig::new(WIDTH, WIDTH).init(device)),
            gelu: Gelu::new(),
            mix: Param::from_tensor(Tensor::zeros([2 * (WIDTH + 1), WIDTH], device)),
            gain: Param::from_data([1.5], device),
            table: EmbeddingConfig::new(N_WORDS, WIDTH).init(device),
            head: LinearConfig::new(WIDTH, N_WORDS).with_bias(false).init(device),
        };
        let mut net = seeded(net, seed);
        net.head.weight = Param::from_tensor(net.table.weight.val().transpose().detach());
        net
    }

    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let x = self.wave.forward(self.table.forward(ids).swap_dims(1, 2)).swap_dims(1, 2);
        let (x, _) = self.memory.forward(x, None);
        let x = match &self.stem {
            Stem::Dense(linear) => self.gelu.forward(linear.forward(x)),
            Stem::Direct(relu) => relu.forward(x),
        };
        let [batch, length, _] = x.dims();
        let grown = self.up.forward(x.unsqueeze_dim(1)); // [batch, 2, length + 1, width + 1]
        let grown = grown.slice([0..batch, 0..2, 0..length]).swap_dims(1, 2).reshape([batch, length, 2 * (WIDTH + 1)]);
        let mixed = grown.matmul(self.mix.val().unsqueeze()) * self.gain.val().reshape([1, 1, 1]);
        self.head.forward(mixed)
    }
}

fn ids(device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = (0..40).map(|i| (i * 7 + i / 5) % N_WORDS as i64).collect();
    Tensor::from_data(TensorData::new(ids, [4, 10]), device)
}

/// The user's training loop with one added line: `refresh`.
fn train(
    mut net: Outsider,
    optimizer: &mut ModuleOptimizer,
    rules: &Compression,
    steps: std::ops::RangeInclusive<usize>,
) -> Outsider {
    let device = Device::flex().autodiff();
    for step in steps {
        let output = net.forward(ids(&device));
        let loss = (output - Tensor::ones([4, 8, N_WORDS], &device)).powi_scalar(2).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(0.01, net, grads);
        net = rules.refresh(net, step).unwrap();
    }
    net
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

fn rules() -> Compression {
    let roles = Roles::new().linear("mix", OutputAxis::Last).unwrap();
    let schedule = Schedule::cubic(0..6).every(2);
    Compression::new()
        .roles(roles)
        .prune(Prune::new("**", 0.8).unwrap().exclude("{table,head}.**").unwrap().globally().on(schedule))
        .quantize(Quantize::new("{wave,up,stem.**}.weight", "int8").unwrap().on(Schedule::constant(0..9).every(3)))
        .quantize(Quantize::new("mix", "int4").unwrap())
}

#[test]
fn pruned_weights_stay_zero_with_any_optimizer() {
    let optimizers: [(&str, ModuleOptimizer); 3] = [
        ("adam", AdamConfig::new().init()),
        ("adamw", AdamWConfig::new().with_weight_decay(0.1).init()),
        ("sgd", SgdConfig::new().init()),
    ];
    for (name, mut optimizer) in optimizers {
        let net = rules().attach(Outsider::new(1, &Device::flex().autodiff())).unwrap();
        let net = train(net, &mut optimizer, &rules(), 1..=9);
        let found = sparsity(&net).unwrap();
        let pruned = |path: &String| {
            let rank = parameters(&net).iter().find(|found| found.path == *path).unwrap().shape.rank();
            rank > 1 && !path.starts_with("table") && !path.starts_with("head")
        };
        let all: briquette::nn::Sparsity =
            found.iter().filter(|(path, _)| pruned(path)).map(|(_, sparsity)| *sparsity).sum();
        assert!((all.ratio() - 0.8).abs() < 0.05, "{name}: {}", all.ratio());
        let dropped: usize = decisions(&net)
            .unwrap()
            .values()
            .filter_map(|decision| decision.mask.as_ref())
            .map(|mask| mask.dim().0 * mask.dim().1 - mask.n_kept())
            .sum();
        assert_eq!(
            dropped,
            (0.8 * all.n_weights as f64).round() as usize,
            "{name}: the mask has exactly the requested sparsity"
        );
        assert_eq!((found["table.weight"].n_zeros, found["gain"].n_weights), (0, 1), "{name}");
    }
}

#[test]
fn training_resumes_exactly() {
    let device = Device::flex().autodiff();
    let new = || -> ModuleOptimizer { AdamConfig::new().init() };
    let start = || rules().attach(Outsider::new(2, &device)).unwrap();
    let (mut straight, mut first) = (new(), new());
    let expected = train(start(), &mut straight, &rules(), 1..=8);
    let half = train(start(), &mut first, &rules(), 1..=5);
    let dir = tempfile::tempdir().unwrap();
    half.save_file(dir.path().join("half.bpk")).unwrap();
    let record = first.to_record();
    let mut second = new().load_record(record);
    let half = rules().load(Outsider::new(3, &device), dir.path().join("half.bpk")).unwrap();
    let resumed = train(half, &mut second, &rules(), 6..=8);
    assert_eq!(decisions(&resumed).unwrap(), decisions(&expected).unwrap());
    assert_eq!(bits(resumed.forward(ids(&device))), bits(expected.forward(ids(&device))));
}

#[test]
fn an_exported_module_loads_with_the_trained_values() {
    let (device, dir) = (Device::flex().autodiff(), tempfile::tempdir().unwrap());
    let net = rules().attach(Outsider::new(4, &device)).unwrap();
    let net = train(net, &mut SgdConfig::new().init(), &rules(), 1..=9).valid();
    let names = NameMap::torch().roles(Roles::new().linear("mix", OutputAxis::Last).unwrap());
    Export::to(dir.path().join("out")).names(names.clone()).write(&net).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("out")).unwrap();
    let back = load_into(Outsider::new(5, &Device::flex()), &checkpoint, &names).unwrap();
    assert_eq!(bits(back.forward(ids(&Device::flex()))), bits(net.forward(ids(&Device::flex()))));
    // One scale per output, on whichever axis outputs are.
    let scales = |path: &str| decisions(&net).unwrap()[path].quant.as_ref().unwrap().affines.len();
    assert_eq!([scales("up.weight"), scales("mix"), scales("wave.weight")], [2, WIDTH, WIDTH]);
}

#[test]
fn codes_are_saved_and_loaded_and_slow_layers_are_listed() {
    let device = Device::flex();
    let net = Outsider::new(6, &device);
    let plain = net.forward(ids(&device));
    let refused = quantize_dynamic(net.clone(), &DynamicSpec::new()).unwrap_err().to_string();
    assert!(refused.contains("it would be slower than floats") && refused.contains("with_slower"), "{refused}");
    let quantized = quantize_dynamic(net, &DynamicSpec::new().with_slower()).unwrap();
    assert!(quantized.decoded().contains(&"head.weight"), "burn's own layers do not run on codes");
    assert!(quantized.warning().unwrap().contains("briquette::nn::layers"));
    let net = quantized.module.clone();
    assert!(held(&net)["f32"].paths.contains(&"mix".to_string()), "its role is unknown");
    assert!(quantized.left["mix"].contains("DynamicSpec::roles"), "{:?}", quantized.left);
    let apart = (net.forward(ids(&device)) - plain).abs().max().into_scalar::<f32>();
    assert!(apart < 0.1, "{apart}");
    let expected = bits(net.forward(ids(&device)));
    let bytes = net.into_record().into_bytes().unwrap();
    let other = quantize_dynamic(Outsider::new(7, &device), &DynamicSpec::new().with_slower()).unwrap().module;
    let loaded = other.try_load_record(ModuleRecord::from_bytes(bytes).unwrap()).unwrap();
    assert_eq!(bits(loaded.forward(ids(&device))), expected);
    let fast = layers::LinearConfig::new(64, 64).init(&device);
    assert!(quantize_dynamic(fast, &DynamicSpec::new()).unwrap().warning().is_none());
}
