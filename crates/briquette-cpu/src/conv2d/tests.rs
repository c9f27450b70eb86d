use super::*;
use crate::QuantizedRows;
use proptest::prelude::*;

fn numbers(n: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed | 1;
    (0..n).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 33
    })
}

/// Quantizes an image as one row, or the channels of each pixel.
fn quantized(level: SimdLevel, x: &[f32], shape: &Conv2dShape, grid: ActivationGrid) -> QuantizedRows {
    if !shape.is_pointwise() || shape.n_in == 0 {
        return crate::quantize_rows(level, x, 1, x.len(), grid);
    }
    let n_pixels = x.len() / shape.n_in;
    let pixels: Vec<f32> = (0..x.len()).map(|i| x[i % shape.n_in * n_pixels + i / shape.n_in]).collect();
    crate::quantize_rows(level, &pixels, n_pixels, shape.n_in, grid)
}

/// Computes one output of one image from the codes, by definition.
fn reference(
    rows: &QuantizedRows,
    shape: &Conv2dShape,
    size: [usize; 2],
    codes: &[i8],
    scales: &[f32],
    at: [usize; 3],
) -> f32 {
    let (n_in, n_out, [kh, kw]) = (shape.n_in / shape.groups, shape.n_out / shape.groups, shape.kernel);
    let [o, oy, ox] = at;
    let (mut sum, mut row) = (0, 0);
    for (i, ky, kx) in (0..n_in * kh * kw).map(|i| (i / (kh * kw), i / kw % kh, i % kw)) {
        let y = (oy * shape.stride[0] + ky * shape.dilation[0]) as isize - shape.padding[0][0] as isize;
        let x = (ox * shape.stride[1] + kx * shape.dilation[1]) as isize - shape.padding[1][0] as isize;
        if (0..size[0] as isize).contains(&y) && (0..size[1] as isize).contains(&x) {
            let (channel, pixel) = (o / n_out * n_in + i, y as usize * size[1] + x as usize);
            let column = if shape.is_pointwise() { channel } else { channel * size[0] * size[1] + pixel };
            row = if shape.is_pointwise() { pixel } else { 0 };
            let code = i32::from(rows.row(row)[column]) - rows.zeros()[row];
            sum += code * i32::from(codes[(o * n_in + i) * kh * kw + ky * kw + kx]);
        }
    }
    sum as f32 * rows.scales()[row] * scales[o]
}

const FIRST: [ImageOrder; 2] = [ImageOrder::ChannelsFirst; 2];

/// Returns images `[n, channel, pixel]` as `[n, pixel, channel]`.
fn last(values: &[f32], n_images: usize, n_channels: usize) -> Vec<f32> {
    let n_pixels = values.len() / (n_images * n_channels).max(1);
    let place = |i: usize| {
        i / n_channels / n_pixels * n_channels * n_pixels + i % n_channels * n_pixels + i / n_channels % n_pixels
    };
    (0..values.len()).map(|i| values[place(i)]).collect()
}

/// Checks that other orders of images give the same values.
fn orders_agree(level: SimdLevel, conv: &Int8Conv2d, (x, n_images, size): (&[f32], usize, [usize; 2]), y: &[f32]) {
    let (x_last, y_last) = (last(x, n_images, conv.shape.n_in), last(y, n_images, conv.shape.n_out));
    for orders in
        [[ImageOrder::ChannelsLast; 2], [FIRST[0], ImageOrder::ChannelsLast], [ImageOrder::ChannelsLast, FIRST[0]]]
    {
        let mut found = vec![f32::NAN; y.len()];
        let x = if orders[0] == FIRST[0] { x } else { &x_last };
        int8_conv2d(level, x, [n_images, size[0], size[1]], &Int8Conv2d { orders, ..*conv }, &mut found);
        assert_eq!(found, if orders[1] == FIRST[0] { y } else { &y_last[..] }, "{level} {orders:?} {:?}", conv.shape);
    }
}

