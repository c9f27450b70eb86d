//! Checks every kernel on random inputs of odd shapes, with poisoned output buffers and rows that are not
//! finite.

use crate::Options;
use crate::findings::Finding;
use briquette_cpu::{ActivationGrid, CodeGrid, Conv2dShape, OutputBounds};
use briquette_cuda::{DeviceEpilogue, Floats, Int8, WAYS, Way};
use briquette_ops::compressed::{self, Conv2dCall, LinearWeights, QuantizedConv2d, Table, gpu_of};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

/// Tolerance for devices that fuse multiplication and addition.
const RELATIVE: f64 = 1e-5;
/// Tolerance for float sums in another order.
const FLOATS: f64 = 1e-4;
/// Tolerance of burn's f32 products, where the device multiplies in TF32: 10 bits of fraction.
const TF32: f64 = 1e-3;

/// Returns `n` random numbers of 31 bits.
pub(crate) fn numbers(n: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 33
    })
}

/// Returns random codes, half of them zero.
pub(crate) fn codes(n: usize, seed: u64) -> Vec<i8> {
    numbers(n, seed).map(|bits| if bits & 0x100 == 0 { 0 } else { bits as i8 }).collect()
}

/// Returns random floats in -1..1.
pub(crate) fn floats(n: usize, seed: u64) -> Vec<f32> {
    numbers(n, seed).map(|bits| bits as f32 / (1_u64 << 30) as f32 - 1.0).collect()
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Returns the largest difference, relative to the largest expected value; NaN if only one of two values is
/// NaN.
pub(crate) fn difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len(), "outputs");
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
    let differ = |(a, b): (&f32, &f32)| match a.is_nan() && b.is_nan() {
        true => 0.0,
        false => f64::from((a - b).abs() / largest),
    };
    worst(found.iter().zip(expected).map(differ))
}

/// Returns the largest value, or NaN if one is NaN.
pub(crate) fn worst(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, |most: f64, value| if most.is_nan() || value <= most { most } else { value })
}

/// Fills and frees a buffer of NaN, which the allocator is likely to reuse for the next output of this size.
fn poison(device: &Device, n: usize) {
    let nan = Tensor::<1>::full([n.max(1)], f32::NAN, device);
    device.sync().unwrap();
    drop(nan);
}

/// Compares the integer sums of each kernel with dot products, bit for bit. All weight scales are 1.
pub(crate) fn products(device: &Device, _: &Device, options: &Options) -> Vec<Finding> {
    let gpu = &gpu_of(device).expect("a CUDA device");
    let mut shapes = vec![[1, 1, 1], [3, 33, 70], [17, 65, 130], [130, 129, 257]];
    if !options.is_quick {
        shapes.extend([[8, 4096, 500], [512, 1536, 384], [300, 1000, 1000]]);
    }
    let matrices = Finding::figure("int8 matrix instructions", f64::from(u8::from(gpu.has_int8_matrices())), "");
    let mut found: Vec<(String, f64, bool)> = Vec::new();
    for shape @ [m, n, k] in shapes {
        // A row with a maximum of 127 has scale 1. Sums stay below 2^24, so f32 holds them exactly.
        let mut x: Vec<f32> = codes(m * k, 1).iter().map(|code| f32::from(*code / 2)).collect();
        x.chunks_mut(k).for_each(|row| row[0] = 127.0);
        let weights = codes(n * k, 2);
        let dtype = briquette_cuda::F32;
        let x = Floats { buffer: gpu.copy(&x), dtype, n_rows: m, n_cols: k };
        let run = |way: Way, is_sparse: bool| -> Result<Vec<f32>, String> {
            let weights = Int8::new(gpu, &weights, &vec![1.0; n], [n, k], is_sparse);
            gpu.read(&weights.linear_by(way, &x, true, &DeviceEpilogue::default())?.buffer)
        };
        let oracle = run(Way::Dp4a, false).expect("the dp4a product runs");
        let matrices: &[Way] = if gpu.has_int8_matrices() { &WAYS } else { &[] };
        for &way in [Way::FewRows].iter().chain(matrices) {
            for is_sparse in [false, true] {
                let kind = if is_sparse { ", sparse" } else { "" };
                let (name, n, is_wrong) = match (run(way, is_sparse), way) {
                    (Ok(sums), _) => {
                        let wrong = sums.iter().zip(&oracle).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                        (format!("{way}{kind}: sums that differ from dot products"), wrong as f64, true)
                    }
                    // Not a failure: the dispatcher can choose another kernel.
                    (Err(error), Way::Warpgroups) => (format!("{way}{kind}: refused, {error}"), 1.0, false),
                    (Err(error), _) => (format!("{way}{kind}: {error}"), 1.0, true),
                };
                match found.iter_mut().find(|(known, ..)| *known == name) {
                    Some((_, most, _)) => *most += n,
                    None => found.push((name, n, is_wrong)),
                }
            }
        }
        let by_host = |row: usize, col: usize| {
            (0..k).map(|i| host_code(&x_codes(m, k), k, row, i) * i32::from(weights[col * k + i])).sum::<i32>()
        };
        let spots = (0..20).map(|i| (i * 7 % m, i * 13 % n));
        let wrong = spots.filter(|&(row, col)| by_host(row, col) as f32 != oracle[row * n + col]).count();
        found.push((format!("dot products that differ from the host's at {shape:?}"), wrong as f64, true));
    }
    let finding = |(name, n, is_wrong): (String, f64, bool)| match is_wrong {
        true => Finding::at_most(name, n, "outputs", 0.0),
        false => Finding::figure(name, n, "shapes"),
    };
    std::iter::once(matrices).chain(found.into_iter().map(finding)).collect()
}

