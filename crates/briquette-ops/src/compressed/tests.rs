use super::*;
use briquette_core::ColumnScales;
use briquette_cpu::{
    ActivationGrid, CodeGrid, Conv2dShape, OutputBounds, PackedConv2d, PackedInt4, PackedInt8, PackedW4A8, SparseInt8,
};
use burn::tensor::module;
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor, TensorData};

fn codes(n: usize) -> Vec<i8> {
    (0..n).map(|i| if i % 3 == 0 { 0 } else { (i * 89 % 251) as u8 as i8 }).collect()
}

#[test]
fn linear_layers_are_close_to_floats_in_every_format() {
    let device = Device::flex();
    let (n_out, n_in) = (40, 70);
    let codes = codes(n_out * n_in);
    let weights: Vec<f32> = codes.iter().map(|&code| f32::from(code) * 0.01).collect();
    let weights = Tensor::<2>::from_data(TensorData::new(weights, [n_out, n_in]), &device);
    let x = Tensor::<3>::random([2, 5, n_in], Distribution::Uniform(-1.0, 1.0), &device);
    let expected = x.clone().matmul(weights.transpose().unsqueeze::<3>()) + 0.5;
    let (scales, grid) = ([0.01; 40], Some(ActivationGrid::Asymmetric));
    let bias = Some(Tensor::<1>::ones([n_out], &device) * 0.5);
    let dense = PackedInt8::new(&codes, &scales, n_out, n_in).unwrap();
    let sparse = SparseInt8::new(&codes, &scales, n_out, n_in).unwrap();
    let (dense, sparse) = (LinearWeights::int8(dense, grid), LinearWeights::sparse_int8(sparse, grid));
    assert!(runs_on(&device) && !runs_on(&device.clone().autodiff()));
    for weights in [&dense, &sparse] {
        let floats: Vec<f32> = codes.iter().map(|&code| f32::from(code) * 0.01).collect();
        assert_eq!(Weights::Linear(weights.clone()).host_floats(), Some(floats), "{}", weights.name());
    }
    let dense = linear(x.clone(), &dense, bias.clone());
    let sparse = linear(x.clone(), &sparse, bias);
    assert_eq!(dense.dims(), [2, 5, n_out]);
    assert_eq!((dense.clone() - sparse).abs().max().into_scalar::<f32>(), 0.0);
    assert!((dense - expected).abs().max().into_scalar::<f32>() < 0.2);
}

#[test]
fn int4_by_int8_equals_weight_only_int4_with_rounded_inputs() {
    let device = Device::flex();
    let (n_out, n_in, group) = (40, 70, 32);
    let codes: Vec<i8> = codes(n_out * n_in).iter().map(|code| code >> 4).collect();
    let scales: Vec<f32> = (0..n_out * n_in.div_ceil(group)).map(|i| 0.01 + i as f32 * 1e-4).collect();
    let floats = LinearWeights::int4(PackedInt4::new(&codes, &scales, n_out, n_in, group));
    let x = Tensor::<3>::random([2, 5, n_in], Distribution::Uniform(-1.0, 2.0), &device);
    let bias = Tensor::<1>::ones([n_out], &device) * 0.5;
    for grid in [ActivationGrid::Symmetric, ActivationGrid::SymmetricFull, ActivationGrid::Asymmetric] {
        let packed = PackedW4A8::new(&codes, &scales, n_out, n_in, group).unwrap();
        let weights = LinearWeights::w4a8(packed, grid);
        let y = linear(x.clone(), &weights, Some(bias.clone()));
        let expected = linear(round_activations(x.clone(), n_in, grid), &floats, Some(bias.clone()));
        assert!((y.clone() - expected).abs().max().into_scalar::<f32>() < 1e-4, "{grid:?}");
        let unrounded = linear(x.clone(), &floats, Some(bias.clone()));
        assert!((y - unrounded).abs().max().into_scalar::<f32>() > 1e-4, "{grid:?} rounds inputs");
        let (weights, floats) = (Weights::Linear(weights), Weights::Linear(floats.clone()));
        assert_eq!(weights.host_floats(), floats.host_floats(), "{grid:?}");
        assert_eq!(super::codes(&weights, &device).unwrap(), super::codes(&floats, &device).unwrap(), "{grid:?}");
    }
}