fn agrees(shape: Conv2dShape, n_images: usize, size: [usize; 2], seed: u64) {
    let codes: Vec<i8> =
        numbers(shape.n_out * shape.depth(), seed).map(|b| if b & 0x300 == 0 { 0 } else { b as i8 }).collect();
    let scales: Vec<f32> = (0..shape.n_out).map(|i| 0.5 + i as f32).collect();
    let bias: Vec<f32> = (0..shape.n_out).map(|i| i as f32 - 2.0).collect();
    let n_values = shape.n_in * size[0] * size[1];
    let x: Vec<f32> = numbers(n_images * n_values, seed ^ 7).map(|b| b as f32 / (1_u64 << 30) as f32 - 1.0).collect();
    let [out_height, out_width] = shape.out_size(size);
    for (grid, is_sparse) in [(ActivationGrid::Symmetric, true), (ActivationGrid::Asymmetric, false)] {
        let weights = PackedConv2d::new(&codes, &scales, shape.weight_dims(), is_sparse).unwrap();
        let epilogue = ConvEpilogue { shift: Some(&bias), ..ConvEpilogue::default() };
        let conv = Int8Conv2d { weights: &weights, shape, grid, epilogue, orders: FIRST };
        for level in SimdLevel::available() {
            let mut y = vec![f32::NAN; n_images * shape.n_out * out_height * out_width];
            int8_conv2d(level, &x, [n_images, size[0], size[1]], &conv, &mut y);
            orders_agree(level, &conv, (&x, n_images, size), &y);
            let image = |i: usize| &x[i * n_values..(i + 1) * n_values];
            let images: Vec<QuantizedRows> = (0..n_images).map(|i| quantized(level, image(i), &shape, grid)).collect();
            for (i, &value) in y.iter().enumerate() {
                let (image, o) =
                    (i / (shape.n_out * out_height * out_width), i / (out_height * out_width) % shape.n_out);
                let at = [o, i / out_width % out_height, i % out_width];
                let expected = reference(&images[image], &shape, size, &codes, &scales, at) + bias[o];
                assert_eq!(value, expected, "{level} {grid:?} sparse {is_sparse} {shape:?} {size:?} at {at:?}");
            }
        }
    }
}