/// Returns the activation codes of `products`.
fn x_codes(m: usize, k: usize) -> Vec<i32> {
    let mut x: Vec<i32> = codes(m * k, 1).iter().map(|code| i32::from(*code / 2)).collect();
    x.chunks_mut(k).for_each(|row| row[0] = 127);
    x
}

fn host_code(codes: &[i32], k: usize, row: usize, i: usize) -> i32 {
    codes[row * k + i]
}

/// Compares quantized linear layers as burn operations on both devices.
pub(crate) fn linear(device: &Device, cpu: &Device, options: &Options) -> Vec<Finding> {
    let mut shapes = vec![[1, 40, 64], [5, 33, 70], [40, 100, 384]];
    if !options.is_quick {
        shapes.extend([[1, 11008, 4096], [300, 1536, 384], [1000, 384, 1536]]);
    }
    let mut found = Vec::new();
    for is_sparse in [false, true] {
        let fixed = ActivationGrid::Fixed(CodeGrid { scale: 0.02, zero: 100 });
        for grid in [ActivationGrid::Symmetric, ActivationGrid::Asymmetric, fixed] {
            for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
                let differences = shapes.iter().map(|&[m, n, k]| {
                    let (weights, scales) = (codes(n * k, 3), floats(n, 4));
                    let run = |device: &Device| {
                        let weights =
                            LinearWeights::int8_on(device, &weights, &scales, [n, k], is_sparse, Some(grid)).unwrap();
                        let bias = tensor(floats(n, 5), [n], device);
                        let x = tensor(floats(m * k, 6), [m, k], device).cast(dtype);
                        poison(device, m * n);
                        host(compressed::linear(x, &weights, Some(bias)).cast(FloatDType::F32))
                    };
                    difference(&run(device), &run(cpu))
                });
                let kind = if is_sparse { "sparse" } else { "dense" };
                // A half-precision result is rounded once more and may differ by one unit.
                // Inputs on a fixed grid are floats again before the product.
                let most = match dtype {
                    FloatDType::F32 if grid.is_fixed() => TF32,
                    FloatDType::F32 => RELATIVE,
                    _ => 1e-2,
                };
                let grid = if grid.is_fixed() { "Fixed".into() } else { format!("{grid:?}") };
                found.push(Finding::at_most(
                    format!("int8 linear, {kind}, {grid}, {dtype:?}"),
                    worst(differences),
                    "relative",
                    most,
                ));
            }
        }
    }
    found
}

/// Compares weight-only products with few rows and with many.
pub(crate) fn weight_only(device: &Device, cpu: &Device, options: &Options) -> Vec<Finding> {
    let (n, k) = if options.is_quick { (40, 64) } else { (1000, 512) };
    let x = |rows: usize, device: &Device| tensor(floats(rows * k, 7), [rows, k], device);
    let bias = |device: &Device| Some(tensor(floats(n, 8), [n], device));
    let mut found = Vec::new();
    for rows in [1, 3, 8, 13, 40] {
        // For many rows, the weights are decoded and burn multiplies.
        let [floats_most, codes_most] = if rows < 16 { [FLOATS, RELATIVE] } else { [TF32; 2] };
        let int8 = |device: &Device, is_sparse: bool| {
            let weights =
                LinearWeights::int8_on(device, &codes(n * k, 9), &floats(n, 2), [n, k], is_sparse, None).unwrap();
            host(compressed::linear(x(rows, device), &weights, bias(device)))
        };
        let int4 = |device: &Device, grid: Option<ActivationGrid>| {
            let codes: Vec<i8> = codes(n * k, 10).iter().map(|code| code >> 4).collect();
            let scales = floats(n * k.div_ceil(32), 2);
            let weights = LinearWeights::int4_on(device, &codes, &scales, [n, k], 32, grid).unwrap();
            host(compressed::linear(x(rows, device), &weights, bias(device)))
        };
        for is_sparse in [false, true] {
            let kind = if is_sparse { "sparse" } else { "dense" };
            let worst = difference(&int8(device, is_sparse), &int8(cpu, is_sparse));
            found.push(Finding::at_most(
                format!("int8 weight-only, {kind}, {rows} rows"),
                worst,
                "relative",
                floats_most,
            ));
        }
        let worst = difference(&int4(device, None), &int4(cpu, None));
        found.push(Finding::at_most(format!("int4 weight-only, {rows} rows"), worst, "relative", floats_most));
        let grid = Some(ActivationGrid::Asymmetric);
        let worst = difference(&int4(device, grid), &int4(cpu, grid));
        found.push(Finding::at_most(format!("int4 by int8, {rows} rows"), worst, "relative", codes_most));
    }
    found
}

