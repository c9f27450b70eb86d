use super::*;
use proptest::prelude::*;

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 997) as f32 / 498.5 - 1.0).collect()
}

/// Calls `each` with the indices of every pair of an output and an input, and of the weight between them.
fn for_products(conv: &FloatConv2d, mut each: impl FnMut(usize, usize, usize)) {
    let (shape, [height, width]) = (&conv.shape, conv.size);
    let ([rows, cols], [n_y, n_x]) = (shape.out_size(conv.size), shape.kernel);
    let places = |n: [usize; 2]| (0..n[0]).flat_map(move |a| (0..n[1]).map(move |b| [a, b]));
    for ([b, o], i) in places([conv.n_images, shape.n_out]).flat_map(|at| (0..shape.n_in).map(move |i| (at, i))) {
        for ([row, col], [ky, kx]) in places([rows, cols]).flat_map(|at| places([n_y, n_x]).map(move |tap| (at, tap))) {
            if let Some(pixel) = shape.source([row, col], [ky, kx], conv.size) {
                let output = ((b * shape.n_out + o) * rows + row) * cols + col;
                let weight = ((o * shape.n_in + i) * n_y + ky) * n_x + kx;
                each(output, (b * shape.n_in + i) * height * width + pixel, weight);
            }
        }
    }
}

fn assert_close(name: &str, conv: &FloatConv2d, got: &[f32], exact: &[f64]) {
    assert_eq!(got.len(), exact.len(), "{name} of {conv:?}");
    for (i, (got, exact)) in got.iter().zip(exact).enumerate() {
        assert!(
            (f64::from(*got) - exact).abs() < 1e-4 * (1.0 + exact.abs()),
            "{name}[{i}] of {conv:?}: {got}, {exact}"
        );
    }
}

/// Compares the convolution and its gradients with plain sums.
fn agrees(conv: &FloatConv2d) {
    let n_weights = conv.shape.weight_dims().iter().product();
    let (x, weights) = (numbers(conv.n_inputs(), 1), numbers(n_weights, 2));
    let (bias, dy) = (numbers(conv.shape.n_out, 3), numbers(conv.n_outputs(), 4));
    let n_pixels = conv.n_pixels().max(1);
    let mut y: Vec<f64> = (0..dy.len()).map(|i| f64::from(bias[i / n_pixels % bias.len()])).collect();
    let (mut dx, mut dw) = (vec![0.0_f64; x.len()], vec![0.0_f64; n_weights]);
    for_products(conv, |output, input, weight| {
        y[output] += f64::from(x[input]) * f64::from(weights[weight]);
        dx[input] += f64::from(dy[output]) * f64::from(weights[weight]);
        dw[weight] += f64::from(dy[output]) * f64::from(x[input]);
    });
    assert_close("y", conv, &conv.forward(&x, &weights, &bias), &y);
    assert_close("dx", conv, &conv.input_grad(&weights, &dy), &dx);
    assert_close("dw", conv, &conv.weight_grad(&x, &dy), &dw);
}

#[test]
fn tiles_of_several_images_and_of_some_rows() {
    let shape = Conv2dShape { padding: [[1; 2]; 2], ..Conv2dShape::new(64, 8, [3, 3]) };
    agrees(&FloatConv2d { shape, size: [8, 8], n_images: 17 });
    agrees(&FloatConv2d { shape, size: [24, 40], n_images: 2 });
}

#[test]
fn empty_inputs_give_empty_outputs() {
    let shape = Conv2dShape::new(2, 3, [3, 3]);
    agrees(&FloatConv2d { shape, size: [8, 8], n_images: 0 });
    agrees(&FloatConv2d { shape, size: [2, 8], n_images: 2 });
    agrees(&FloatConv2d { shape: Conv2dShape::new(0, 3, [3, 3]), size: [4, 4], n_images: 2 });
    agrees(&FloatConv2d { shape: Conv2dShape::new(2, 0, [3, 3]), size: [4, 4], n_images: 2 });
}

#[test]
fn bits_are_the_same_with_any_threads() {
    let shape = |n_in| Conv2dShape { padding: [[1; 2]; 2], ..Conv2dShape::new(n_in, 24, [3, 3]) };
    for (n_in, size, n_images) in [(16, 32, 20), (256, 7, 1), (64, 9, 2)] {
        let conv = FloatConv2d { shape: shape(n_in), size: [size; 2], n_images };
        let (x, dy) = (numbers(conv.n_inputs(), 1), numbers(conv.n_outputs(), 2));
        let weights = numbers(24 * n_in * 9, 3);
        let all =
            || (conv.forward(&x, &weights, &[0.5; 24]), conv.weight_grad(&x, &dy), conv.input_grad(&weights, &dy));
        let with = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap().install(all);
        assert!(with(1) == with(3), "{conv:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_convolution_agrees_with_its_definition(
        channels in (1_usize..5, 1_usize..5),
        kernel in (1_usize..4, 1_usize..4),
        stride in (1_usize..3, 1_usize..3),
        dilation in (1_usize..3, 1_usize..3),
        padding in ((0_usize..4, 0_usize..4), (0_usize..4, 0_usize..4)),
        size in (1_usize..12, 1_usize..12),
        n_images in 1_usize..4,
    ) {
        let shape = Conv2dShape {
            stride: stride.into(),
            dilation: dilation.into(),
            padding: [padding.0.into(), padding.1.into()],
            ..Conv2dShape::new(channels.0, channels.1, kernel.into())
        };
        agrees(&FloatConv2d { shape, size: size.into(), n_images });
    }
}
