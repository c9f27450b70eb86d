//! Compares layers with burn's f32 layers and prints a Markdown table.
//!
//! Times int8 and f32 convolutions, max pooling, weight-only int8 and int4, alternating with burn.
//!
//! `bench_layers [--seconds 0.3]`; the number of threads is `RAYON_NUM_THREADS`. A ratio above 1 means that
//! Briquette is faster.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use briquette_cpu::{ActivationGrid, Conv2dShape, OutputBounds, PackedConv2d, PackedInt4, PackedInt8, SparseInt8};
use briquette_ops::compressed::{self, Conv2dCall, LinearWeights, QuantizedConv2d};
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Distribution, Tensor};
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let at = args.iter().position(|arg| arg == "--seconds");
    let seconds = at.map_or(0.3, |at| args[at + 1].parse().unwrap());
    println!("{} thread(s), milliseconds\n", rayon::current_num_threads());
    println!("| operation | Briquette | burn f32 | speedup |");
    println!("|---|---|---|---|");
    // The kinds of convolution in ResNet-152: channels, size, kernel, stride, groups.
    for (n_in, n_out, size, kernel, stride, groups) in [
        (3, 64, 224, 7, 2, 1),
        (64, 64, 56, 3, 1, 1),
        (256, 64, 56, 1, 1, 1),
        (128, 512, 28, 1, 1, 1),
        (256, 256, 14, 3, 1, 1),
        (256, 1024, 14, 1, 1, 1),
        (512, 512, 7, 3, 1, 1),
        (256, 256, 28, 3, 1, 256),
    ] {
        let pad = kernel / 2;
        let shape = Conv2dShape {
            stride: [stride; 2],
            padding: [[pad; 2]; 2],
            groups,
            ..Conv2dShape::new(n_in, n_out, [kernel; 2])
        };
        convolution(shape, size, seconds);
        if groups == 1 && kernel > 1 {
            float_convolution(shape, [1, size], seconds);
        }
    }
    let padded = |n_in, n_out| Conv2dShape { padding: [[1; 2]; 2], ..Conv2dShape::new(n_in, n_out, [3, 3]) };
    for (n_in, n_out) in [(1, 16), (16, 32), (64, 128)] {
        float_convolution(padded(n_in, n_out), [64, 8], seconds);
    }
    max_pool([64, 128, 8, 8], [2, 2, 0], seconds);
    max_pool([1, 64, 112, 112], [3, 2, 1], seconds);
    for (k, n) in [(768, 768), (4096, 4096)] {
        for m in [1, 8, 64, 512] {
            linear(m, k, n, seconds);
        }
    }
}

fn codes(n: usize) -> Vec<i8> {
    (0..n).map(|i| (i * 7919 % 255) as u8 as i8).collect()
}

