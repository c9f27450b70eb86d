//! Measures the speed of the kernels: medians over rounds of calls, with rotating weights that no cache holds.

use crate::Options;
use crate::findings::Finding;
use crate::kernels::{codes, floats, numbers};
use briquette::formats::Checkpoint;
use briquette::models::LoadedModel;
use briquette::nn::ToDType;
use briquette_cuda::{DeviceEpilogue, F32, Floats, Gpu, Int8, WAYS};
use briquette_ops::compressed::gpu_of;
use burn::module::Module;
use burn::tensor::{Bool, Device, Distribution, FloatDType, Int, Tensor, TensorData};
use std::time::Instant;

/// More bytes than the L2 cache of any GPU.
const ROTATED: usize = 256 << 20;
const ROUNDS: usize = 15;

pub(crate) fn measure(device: &Device, options: &Options) -> Vec<Finding> {
    let gpu = gpu_of(device).expect("a CUDA device");
    let sync = || device.sync().unwrap();
    let mut found = vec![copy_bandwidth(device)];
    for [m, n, k] in
        [[4096, 4096, 4096], [512, 11008, 4096], [1024, 11008, 4096], [2048, 11008, 4096], [4096, 11008, 4096]]
    {
        found.extend(products(&gpu, &sync, [m, n, k]));
        found.push(bf16_product(device, [m, n, k]));
    }
    found.extend(few_rows(&gpu, &sync));
    found.extend(minilm(device, options));
    found
}

/// Times MiniLM on 256 texts of 128 tokens: with int8 codes, and with burn's operations in bf16.
fn minilm(device: &Device, options: &Options) -> Vec<Finding> {
    let shape = [256, 128];
    let n = shape.iter().product();
    let ids: Vec<i32> = numbers(n, 3).map(|bits| (bits % 30_000) as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), device);
    let padding = Tensor::<2, Bool>::from_data(TensorData::new(vec![false; n], shape), device);
    let checkpoint = Checkpoint::open(options.minilm.as_ref()).expect("MiniLM as an int8 directory");
    let load = |device: &Device| LoadedModel::load(&checkpoint, None, device).expect("MiniLM").network;
    let bf16 = load(&device.clone().autodiff()).valid().bfloat16();
    let mut found = Vec::new();
    for (name, network) in [("int8", load(device)), ("burn bf16", bf16)] {
        let time = seconds(&|| device.sync().unwrap(), |_| drop(network.encode(ids.clone(), padding.clone())));
        found.push(Finding::figure(format!("MiniLM, 256 texts of 128 tokens, {name}"), time * 1e3, "ms"));
    }
    found
}

/// Returns the median seconds of a call; each round repeats the call for about 20 ms.
fn seconds(sync: &impl Fn(), mut call: impl FnMut(usize)) -> f64 {
    (0..3).for_each(&mut call);
    sync();
    let start = Instant::now();
    (0..3).for_each(&mut call);
    sync();
    let n = (0.02 / (start.elapsed().as_secs_f64() / 3.0)).ceil().clamp(3.0, 2000.0) as usize;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..n).for_each(&mut call);
            sync();
            start.elapsed().as_secs_f64() / n as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn tops([m, n, k]: [usize; 3], seconds: f64) -> f64 {
    2.0 * (m * n * k) as f64 / seconds / 1e12
}

/// Returns copies of weights `[n, k]` that together exceed the caches.
fn copies(gpu: &Gpu, [n, k]: [usize; 2], is_sparse: bool) -> Vec<Int8> {
    let (codes, scales) = (codes(n * k, 1), floats(n, 2));
    (0..(ROTATED / (n * k)).clamp(2, 16)).map(|_| Int8::new(gpu, &codes, &scales, [n, k], is_sparse)).collect()
}

fn products(gpu: &Gpu, sync: &impl Fn(), shape @ [m, n, k]: [usize; 3]) -> Vec<Finding> {
    let x = Floats { buffer: gpu.copy(&floats(m * k, 3)), dtype: F32, n_rows: m, n_cols: k };
    let mut found = Vec::new();
    for is_sparse in [false, true] {
        let weights = copies(gpu, [n, k], is_sparse);
        let kind = if is_sparse { "50 % sparse int8" } else { "int8" };
        let mut measure = |name: String, product: &dyn Fn(&Int8)| {
            let time = seconds(sync, |i| product(&weights[i % weights.len()]));
            found.push(Finding::figure(format!("{kind} linear {shape:?}{name}"), tops(shape, time), "TOP/s"));
        };
        for way in WAYS {
            // CubeK's kernels do not accept every shape.
            if weights[0].linear_by(way, &x, false, &DeviceEpilogue::default()).is_ok() {
                let by = |weights: &Int8| drop(weights.linear_by(way, &x, false, &DeviceEpilogue::default()));
                measure(format!(", by {way}"), &by);
            }
        }
        measure(String::new(), &|weights| drop(weights.linear(&x, false, &DeviceEpilogue::default())));
    }
    found
}

/// Times burn's own bf16 matrix product.
fn bf16_product(device: &Device, shape @ [m, n, k]: [usize; 3]) -> Finding {
    let random =
        |shape: [usize; 2]| Tensor::<2>::random(shape, Distribution::Uniform(-1.0, 1.0), device).cast(FloatDType::BF16);
    let (a, b) = (random([m, k]), random([k, n]));
    let time = seconds(&|| device.sync().unwrap(), |_| drop(a.clone().matmul(b.clone())));
    Finding::figure(format!("burn bf16 matmul {shape:?}"), tops(shape, time), "TOP/s")
}

/// Measures products of one and of eight rows, in bytes of weights per second.
fn few_rows(gpu: &Gpu, sync: &impl Fn()) -> Vec<Finding> {
    let (n, k) = (11008, 4096);
    let mut found = Vec::new();
    for rows in [1, 8] {
        let x = Floats { buffer: gpu.copy(&floats(rows * k, 4)), dtype: F32, n_rows: rows, n_cols: k };
        for is_sparse in [false, true] {
            let weights = copies(gpu, [n, k], is_sparse);
            let kind = if is_sparse { "50 % sparse" } else { "dense" };
            let rate = |time: f64| (n * k) as f64 / time / 1e9;
            let time = seconds(sync, |i| drop(weights[i % weights.len()].weight_only(&x, None)));
            found.push(Finding::figure(
                format!("weight-only int8, {kind}, M = {rows}, 4096x11008"),
                rate(time),
                "GB/s",
            ));
            let time =
                seconds(sync, |i| drop(weights[i % weights.len()].linear(&x, false, &DeviceEpilogue::default())));
            found.push(Finding::figure(format!("int8 dynamic, {kind}, M = {rows}, 4096x11008"), rate(time), "GB/s"));
        }
    }
    found
}

/// Measures the bytes that a copy reads and writes per second.
fn copy_bandwidth(device: &Device) -> Finding {
    let n = 256 << 20;
    let x = Tensor::<1>::ones([n], device);
    let time = seconds(&|| device.sync().unwrap(), |_| drop(x.clone() * 2.0));
    Finding::figure("copy of 1 GiB (read and written)", 2.0 * 4.0 * n as f64 / time / 1e9, "GB/s")
}
