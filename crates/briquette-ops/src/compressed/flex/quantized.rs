//! Operations with quantized weights.

use crate::compressed::host_or_cuda::ELSEWHERE;
use crate::compressed::quantized::QuantizedOps;
use crate::compressed::shapes::{conv2d_shape, embedding_shape, linear_shape};
use crate::compressed::weights::{Conv2dCall, HostLinear, LinearWeights, Table, Weights};
use crate::flex_tensor::{change, elements, vector};
use briquette_core::simd::active_level;
use briquette_cpu::ActivationElement;
use briquette_cpu::embedding::int8_embedding;
use briquette_cpu::int4_linear;
use briquette_cpu::int8_linear;
use briquette_cpu::w4a8_linear;
use briquette_cpu::weight_only_linear;
use briquette_cpu::{ConvEpilogue, ImageOrder, Int8Conv2d, int8_conv2d};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape, TensorData};
use half::{bf16, f16};

/// Calls `$run` with the elements of a float tensor, and returns its f32 result in the type of the tensor.
macro_rules! with_floats {
    ($x:ident, |$values:ident| $run:expr, $shape:expr) => {{
        let data = match $x.dtype() {
            DType::F32 => {
                let $values: &[f32] = elements(&$x);
                TensorData::new($run, $shape)
            }
            DType::F16 => {
                let $values: &[f16] = elements(&$x);
                TensorData::new($run.into_iter().map(f16::from_f32).collect::<Vec<_>>(), $shape)
            }
            DType::BF16 => {
                let $values: &[bf16] = elements(&$x);
                TensorData::new($run.into_iter().map(bf16::from_f32).collect::<Vec<_>>(), $shape)
            }
            other => panic!("found {other:?}, expected f32, f16 or bf16 in quantized operations"),
        };
        FlexTensor::from_data(data)
    }};
}

fn linear<T: ActivationElement>(x: &[T], n_rows: usize, weights: &LinearWeights, bias: Option<&[f32]>) -> Vec<f32> {
    let (path, mut y) = (active_level(), vec![0.0; n_rows * weights.n_out()]);
    match (weights.placed.on_host().expect(ELSEWHERE), weights.input_rounding()) {
        (HostLinear::Int8(weights), Some(inputs)) => int8_linear(path, x, n_rows, inputs, &**weights, bias, &mut y),
        (HostLinear::Sparse(weights), Some(inputs)) => int8_linear(path, x, n_rows, inputs, &**weights, bias, &mut y),
        (HostLinear::Int8(weights), None) => weight_only_linear(path, x, n_rows, &**weights, bias, &mut y),
        (HostLinear::Sparse(weights), None) => weight_only_linear(path, x, n_rows, &**weights, bias, &mut y),
        (HostLinear::Int4(weights), _) => int4_linear(path, x, n_rows, weights, bias, &mut y),
        (HostLinear::W4A8(weights), inputs) => {
            w4a8_linear(path, x, n_rows, inputs.unwrap_or_default(), weights, bias, &mut y);
        }
    }
    y
}

fn conv2d<T: ActivationElement>(
    x: &[T],
    size: [usize; 3],
    call: &Conv2dCall,
    [scale, shift]: &[Option<Vec<f32>>; 2],
    (adds, orders): (bool, [ImageOrder; 2]),
    y: &mut [f32],
) {
    let weights = call.weights.placed.on_host().expect(ELSEWHERE);
    let epilogue = ConvEpilogue { scale: scale.as_deref(), shift: shift.as_deref(), adds, bounds: call.bounds };
    let conv = Int8Conv2d { weights, shape: call.shape, grid: call.weights.grid, epilogue, orders };
    int8_conv2d(active_level(), x, size, &conv, y);
}

/// The axes of images `[n, channel, height, width]` with their channels last, and back.
const LAST: [usize; 4] = [0, 2, 3, 1];
const FIRST: [usize; 4] = [0, 3, 1, 2];

/// Returns images as contiguous values, and their order.
fn in_order(x: FlexTensor) -> (FlexTensor, ImageOrder) {
    let last = x.permute(&LAST);
    match last.is_contiguous() && !x.is_contiguous() {
        true => (last, ImageOrder::ChannelsLast),
        false => (x.to_contiguous(), ImageOrder::ChannelsFirst),
    }
}

/// Returns the number of images, their height and width, and the shape of the output.
fn conv2d_sizes(x: &FlexTensor, call: &Conv2dCall) -> ([usize; 3], Shape) {
    let (shape, conv) = (x.layout().shape(), &call.shape);
    assert!(shape.num_dims() == 4 && shape[1] == conv.n_in, "{shape:?} convolved as {conv:?}");
    ([shape[0], shape[2], shape[3]], conv2d_shape(shape, call))
}

impl QuantizedOps for Flex {
    fn quantized_linear(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        weights: LinearWeights,
        has_bias: bool,
    ) -> FloatTensor<Self> {
        let (x, bias) = (x.to_contiguous(), vector(bias, has_bias));
        let (shape, n_in) = (x.layout().shape(), weights.n_in());
        let last = shape.num_dims() - 1;
        assert_eq!(shape[last], n_in, "{shape:?} times weights of [{}, {n_in}]", weights.n_out());
        let n_rows = (0..last).map(|i| shape[i]).product();
        let y_shape = linear_shape(shape, &weights);
        with_floats!(x, |values| linear(values, n_rows, &weights, bias.as_deref()), y_shape)
    }

    fn quantized_conv2d(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self> {
        let (size, out) = conv2d_sizes(&x, &call);
        let (x, order) = in_order(x);
        let factors = [vector(scale, call.has_scale), vector(shift, call.has_shift)];
        let mut y = vec![0.0; out.num_elements()];
        let orders = [order, if call.channels_last { ImageOrder::ChannelsLast } else { ImageOrder::ChannelsFirst }];
        let out = if call.channels_last { Shape::from(LAST.map(|axis| out[axis])) } else { out };
        let y = with_floats!(
            x,
            |values| {
                conv2d(values, size, &call, &factors, (false, orders), &mut y);
                y
            },
            out
        );
        if call.channels_last { y.permute(&FIRST) } else { y }
    }

    fn quantized_conv2d_add(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self> {
        let (size, out) = conv2d_sizes(&x, &call);
        let factors = [vector(scale, call.has_scale), vector(shift, call.has_shift)];
        assert_eq!(y.layout().shape(), &out, "shape of the tensor to which outputs are added");
        let ((x, of_x), (y, of_y)) = (in_order(x), in_order(y));
        let y = change(y, |y| conv2d(elements::<f32>(&x), size, &call, &factors, (true, [of_x, of_y]), y));
        if of_y == ImageOrder::ChannelsLast { y.permute(&FIRST) } else { y }
    }

    fn quantized_embedding(ids: IntTensor<Self>, table: Table) -> FloatTensor<Self> {
        let shape = embedding_shape(ids.layout().shape(), &table);
        let ids: Vec<usize> =
            ids.into_data().iter::<i64>().map(|id| usize::try_from(id).unwrap_or(usize::MAX)).collect();
        let mut out = vec![0.0_f32; ids.len() * table.n_cols()];
        int8_embedding(&ids, table.placed.on_host().expect(ELSEWHERE), &mut out);
        FlexTensor::from_data(TensorData::new(out, shape))
    }

    fn quantized_decode(like: FloatTensor<Self>, weights: Weights) -> FloatTensor<Self> {
        let floats = weights.host_floats().expect(ELSEWHERE);
        FlexTensor::from_data(TensorData::new(floats, weights.dims()).convert_dtype(like.dtype()))
    }
}