#[test]
fn scales_of_columns_multiply_inputs_and_decoded_weights() {
    let device = Device::flex();
    let (n_out, n_in, group) = (40, 70, 32);
    let scale = |at: usize| [0.5_f64, 1.0, 2.0, 8.0][at % 4];
    let columns = ColumnScales::nearest((0..n_in).map(scale));
    let factors = Tensor::<1>::from_data(TensorData::from(columns.values()), &device);
    let many = codes(n_out * n_in);
    let few: Vec<i8> = many.iter().map(|code| code >> 4).collect();
    let (scales, of_groups) = (vec![0.01; n_out], vec![0.01; n_out * n_in.div_ceil(group)]);
    let dims = [n_out, n_in];
    let int8 = |is_sparse, grid| LinearWeights::int8_on(&device, &many, &scales, dims, is_sparse, grid).unwrap();
    let int4 = |grid| LinearWeights::int4_on(&device, &few, &of_groups, dims, group, grid).unwrap();
    let grids = [Some(ActivationGrid::Asymmetric), Some(ActivationGrid::Symmetric), None];
    let fixed = Some(ActivationGrid::Fixed(CodeGrid { scale: 0.02, zero: 90 }));
    let x = Tensor::<3>::random([2, 5, n_in], Distribution::Uniform(-1.0, 2.0), &device);
    let bias = Some(Tensor::<1>::ones([n_out], &device) * 0.5);
    let plain = grids.into_iter().flat_map(|grid| [int8(false, grid), int8(true, grid), int4(grid)]);
    for plain in plain.chain([int8(false, fixed), int8(true, fixed)]) {
        let name = format!("{} {:?}", plain.name(), plain.grid);
        let scaled = plain.clone().with_columns(Some(columns.clone()), &device);
        let multiplied = x.clone() * factors.clone().reshape([1, 1, -1]);
        let expected = linear(multiplied, &plain, bias.clone());
        let found = linear(x.clone(), &scaled, bias.clone());
        assert_eq!((found - expected).abs().max().into_scalar::<f32>(), 0.0, "{name}");
        let like = Tensor::<1>::ones([1], &device);
        let [plain, scaled] = [plain, scaled].map(Weights::Linear);
        let [of_plain, of_scaled] = [&plain, &scaled].map(|weights| decode(like.clone(), weights));
        let apart = of_plain * factors.clone().reshape([1, -1]) - of_scaled;
        assert_eq!(apart.abs().max().into_scalar::<f32>(), 0.0, "{name}");
        assert_eq!(super::codes(&plain, &device).unwrap(), super::codes(&scaled, &device).unwrap(), "{name}");
    }
}

#[test]
fn blocks_with_scales_of_columns_equal_their_layers() {
    let device = Device::flex();
    let (n_in, n) = (32, 64);
    let layer = |n_out: usize, n_in: usize, factor: f64| {
        let codes = codes(n_out * n_in);
        let grid = Some(ActivationGrid::Asymmetric);
        let weights = LinearWeights::int8_on(&device, &codes, &vec![0.01; n_out], [n_out, n_in], false, grid).unwrap();
        let columns = ColumnScales::nearest((0..n_in).map(|at| factor * (1 + at % 5) as f64));
        CodedLinear { weights: weights.with_columns(Some(columns), &device), bias: None }
    };
    let x = Tensor::<3>::random([2, 7, n_in], Distribution::Uniform(-1.0, 1.0), &device);
    let through = |x: Tensor<3>, layer: &CodedLinear| linear(x, &layer.weights, layer.bias.clone());
    let (up, down) = (layer(n, n_in, 0.5), layer(n_in, n, 2.0));
    let expected = through(burn::tensor::activation::relu(through(x.clone(), &up)), &down);
    let found = feed_forward(&x, [up, down], FeedForwardActivation::Relu).unwrap();
    assert_eq!((found - expected).abs().max().into_scalar::<f32>(), 0.0);
    // Queries, keys and values share their codes, so their scales must be equal.
    let padding = Tensor::<2, burn::tensor::Bool>::from_data([[false; 7]; 2], &device);
    let alike = [1.0, 1.0, 1.0].map(|factor| layer(n_in, n_in, factor));
    let plain = alike.clone().map(|layer| CodedLinear { weights: layer.weights.with_columns(None, &device), ..layer });
    let multiply = alike[0].weights.columns().unwrap().scales().values().to_vec();
    let multiplied =
        x.clone() * Tensor::<1>::from_data(TensorData::from(multiply.as_slice()), &device).reshape([1, 1, -1]);
    let expected = self_attention(&multiplied, plain, None, 4, &padding).unwrap();
    let found = self_attention(&x, alike, None, 4, &padding).unwrap();
    assert_eq!((found - expected).abs().max().into_scalar::<f32>(), 0.0);
    assert!(self_attention(&x, [1.0, 2.0, 1.0].map(|factor| layer(n_in, n_in, factor)), None, 4, &padding).is_none());
}