pub(crate) fn convolutions(device: &Device, cpu: &Device, _: &Options) -> Vec<Finding> {
    let plain = Conv2dShape { padding: [[1, 1]; 2], ..Conv2dShape::new(6, 40, [3, 3]) };
    let pointwise = Conv2dShape::new(20, 40, [1, 1]);
    let strided = Conv2dShape { stride: [2, 2], ..Conv2dShape::new(5, 33, [1, 1]) };
    let grouped = Conv2dShape { groups: 3, dilation: [2, 1], ..Conv2dShape::new(6, 48, [2, 3]) };
    let depthwise = Conv2dShape { groups: 7, padding: [[1, 1]; 2], ..Conv2dShape::new(7, 7, [3, 3]) };
    let cases = [
        ("plain", plain),
        ("pointwise", pointwise),
        ("strided", strided),
        ("grouped", grouped),
        ("depthwise", depthwise),
    ];
    let mut found = Vec::new();
    for (name, shape) in cases {
        for is_sparse in [false, true] {
            let dims @ [n_out, n_in, height, width] = shape.weight_dims();
            let [out_height, out_width] = shape.out_size([13, 11]);
            let run = |device: &Device| {
                let weights = codes(n_out * n_in * height * width, 11);
                let grid = ActivationGrid::Asymmetric;
                let weights = QuantizedConv2d::on(device, &weights, &floats(n_out, 12), dims, is_sparse, grid).unwrap();
                let (has_scale, has_shift, bounds) = (false, false, OutputBounds::Relu6);
                let call = Conv2dCall { weights, shape, has_scale, has_shift, bounds, channels_last: false };
                let x = tensor(floats(2 * shape.n_in * 13 * 11, 13), [2, shape.n_in, 13, 11], device);
                let y_shape = [2, n_out, out_height, out_width];
                let y = tensor(floats(y_shape.iter().product(), 14), y_shape, device);
                let vectors = [15, 16].map(|seed| Some(tensor(floats(n_out, seed), [n_out], device)));
                host(compressed::conv2d(x, Some(y), vectors, call))
            };
            let kind = if is_sparse { "sparse" } else { "dense" };
            let worst = difference(&run(device), &run(cpu));
            found.push(Finding::at_most(format!("int8 conv2d, {name}, {kind}"), worst, "relative", RELATIVE));
        }
    }
    found
}

pub(crate) fn embedding(device: &Device, cpu: &Device, _: &Options) -> Vec<Finding> {
    let run = |device: &Device, is_sparse: bool| {
        let table = Table::on(device, codes(50 * 77, 17), &floats(50, 18), [50, 77], is_sparse);
        let ids = Tensor::<2, Int>::from_data([[0, 49, 7], [7, 30, 1]], device);
        host(compressed::embedding(ids, &table))
    };
    let differences = [false, true].map(|is_sparse| difference(&run(device, is_sparse), &run(cpu, is_sparse)));
    vec![Finding::at_most("int8 embedding", worst(differences), "relative", 0.0)]
}

/// Checks that rows with NaN stay NaN and do not change other rows.
pub(crate) fn nan_rows(device: &Device, _: &Device, _: &Options) -> Vec<Finding> {
    let weights = LinearWeights::int8_on(
        device,
        &codes(40 * 70, 19),
        &floats(40, 20),
        [40, 70],
        false,
        Some(ActivationGrid::Asymmetric),
    );
    let mut x = floats(30 * 70, 21);
    x[70 * 3 + 5] = f32::NAN;
    x[70 * 20] = f32::INFINITY;
    let y = host(compressed::linear(tensor(x, [30, 70], device), &weights.unwrap(), None));
    let wrong = y.iter().enumerate().filter(|(i, value)| value.is_nan() != [3, 20].contains(&(i / 40))).count();
    vec![Finding::at_most("rows with NaN, and their neighbours", wrong as f64, "outputs", 0.0)]
}