/// Returns the median times of two alternating calls, in milliseconds.
fn median_times<T>(seconds: f64, mut ours: impl FnMut() -> T, mut theirs: impl FnMut() -> T) -> [f64; 2] {
    let (start, mut times) = (Instant::now(), [Vec::new(), Vec::new()]);
    while times[1].len() < 3 || start.elapsed().as_secs_f64() < seconds {
        for (times, call) in times.iter_mut().zip([&mut ours as &mut dyn FnMut() -> T, &mut theirs]) {
            let start = Instant::now();
            let _kept = call();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.map(|mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}

fn print(what: &str, [ours, theirs]: [f64; 2]) {
    println!("| {what} | {ours:.3} | {theirs:.3} | {:.2} |", theirs / ours);
}

fn convolution(shape: Conv2dShape, size: usize, seconds: f64) {
    let (device, dims) = (Device::flex(), shape.weight_dims());
    let weights = codes(dims.iter().product());
    let packed = PackedConv2d::new(&weights, &vec![0.01; shape.n_out], dims, false).unwrap();
    let weights = QuantizedConv2d::new(packed, ActivationGrid::Asymmetric);
    let call = Conv2dCall {
        weights,
        shape,
        has_scale: false,
        has_shift: false,
        bounds: OutputBounds::None,
        channels_last: false,
    };
    let x = Tensor::<4>::random([1, shape.n_in, size, size], Distribution::Normal(0.0, 1.0), &device);
    let floats = Tensor::<4>::random(dims, Distribution::Normal(0.0, 1.0), &device);
    let pairs = shape.padding.map(|[before, after]| (before, after));
    let options = ConvOptions::new_with_padding(shape.stride, pairs, shape.dilation, shape.groups);
    let times = median_times(
        seconds,
        || compressed::conv2d(x.clone(), None, [None, None], call.clone()),
        || conv2d(x.clone(), floats.clone(), None, options.clone()),
    );
    let [height, width] = shape.kernel;
    let groups = if shape.groups > 1 { format!(", {} groups", shape.groups) } else { String::new() };
    print(&format!("int8 conv {height}x{width}, {} to {}, {size}x{size}{groups}", shape.n_in, shape.n_out), times);
}

/// Times a convolution of some images, with and without gradients.
fn float_convolution(shape: Conv2dShape, [n_images, size]: [usize; 2], seconds: f64) {
    let pairs = shape.padding.map(|[before, after]| (before, after));
    let options = ConvOptions::new_with_padding(shape.stride, pairs, shape.dilation, shape.groups);
    for (device, learns) in [(Device::flex(), ""), (Device::flex().autodiff(), " with gradients")] {
        let random = |dims: [usize; 4]| Tensor::<4>::random(dims, Distribution::Normal(0.0, 1.0), &device);
        let (x, weight) = (random([n_images, shape.n_in, size, size]), random(shape.weight_dims()));
        let (x, weight) = if learns.is_empty() { (x, weight) } else { (x.require_grad(), weight.require_grad()) };
        let end = |y: Tensor<4>| (!learns.is_empty()).then(|| y.sum().backward());
        let times = median_times(
            seconds,
            || end(compressed::float_conv2d(x.clone(), weight.clone(), None, shape)),
            || end(conv2d(x.clone(), weight.clone(), None, options.clone())),
        );
        let (images, [height, width]) =
            (if n_images > 1 { format!("{n_images} x ") } else { String::new() }, shape.kernel);
        print(
            &format!("f32 conv {height}x{width}, {} to {}, {images}{size}x{size}{learns}", shape.n_in, shape.n_out),
            times,
        );
    }
}

fn max_pool(dims: [usize; 4], [kernel, stride, padding]: [usize; 3], seconds: f64) {
    let x = Tensor::<4>::random(dims, Distribution::Normal(0.0, 1.0), &Device::flex());
    let padding = [padding; 2];
    let options =
        MaxPoolOptions { stride: [stride; 2], padding: padding.map(|n| (n, n)), ..MaxPoolOptions::new([kernel; 2]) };
    let times = median_times(
        seconds,
        || compressed::max_pool2d(x.clone(), [kernel; 2], [stride; 2], padding),
        || max_pool2d(x.clone(), options.clone()),
    );
    print(&format!("max pool {kernel}x{kernel} by {stride}, {dims:?}"), times);
}

fn linear(m: usize, k: usize, n: usize, seconds: f64) {
    let device = Device::flex();
    let x = Tensor::<2>::random([m, k], Distribution::Normal(0.0, 1.0), &device);
    let floats = Tensor::<2>::random([k, n], Distribution::Normal(0.0, 1.0), &device);
    let (codes, scales) = (codes(n * k), vec![0.01; n]);
    let half: Vec<i8> = codes.iter().enumerate().map(|(i, code)| if i % 2 == 0 { 0 } else { *code }).collect();
    let fours: Vec<i8> = codes.iter().map(|code| code >> 4).collect();
    let int4 = PackedInt4::new(&fours, &vec![0.01; n * k / 128], n, k, 128);
    let kinds = [
        (
            "int8 dynamic",
            LinearWeights::int8(PackedInt8::new(&codes, &scales, n, k).unwrap(), Some(ActivationGrid::Asymmetric)),
        ),
        ("int8 weight-only", LinearWeights::int8(PackedInt8::new(&codes, &scales, n, k).unwrap(), None)),
        (
            "50 % sparse int8 weight-only",
            LinearWeights::sparse_int8(SparseInt8::new(&half, &scales, n, k).unwrap(), None),
        ),
        ("int4 by 128", LinearWeights::int4(int4)),
    ];
    for (name, weights) in kinds {
        let times = median_times(
            seconds,
            || compressed::linear(x.clone(), &weights, None),
            || x.clone().matmul(floats.clone()),
        );
        print(&format!("{name}, {k}x{n}, M={m}"), times);
    }
}