#[test]
fn views_and_half_floats_give_equal_results() {
    let device = Device::flex();
    let weights = PackedInt4::new(&[1, -2, 3, 4, 5, -6], &[0.5; 2], 2, 3, 3);
    let weights = LinearWeights::int4(weights);
    let floats = decode(Tensor::<1>::ones([1], &device), &Weights::Linear(weights.clone()));
    assert_eq!(floats.into_data().try_to_vec::<f32>().unwrap(), [0.5, -1.0, 1.5, 2.0, 2.5, -3.0]);
    let x = Tensor::<2>::from_data([[9.0, 9.0], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &device);
    let y = linear(x.narrow(0, 1, 3).transpose(), &weights, None);
    assert_eq!(y.clone().into_data().try_to_vec::<f32>().unwrap(), [5.0, -5.5, 6.0, -4.0]);
    let half = Tensor::<2>::from_data([[1.0, 3.0, 5.0]], &device).cast(FloatDType::F16);
    let y = linear(half, &weights, None);
    assert_eq!(y.dtype(), burn::tensor::DType::F16);
    assert_eq!(y.cast(FloatDType::F32).into_data().try_to_vec::<f32>().unwrap(), [5.0, -5.5]);
}

#[test]
fn a_convolution_and_an_embedding_run_on_tensors() {
    let device = Device::flex();
    let shape = Conv2dShape::new(2, 1, [3, 3]);
    let weights = PackedConv2d::new(&[1; 18], &[1.0], shape.weight_dims(), false).unwrap();
    let weights = QuantizedConv2d::new(weights, ActivationGrid::Symmetric);
    let bounds = OutputBounds::Relu;
    let call = Conv2dCall { weights, shape, has_scale: false, has_shift: false, bounds, channels_last: false };
    let shift = [None, Some(Tensor::<1>::ones([1], &device))];
    let x = Tensor::<4>::ones([2, 2, 4, 5], &device);
    let y = conv2d(x.clone(), None, shift.clone(), call.clone());
    assert_eq!(y.dims(), [2, 1, 2, 3]);
    assert!((y.clone() - 19.0).abs().max().into_scalar::<f32>() < 1e-4);
    let last = Conv2dCall { bounds: OutputBounds::Relu6, channels_last: true, ..call.clone() };
    let cut = conv2d(x.clone(), None, shift.clone(), last.clone());
    assert_eq!((cut.dims(), cut.clone().min().into_scalar::<f32>()), (y.dims(), 6.0));
    // Images with their channels last give the same outputs, and sums keep their order.
    let x_last = x.clone().permute([0, 2, 3, 1]).add_scalar(0.0).permute([0, 3, 1, 2]);
    let same = conv2d(x_last, Some(cut), shift.clone(), Conv2dCall { bounds: OutputBounds::Relu, ..last });
    assert!((same - y.clone() - 6.0).abs().max().into_scalar::<f32>() < 1e-4);
    let added = conv2d(x, Some(y.clone()), shift, call);
    assert!((added - y * 2.0).abs().max().into_scalar::<f32>() < 1e-4);
    let table = Table::on(&device, vec![1, 0, 0, 2], &[1.0, 0.5], [2, 2], true);
    let rows = embedding(Tensor::<2, Int>::from_data([[1, 0, 1]], &device), &table);
    assert_eq!(rows.into_data().try_to_vec::<f32>().unwrap(), [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn float_convolutions_and_gradients_agree_with_burn() {
    let device = Device::flex().autodiff();
    let shape = Conv2dShape { padding: [[1, 1], [0, 0]], stride: [2, 1], ..Conv2dShape::new(3, 5, [3, 2]) };
    let random = |dims: [usize; 4]| Tensor::<4>::random(dims, Distribution::Uniform(-1.0, 1.0), &device).require_grad();
    // A view, which an input may be.
    let (x, weight) = (random([4, 6, 7, 3]), random(shape.weight_dims()));
    let bias = Tensor::<1>::random([5], Distribution::Uniform(-1.0, 1.0), &device).require_grad();
    let view = || x.clone().swap_dims(1, 3);
    let options = ConvOptions::new([2, 1], [1, 0], [1, 1], 1);
    let expected = module::conv2d(view(), weight.clone(), Some(bias.clone()), options);
    assert!(convolves(&view(), &shape) && convolves(&view().inner(), &shape));
    let y = float_conv2d(view(), weight.clone(), Some(bias.clone()), shape);
    let far = |a: Tensor<4>, b: Tensor<4>| (a - b).abs().max().into_scalar::<f32>();
    assert!(far(y.clone().inner(), expected.clone().inner()) < 1e-5);
    let weights_of = Tensor::<4>::random(y.dims(), Distribution::Uniform(-1.0, 1.0), &device);
    let [a, b] = [y, expected].map(|y| (y * weights_of.clone()).sum().backward());
    for tensor in [&x, &weight] {
        assert!(far(tensor.grad(&a).unwrap(), tensor.grad(&b).unwrap()) < 1e-4);
    }
    assert!((bias.grad(&a).unwrap() - bias.grad(&b).unwrap()).abs().max().into_scalar::<f32>() < 1e-4);
}

#[test]
fn max_pooling_and_gradients_agree_with_burn() {
    let device = Device::flex().autodiff();
    let x = Tensor::<4>::random([2, 3, 7, 9], Distribution::Uniform(-1.0, 1.0), &device).require_grad();
    let options = MaxPoolOptions { stride: [2, 2], padding: [(1, 1); 2], ..MaxPoolOptions::new([3, 3]) };
    let (y, expected) = (max_pool2d(x.clone(), [3, 3], [2, 2], [1, 1]), module::max_pool2d(x.clone(), options));
    let far = |a: Tensor<4>, b: Tensor<4>| (a - b).abs().max().into_scalar::<f32>();
    assert_eq!(far(y.clone().inner(), expected.clone().inner()), 0.0);
    let [a, b] = [y, expected].map(|y| x.grad(&(y.clone() * y).sum().backward()).unwrap());
    assert_eq!(far(a, b), 0.0);
}
