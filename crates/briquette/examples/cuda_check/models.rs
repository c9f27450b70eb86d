//! Compares graphs, MiniLM and ResNet-152 on both devices: outputs, and memory of the weights.

use crate::Options;
use crate::findings::Finding;
use crate::graphs::{self, filled};
use crate::kernels::{difference, floats, numbers};
use briquette::formats::Checkpoint;
use briquette::models::memory::device_meters;
use briquette::models::{GraphNet, LoadedModel};
use briquette::nn::{Compression, DynamicSpec, Prune, quantize_dynamic};
use burn::module::Module;
use burn::nn::loss::MseLoss;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::time::Instant;

pub(crate) fn graphs(device: &Device, cpu: &Device, _: &Options) -> Vec<Finding> {
    let finding = |check: graphs::GraphCheck| {
        let name = format!("graph of {}, difference from the CPU", check.name);
        Finding::at_most(name, check.difference, "relative", check.most)
    };
    graphs::compare(device, cpu).into_iter().map(finding).collect()
}

/// Runs `make` and returns its result with the device memory that it left in use, in bytes by meter.
fn with_memory<T>(device: &Device, make: impl FnOnce() -> T) -> (T, Vec<(String, u64)>) {
    device.memory_cleanup();
    device.sync().unwrap();
    let meters = device_meters(device);
    let before: Vec<u64> = meters.iter().map(|meter| meter.live_bytes().unwrap_or(0)).collect();
    let made = make();
    device.sync().unwrap();
    device.memory_cleanup();
    device.sync().unwrap();
    let bytes = meters
        .iter()
        .zip(before)
        .map(|(meter, before)| (meter.name().to_string(), meter.live_bytes().unwrap_or(0).saturating_sub(before)));
    (made, bytes.collect())
}

fn figures(what: &str, bytes: &[(String, u64)]) -> Vec<Finding> {
    bytes.iter().map(|(meter, n)| Finding::figure(format!("{what}: {meter}"), *n as f64 / 1e6, "MB")).collect()
}

fn in_use(bytes: &[(String, u64)]) -> f64 {
    bytes.first().map_or(f64::NAN, |(_, bytes)| *bytes as f64)
}

pub(crate) fn minilm(device: &Device, cpu: &Device, options: &Options) -> Vec<Finding> {
    let checkpoint = Checkpoint::open(options.minilm.as_ref()).expect("MiniLM as an int8 directory");
    let load = |device: &Device| LoadedModel::load(&checkpoint, None, device).expect("MiniLM").network;
    // The f32 network uses the same codes: with autodiff, they are decoded.
    let plain = |device: &Device| {
        let training = device.clone().autodiff();
        LoadedModel::load(&checkpoint, None, &training).expect("MiniLM").network.valid()
    };
    let shape = if options.is_quick { [2, 8] } else { [64, 64] };
    let embed = |network: &GraphNet, device: &Device| {
        let n = shape.iter().product();
        let ids: Vec<i32> = numbers(n, 3).map(|bits| (bits % 30_000) as i32).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), device);
        let padding = Tensor::<2, Bool>::from_data(TensorData::new(vec![false; n], shape), device);
        network.encode(ids, padding).into_data().iter::<f32>().collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    let (network, float_bytes) = with_memory(device, || plain(device));
    let expected = embed(&plain(cpu), cpu);
    found.push(Finding::at_most(
        "MiniLM f32, difference from the CPU",
        difference(&embed(&network, device), &expected),
        "relative",
        1e-2,
    ));
    drop(network);
    found.extend(figures("MiniLM f32", &float_bytes));
    let (network, bytes) = with_memory(device, || load(device));
    let expected = embed(&load(cpu), cpu);
    // A rounded activation may differ by one code if the floats before it differ.
    found.push(Finding::at_most(
        "MiniLM int8, difference from the CPU",
        difference(&embed(&network, device), &expected),
        "relative",
        5e-2,
    ));
    drop(network);
    found.extend(figures("MiniLM int8", &bytes));
    found.push(Finding::at_most("MiniLM int8, memory", in_use(&bytes) / in_use(&float_bytes), "of f32", 0.26));
    let (network, bytes) = with_memory(device, || sparse(plain(device)));
    let expected = embed(&sparse(plain(cpu)), cpu);
    found.push(Finding::at_most(
        "MiniLM 50 % sparse int8, difference from the CPU",
        difference(&embed(&network, device), &expected),
        "relative",
        5e-2,
    ));
    found.extend(figures("MiniLM 50 % sparse int8", &bytes));
    found.push(Finding::at_most(
        "MiniLM 50 % sparse int8, memory",
        in_use(&bytes) / in_use(&float_bytes),
        "of f32",
        0.17,
    ));
    found
}

