//! Measures the speed of the kernels: medians over rounds of calls, with rotating weights that no cache holds.

use crate::Options;
use crate::findings::Finding;
use crate::graphs::filled;
use crate::kernels::{codes, floats, numbers};
use briquette::models::{CacheType, Decoder, GraphNet};
use briquette::nn::{DynamicSpec, ToDType, quantize_dynamic};
use briquette_cuda::{BF16, DeviceEpilogue, ElemType, F32, Floats, Gpu, Int8, WAYS};
use briquette_ops::compressed::gpu_of;
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, TensorData, bf16};
use std::time::Instant;

/// More bytes than the L2 cache of any GPU.
const ROTATED: usize = 256 << 20;
const ROUNDS: usize = 15;

/// Times products by each kernel.
pub(crate) fn kernels(device: &Device, _: &Device, _: &Options) -> Vec<Finding> {
    let gpu = gpu_of(device).expect("a CUDA device");
    let mut found = Vec::new();
    for [m, n] in [[4096, 4096], [1024, 11008]] {
        for is_sparse in [false, true] {
            let weights = copies(&gpu, [n, 4096], is_sparse);
            let x = inputs(&gpu, m, F32);
            for way in WAYS {
                // Some kernels accept neither every shape nor every device.
                let by = |weights: &Int8| weights.linear_by(way, &x, false, &DeviceEpilogue::default());
                if by(&weights[0]).is_ok() {
                    found.push(timed_product(device, &weights, &x, &format!(", by {way}"), &|weights| {
                        drop(by(weights))
                    }));
                }
            }
        }
    }
    found
}

/// Times products by the kernel that the tuner chooses.
pub(crate) fn products(device: &Device, _: &Device, _: &Options) -> Vec<Finding> {
    let gpu = gpu_of(device).expect("a CUDA device");
    let mut found = Vec::new();
    // Products of few columns take about as long as rounding their inputs to codes.
    for (n, rows) in [(256, &[4096][..]), (4096, &[4096]), (11008, &[512, 1024, 2048, 4096])] {
        for is_sparse in [false, true] {
            let weights = copies(&gpu, [n, 4096], is_sparse);
            for (&m, dtype) in rows.iter().flat_map(|m| [(m, F32), (m, BF16)]) {
                let x = inputs(&gpu, m, dtype);
                let chosen = |weights: &Int8| drop(weights.linear(&x, false, &DeviceEpilogue::default()));
                found.push(timed_product(device, &weights, &x, "", &chosen));
            }
        }
    }
    found
}

/// Times a network of the sizes of MiniLM on short and long texts: with int8 codes, and with burn's operations in bf16.
pub(crate) fn minilm(device: &Device, _: &Device, _: &Options) -> Vec<Finding> {
    let config = serde_json::json!({
        "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536, "max_position_embeddings": 512
    });
    let network = filled(GraphNet::random(config.as_object().expect("an object"), device).expect("a BERT"));
    let int8 = quantize_dynamic(network.clone(), &DynamicSpec::new().dense()).expect("int8").module;
    let mut found = Vec::new();
    for (name, network) in [("int8", int8), ("burn bf16", network.bfloat16())] {
        for shape in [[256, 128], [64, 512]] {
            let n = shape.iter().product();
            let ids: Vec<i32> = numbers(n, 3).map(|bits| (bits % 30_000) as i32).collect();
            let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), device);
            let padding = Tensor::<2, Bool>::from_data(TensorData::new(vec![false; n], shape), device);
            let time = seconds(&|| device.sync().unwrap(), |_| finish(network.encode(ids.clone(), padding.clone())));
            let [texts, tokens] = shape;
            found.push(Finding::figure(format!("MiniLM, {texts} texts of {tokens} tokens, {name}"), time * 1e3, "ms"));
        }
    }
    found
}

/// Times ResNet-152 with int8 codes on 32 images.
pub(crate) fn resnet(device: &Device, _: &Device, _: &Options) -> Vec<Finding> {
    let config = serde_json::json!({ "model_type": "resnet152" });
    let network = filled(GraphNet::random(config.as_object().expect("an object"), device).expect("a ResNet"));
    let int8 = quantize_dynamic(network, &DynamicSpec::new().dense()).expect("int8").module;
    let images = Tensor::<4>::random([32, 3, 224, 224], Distribution::Uniform(-1.0, 1.0), device);
    let time = seconds(&|| device.sync().unwrap(), |_| finish(int8.classify(images.clone())));
    vec![Finding::figure("ResNet-152, 32 images, int8", time * 1e3, "ms")]
}

/// Times tokens of a decoder with the sizes of SmolLM2-135M, after a prompt of 128 tokens.
pub(crate) fn decoder(device: &Device, _: &Device, _: &Options) -> Vec<Finding> {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true
    });
    let network = filled(GraphNet::random(config.as_object().expect("an object"), device).expect("a Llama"));
    let int8 = quantize_dynamic(network.clone(), &DynamicSpec::new()).expect("int8").module;
    let time = |(name, network): (&str, GraphNet)| {
        let mut caches = [network.key_values(CacheType::F32)];
        let prompt: Vec<i32> = numbers(128, 5).map(|bits| (bits % 49_000) as i32).collect();
        let mut next = Tensor::<2, Int>::from_data(TensorData::new(prompt, [1, 128]), device);
        let mut ms = Vec::new();
        for _ in 0..80 {
            let start = Instant::now();
            let state = network.next_state(next, &mut caches);
            let last = state.dims()[1] - 1;
            let id = network
                .scores(state.slice_dim(1, last..last + 1))
                .flatten::<1>(0, 2)
                .argmax(0)
                .into_data()
                .iter::<i32>()
                .next()
                .expect("an id");
            next = Tensor::from_data([[id]], device);
            ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        // The first ones compile and choose kernels.
        let mut ms = ms.split_off(16);
        ms.sort_by(f64::total_cmp);
        Finding::figure(format!("a token of SmolLM2-135M, {name}"), ms[ms.len() / 2], "ms")
    };
    [("int8", int8), ("burn f32", network)].map(time).into()
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

/// Returns `m` rows of 4096 random values.
fn inputs(gpu: &Gpu, m: usize, dtype: ElemType) -> Floats {
    let values = floats(m * 4096, 3);
    let buffer = match dtype {
        F32 => gpu.copy(&values),
        _ => gpu.copy(&values.iter().map(|&value| bf16::from_f32(value)).collect::<Vec<_>>()),
    };
    Floats { buffer, dtype, n_rows: m, n_cols: 4096 }
}

fn timed_product(device: &Device, weights: &[Int8], x: &Floats, by: &str, product: &dyn Fn(&Int8)) -> Finding {
    let shape = [x.n_rows, weights[0].n_out(), weights[0].n_in()];
    let kind = if weights[0].is_sparse() { "50 % sparse int8" } else { "int8" };
    let dtype = if x.dtype == F32 { "" } else { " in bf16" };
    let time = seconds(&|| device.sync().unwrap(), |i| product(&weights[i % weights.len()]));
    Finding::figure(format!("{kind} linear{dtype} {shape:?}{by}"), tops(shape, time), "TOP/s")
}

/// Waits for an output: burn does not compute what nothing reads.
fn finish<const D: usize>(output: Tensor<D>) {
    drop(output.slice([(); D].map(|()| 0..1)).into_data());
}

/// Measures products of one and of eight rows, in bytes of weights per second.
pub(crate) fn few_rows(device: &Device, _: &Device, _: &Options) -> Vec<Finding> {
    let gpu = &gpu_of(device).expect("a CUDA device");
    let sync = &|| device.sync().unwrap();
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
