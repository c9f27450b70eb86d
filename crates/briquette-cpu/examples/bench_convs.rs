//! Times static int8 convolutions of two networks and prints a line of JSON for each layer.
//!
//! `bench_convs [--path NAME] [--network mobilenet_v2|resnet18] [--runs 15]`: the least time of a layer, one image of 224 x 224, codes to
//! codes. The number of threads is `RAYON_NUM_THREADS`.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use briquette_cpu::{
    CodeGrid, Conv2dShape, FixedConv2d, ImageCodes, PackedConv2d, SimdLevel, active_level, fixed_conv2d,
};
use std::time::Instant;

const GRID: CodeGrid = CodeGrid { scale: 0.5, zero: 10 };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).map(|at| args[at + 1].as_str());
    let level = value("--path").map_or(active_level(), |name| SimdLevel::named(name).unwrap());
    let n_runs = value("--runs").map_or(15, |runs| runs.parse().unwrap());
    let network = value("--network").unwrap_or("mobilenet_v2");
    let layers = if network == "resnet18" { resnet18() } else { mobilenet_v2() };
    let mut totals = [0.0; 2];
    for (shape, size) in layers {
        let seconds = least_time(level, shape, size, n_runs);
        let is_depthwise = shape.groups > 1;
        let [n_in, n_out, kernel, stride] = [shape.n_in, shape.n_out, shape.kernel[0], shape.stride[0]];
        println!(
            "{{\"in\":{n_in},\"out\":{n_out},\"kernel\":{kernel},\"stride\":{stride},\"depthwise\":{is_depthwise},\"size\":{size},\"ms\":{:.4}}}",
            seconds * 1e3
        );
        totals[usize::from(is_depthwise)] += seconds * 1e3;
    }
    let [dense, depthwise] = totals;
    println!("{{\"network\":\"{network}\",\"path\":\"{level}\",\"ms\":{dense:.3},\"depthwise_ms\":{depthwise:.3}}}");
}

/// Returns the least time of some runs of a layer, in seconds.
fn least_time(level: SimdLevel, shape: Conv2dShape, size: usize, n_runs: usize) -> f64 {
    let n_weights: usize = shape.weight_dims().iter().product();
    let codes: Vec<i8> = (0..n_weights).map(|i| ((i * 7919 + 13) % 255) as u8 as i8).collect();
    let weights = PackedConv2d::new(&codes, &vec![0.001; shape.n_out], shape.weight_dims(), false).unwrap();
    let (factors, bias) = (vec![1.0; shape.n_out], vec![0.1; shape.n_out]);
    let conv = FixedConv2d {
        weights: &weights,
        shape,
        factors: Some(&factors),
        bias: Some(&bias),
        grid: GRID,
        bounds: [10, 255],
    };
    let values: Vec<f32> = (0..shape.n_in * size * size).map(|i| (i * 31 % 253) as f32 - 100.0).collect();
    let x = ImageCodes::of_floats(level, &values, [1, shape.n_in, size, size], CodeGrid { scale: 1.0, zero: 100 });
    let time = |_| {
        let start = Instant::now();
        std::hint::black_box(fixed_conv2d(level, &x, &conv));
        start.elapsed().as_secs_f64()
    };
    (0..n_runs).map(time).fold(f64::INFINITY, f64::min)
}

/// Returns a convolution that keeps the size, or divides it by the stride.
fn layer(n_in: usize, n_out: usize, kernel: usize, stride: usize, groups: usize) -> Conv2dShape {
    let padding = [[kernel / 2; 2]; 2];
    Conv2dShape { groups, stride: [stride; 2], padding, ..Conv2dShape::new(n_in, n_out, [kernel; 2]) }
}

fn mobilenet_v2() -> Vec<(Conv2dShape, usize)> {
    let mut layers = vec![(layer(3, 32, 3, 2, 1), 224)];
    let (mut n_in, mut size) = (32, 112);
    // Expansion, channels, blocks and stride of each stage.
    let stages =
        [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];
    for (expansion, n_out, n_blocks, stride) in stages {
        for block in 0..n_blocks {
            let (wide, stride) = (n_in * expansion, if block == 0 { stride } else { 1 });
            if expansion > 1 {
                layers.push((layer(n_in, wide, 1, 1, 1), size));
            }
            layers.push((layer(wide, wide, 3, stride, wide), size));
            size /= stride;
            layers.push((layer(wide, n_out, 1, 1, 1), size));
            n_in = n_out;
        }
    }
    layers.push((layer(320, 1280, 1, 1, 1), size));
    layers
}

fn resnet18() -> Vec<(Conv2dShape, usize)> {
    let mut layers = vec![(layer(3, 64, 7, 2, 1), 224)];
    layers.extend([(layer(64, 64, 3, 1, 1), 56); 4]);
    for (n_in, size) in [(64, 56), (128, 28), (256, 14)] {
        layers.extend([(layer(n_in, 2 * n_in, 3, 2, 1), size), (layer(n_in, 2 * n_in, 1, 2, 1), size)]);
        layers.extend([(layer(2 * n_in, 2 * n_in, 3, 1, 1), size / 2); 3]);
    }
    layers
}