/// Prunes half of every weight of rank 2 and above, then quantizes to int8.
fn sparse<M: Module>(network: M) -> M {
    let rules = Compression::new().prune(Prune::new("**.weight", 0.5).expect("a rule"));
    let pruned = rules.attach(network).expect("masks").materialize();
    quantize_dynamic(pruned, &DynamicSpec::new()).expect("int8").module
}

pub(crate) fn resnet(device: &Device, cpu: &Device, options: &Options) -> Vec<Finding> {
    let (depth, name, size) = match options.is_quick {
        true => (18, "ResNet-18", 32),
        false => (152, "ResNet-152", 224),
    };
    let config = serde_json::json!({ "model_type": format!("resnet{depth}") });
    let host = filled(GraphNet::random(config.as_object().expect("an object"), cpu).expect("a ResNet"));
    let on_device = || host.clone().fork(device);
    let x = |device: &Device| {
        let shape = [2, 3, size, size];
        Tensor::<4>::from_data(TensorData::new(floats(shape.iter().product(), 5), shape), device)
    };
    let scores = |scores: Tensor<2>| scores.into_data().iter::<f32>().collect::<Vec<_>>();
    let (network, float_bytes) = with_memory(device, on_device);
    let mut found = figures(&format!("{name} f32"), &float_bytes);
    let int8 = |network| quantize_dynamic(network, &DynamicSpec::new().dense()).expect("int8").module;
    drop(network);
    let (network, bytes) = with_memory(device, || int8(on_device()));
    let expected = scores(int8(host.clone()).classify(x(cpu)));
    found.push(Finding::at_most(
        format!("{name} int8, difference from the CPU"),
        difference(&scores(network.classify(x(device))), &expected),
        "relative",
        5e-2,
    ));
    drop(network);
    found.extend(figures(&format!("{name} int8"), &bytes));
    found.push(Finding::at_most(format!("{name} int8, memory"), in_use(&bytes) / in_use(&float_bytes), "of f32", 0.26));
    let (network, bytes) = with_memory(device, || sparse(on_device()));
    let expected = scores(sparse(host.clone()).classify(x(cpu)));
    found.push(Finding::at_most(
        format!("{name} 50 % sparse int8, difference from the CPU"),
        difference(&scores(network.classify(x(device))), &expected),
        "relative",
        5e-2,
    ));
    found.extend(figures(&format!("{name} 50 % sparse int8"), &bytes));
    found.push(Finding::at_most(
        format!("{name} 50 % sparse int8, memory"),
        in_use(&bytes) / in_use(&float_bytes),
        "of f32",
        0.17,
    ));
    found
}

/// Times a distillation step of a smaller encoder and measures its memory. Without dropout, the loss must fall.
pub(crate) fn distill(device: &Device, _: &Device, options: &Options) -> Vec<Finding> {
    let (layers, shape) = if options.is_quick { (2, [2, 8]) } else { (6, [32, 128]) };
    let network = |n_layers: usize, device: &Device| {
        let config = serde_json::json!({
            "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": n_layers,
            "num_attention_heads": 12, "intermediate_size": 1536, "max_position_embeddings": 512,
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0
        });
        filled(GraphNet::random(config.as_object().expect("an object"), device).expect("a BERT"))
    };
    let teacher = network(layers, device);
    let mut student = network(layers / 2, &device.clone().autodiff());
    let mut optimizer = AdamWConfig::new().init();
    let n: usize = shape.iter().product();
    let ids: Vec<i32> = numbers(n, 9).map(|bits| (bits % 30_000) as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), device);
    let padding = Tensor::<2, Bool>::from_data(TensorData::new(vec![false; n], shape), device);
    let (mut ms, mut losses) = (Vec::new(), Vec::new());
    for _ in 0..if options.is_quick { 2 } else { 20 } {
        let start = Instant::now();
        let target = teacher.encode(ids.clone(), padding.clone()).mean_dim(1);
        let embedded = student.encode(ids.clone(), padding.clone()).mean_dim(1);
        let loss = MseLoss::new().forward(embedded, target, burn::nn::loss::Reduction::Mean);
        losses.push(f64::from(loss.clone().into_scalar::<f32>()));
        let grads = GradientsParams::from_grads(loss.backward(), &student);
        student = optimizer.step(1e-4, student, grads);
        device.sync().unwrap();
        ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    ms.sort_by(f64::total_cmp);
    let falls = losses.last().copied().unwrap_or(f64::NAN) / losses[0];
    let mut found = vec![
        Finding::figure(format!("a step of {shape:?}, {layers} to {} layers", layers / 2), ms[ms.len() / 2], "ms"),
        Finding::at_most("last loss, relative to the first", falls, "", 0.999),
    ];
    for meter in device_meters(device) {
        if let Some(peak) = meter.peak_bytes() {
            found.push(Finding::figure(format!("peak: {}", meter.name()), peak as f64 / 1e6, "MB"));
        }
    }
    found
}