/// Convolutions of every kind, with a number of images and their height and width.
pub(super) fn kinds() -> Vec<(Conv2dShape, usize, [usize; 2])> {
    let base = Conv2dShape::new(3, 5, [3, 3]);
    let five = Conv2dShape { kernel: [5, 5], ..base };
    let point = Conv2dShape { kernel: [1, 1], ..base };
    vec![
        (base, 2, [6, 7]),
        (Conv2dShape { padding: [[1, 0], [2, 2]], stride: [2, 1], ..base }, 1, [7, 5]),
        (Conv2dShape { dilation: [2, 1], padding: [[2, 2], [1, 1]], ..base }, 1, [6, 6]),
        (Conv2dShape { n_in: 8, n_out: 8, groups: 8, padding: [[1; 2]; 2], ..base }, 2, [5, 5]),
        (Conv2dShape { n_in: 150, n_out: 150, groups: 150, stride: [2, 1], padding: [[2; 2]; 2], ..five }, 1, [9, 11]),
        (Conv2dShape { n_in: 64, n_out: 64, groups: 64, ..base }, 1, [5, 4]),
        (Conv2dShape { n_in: 32, n_out: 32, groups: 32, padding: [[1; 2]; 2], ..base }, 1, [3, 75]),
        (
            Conv2dShape { n_in: 144, n_out: 144, groups: 144, stride: [2; 2], padding: [[0, 1], [0, 1]], ..base },
            1,
            [6, 83],
        ),
        (
            Conv2dShape { n_in: 90, n_out: 90, groups: 90, dilation: [1, 2], padding: [[3; 2], [7; 2]], ..five },
            1,
            [4, 40],
        ),
        (Conv2dShape { n_in: 16, n_out: 16, groups: 16, kernel: [1, 1], stride: [1, 5], ..base }, 1, [2, 200]),
        (Conv2dShape { n_in: 5, n_out: 5, groups: 5, padding: [[9; 2]; 2], ..base }, 1, [2, 2]),
        (Conv2dShape { n_in: 6, n_out: 4, groups: 2, padding: [[1; 2]; 2], ..base }, 1, [5, 4]),
        (Conv2dShape { n_in: 4, n_out: 66, groups: 2, ..base }, 1, [5, 4]),
        (Conv2dShape { n_in: 4, n_out: 64, groups: 2, ..base }, 1, [5, 4]),
        (Conv2dShape { n_in: 2, n_out: 300, ..base }, 1, [19, 20]),
        (Conv2dShape { n_in: 40, n_out: 33, padding: [[1; 2]; 2], ..base }, 1, [24, 24]),
        (Conv2dShape { n_in: 70, n_out: 33, ..point }, 1, [12, 13]),
        (Conv2dShape { n_in: 72, n_out: 33, ..point }, 1, [17, 19]),
        (Conv2dShape { n_in: 17, n_out: 40, stride: [2, 1], ..point }, 2, [23, 25]),
        (Conv2dShape { padding: [[1, 0], [0, 0]], ..point }, 1, [4, 5]),
        (Conv2dShape { n_in: 12, n_out: 40, padding: [[1, 2], [0, 3]], stride: [1, 2], ..five }, 1, [9, 60]),
        (Conv2dShape { n_in: 7, n_out: 31, dilation: [2, 1], padding: [[2; 2]; 2], ..base }, 2, [9, 8]),
        (Conv2dShape { n_in: 8, n_out: 9, stride: [3, 2], ..point }, 2, [7, 300]),
        (Conv2dShape { n_in: 1, n_out: 20, padding: [[1; 2]; 2], ..base }, 1, [28, 28]),
        (base, 0, [6, 7]),
        (base, 1, [2, 2]),
    ]
}

#[test]
fn every_kind_of_convolution_agrees_with_its_definition() {
    for (seed, (shape, n_images, size)) in (1..).zip(kinds()) {
        agrees(shape, n_images, size, seed);
    }
}

#[test]
fn convolution_weights_take_about_a_byte_and_are_read_back() {
    for (n_in, n_out, groups) in [(64, 64, 1), (64, 64, 16), (64, 128, 2)] {
        let shape = Conv2dShape { groups, ..Conv2dShape::new(n_in, n_out, [3, 3]) };
        let codes: Vec<i8> = (0..n_out * shape.depth()).map(|i| (i % 120) as i8).collect();
        for is_sparse in [false, true] {
            let packed = PackedConv2d::new(&codes, &vec![0.5; n_out], shape.weight_dims(), is_sparse).unwrap();
            let floats: Vec<f32> = codes.iter().map(|&code| f32::from(code) * 0.5).collect();
            assert_eq!(packed.to_floats(), floats);
            assert!(is_sparse || packed.n_bytes() <= codes.len() + 8 * n_out, "{} bytes", packed.n_bytes());
        }
    }
}

#[test]
fn non_finite_images_are_nan_and_do_not_affect_others() {
    let shape = Conv2dShape::new(2, 3, [3, 3]);
    let weights = PackedConv2d::new(&[1; 54], &[1.0; 3], shape.weight_dims(), false).unwrap();
    for bounds in [OutputBounds::None, OutputBounds::Relu, OutputBounds::Relu6] {
        let (mut x, mut y) = (vec![1.0; 2 * 2 * 16], vec![0.0; 2 * 3 * 4]);
        x[5] = f32::INFINITY;
        let epilogue = ConvEpilogue { bounds, ..ConvEpilogue::default() };
        let grid = ActivationGrid::Asymmetric;
        let conv = Int8Conv2d { weights: &weights, shape, grid, epilogue, orders: FIRST };
        int8_conv2d(SimdLevel::available()[0], &x, [2, 4, 4], &conv, &mut y);
        assert!(y[..12].iter().all(|value| value.is_nan()) && y[12..].iter().all(|value| value.is_finite()));
    }
}

#[test]
fn the_epilogue_computes_norm_shortcut_and_relu() {
    let shape = Conv2dShape::new(1, 40, [1, 1]);
    let weights = PackedConv2d::new(&[1; 40], &[1.0; 40], shape.weight_dims(), false).unwrap();
    let x: Vec<f32> = (0..35).map(|i| i as f32 - 10.0).collect();
    let (scale, shift): (Vec<f32>, Vec<f32>) = (0..40).map(|o| (o as f32 - 20.0, 0.25 * o as f32)).unzip();
    let (grid, orders) = (ActivationGrid::Symmetric, FIRST);
    let conv = |epilogue| Int8Conv2d { weights: &weights, shape, grid, epilogue, orders };
    let mut plain = vec![0.0; 40 * 35];
    int8_conv2d(SimdLevel::SCALAR, &x, [1, 5, 7], &conv(ConvEpilogue::default()), &mut plain);
    for bounds in [OutputBounds::None, OutputBounds::Relu, OutputBounds::Relu6] {
        let before: Vec<f32> = (0..40 * 35).map(|i| (i % 13) as f32).collect();
        let (mut y, mut y_last) = (before.clone(), last(&before, 1, 40));
        let epilogue = ConvEpilogue { scale: Some(&scale), shift: Some(&shift), adds: true, bounds };
        int8_conv2d(SimdLevel::SCALAR, &x, [1, 5, 7], &conv(epilogue), &mut y);
        for (i, (y, plain)) in y.iter().zip(&plain).enumerate() {
            let value = plain * scale[i / 35] + shift[i / 35] + before[i];
            let [least, largest] = bounds.ends();
            assert_eq!(*y, value.clamp(least, largest), "{bounds:?} {i}");
        }
        let of_last = Int8Conv2d { orders: [ImageOrder::ChannelsLast; 2], ..conv(epilogue) };
        // With one channel, both orders of the input are the same.
        int8_conv2d(SimdLevel::SCALAR, &x, [1, 5, 7], &of_last, &mut y_last);
        assert_eq!(y_last, last(&y, 1, 40), "{bounds:?}");
    }
}

#[test]
#[should_panic(expected = "weights and Conv2dShape")]
fn mismatched_weights_panic_with_the_shape() {
    let weights = PackedConv2d::new(&[1; 9], &[1.0], [1, 1, 3, 3], false).unwrap();
    let shape = Conv2dShape::new(1, 1, [2, 2]);
    let (grid, epilogue) = (ActivationGrid::Symmetric, ConvEpilogue::default());
    let conv = Int8Conv2d { weights: &weights, shape, grid, epilogue, orders: FIRST };
    int8_conv2d(SimdLevel::SCALAR, &[0.0_f32; 16], [1, 4, 4], &conv, &mut [0.0; 9]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_convolution_agrees_with_its_definition(
        groups in 1_usize..4, per_in in 1_usize..5, per_out in 1_usize..20, kernel in [1_usize..4, 1_usize..4],
        stride in [1_usize..3, 1_usize..3], padding in [[0_usize..3, 0_usize..3], [0_usize..3, 0_usize..3]], dilation in [1_usize..3, 1_usize..3],
        size in [0_usize..8, 0_usize..8], seed: u64,
    ) {
        let shape = Conv2dShape { n_in: groups * per_in, n_out: groups * per_out, groups, kernel, stride, padding, dilation };
        agrees(shape, 1, size, seed);
    }
}
