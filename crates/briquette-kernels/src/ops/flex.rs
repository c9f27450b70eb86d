//! The operations on the CPU.

use super::QuantizedOps;
use super::weights::{Conv2dCall, ConvKind, Kind, LinearWeights, Table, TableKind, Weights};
use crate::activations::Activation;
use crate::conv2d::{Finish, Int8Conv2d, int8_conv2d};
use crate::embedding::int8_embedding;
use crate::int4::int4_linear;
use crate::linear::int8_linear;
use crate::path::active_path;
use crate::weight_only::weight_only_linear;
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape, TensorData};
use half::{bf16, f16};

/// A bug of the caller.
#[cfg(feature = "cuda")]
const ELSEWHERE: &str = "weights are laid out for another device";

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
            other => panic!("quantized operations take f32, f16 and bf16, not {other:?}"),
        };
        FlexTensor::from_data(data)
    }};
}

/// The elements of a contiguous tensor of their type.
pub(super) fn elements<E: burn::tensor::Element + bytemuck::Pod>(tensor: &FlexTensor) -> &[E] {
    let (first, n) = (tensor.layout().start_offset(), tensor.layout().shape().num_elements());
    &tensor.storage()[first..first + n]
}

/// Changes the elements of an f32 tensor in place, where nobody else has it.
pub(super) fn change(x: FlexTensor, f: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut data = x.into_data();
    f(data.as_mut_slice().expect("a tensor of f32"));
    FlexTensor::from_data(data)
}

fn linear<T: Activation>(x: &[T], n_rows: usize, weights: &LinearWeights, bias: Option<&[f32]>) -> Vec<f32> {
    let (path, mut y) = (active_path(), vec![0.0; n_rows * weights.n_out()]);
    match &weights.0 {
        Kind::Int8(weights, Some(grid)) => int8_linear(path, x, n_rows, *grid, &**weights, bias, &mut y),
        Kind::Sparse(weights, Some(grid)) => int8_linear(path, x, n_rows, *grid, &**weights, bias, &mut y),
        Kind::Int8(weights, None) => weight_only_linear(path, x, n_rows, &**weights, bias, &mut y),
        Kind::Sparse(weights, None) => weight_only_linear(path, x, n_rows, &**weights, bias, &mut y),
        Kind::Int4(weights) => int4_linear(path, x, n_rows, weights, bias, &mut y),
        #[cfg(feature = "cuda")]
        Kind::CubeInt8(..) | Kind::CubeInt4(_) => panic!("{ELSEWHERE}"),
    }
    y
}

/// A vector as f32, where there is one; it has a few kilobytes.
fn vector(tensor: FlexTensor, is_there: bool) -> Option<Vec<f32>> {
    is_there.then(|| tensor.into_data().iter::<f32>().collect())
}

/// What finishes the outputs of a convolution.
struct Ending {
    scale: Option<Vec<f32>>,
    shift: Option<Vec<f32>>,
    adds: bool,
}

fn conv2d<T: Activation>(x: &[T], size: [usize; 3], call: &Conv2dCall, ending: &Ending, y: &mut [f32]) {
    let Ending { scale, shift, adds } = ending;
    let finish = Finish { scale: scale.as_deref(), shift: shift.as_deref(), adds: *adds, relu: call.relu };
    match &call.weights.kind {
        ConvKind::Host(weights) => {
            let conv = Int8Conv2d { weights, shape: call.shape, grid: call.weights.grid, finish };
            int8_conv2d(active_path(), x, size, &conv, y);
        }
        #[cfg(feature = "cuda")]
        ConvKind::Cube(_) => panic!("{ELSEWHERE}"),
    }
}

/// Images, their height and width, and the shape of the output.
fn conv2d_sizes(x: &FlexTensor, call: &Conv2dCall) -> ([usize; 3], Shape) {
    let (shape, conv) = (x.layout().shape(), &call.shape);
    assert!(shape.num_dims() == 4 && shape[1] == conv.n_in, "{shape:?} convolved as {conv:?}");
    let [height, width] = conv.out_size([shape[2], shape[3]]);
    ([shape[0], shape[2], shape[3]], Shape::new([shape[0], conv.n_out, height, width]))
}

impl QuantizedOps for Flex {
    fn quantized_linear(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        weights: LinearWeights,
        has_bias: bool,
    ) -> FloatTensor<Self> {
        let (x, bias) = (x.to_contiguous(), vector(bias, has_bias));
        let mut shape = x.layout().shape().clone();
        let (last, n_in) = (shape.num_dims() - 1, weights.n_in());
        assert_eq!(shape[last], n_in, "{shape:?} times weights of [{}, {n_in}]", weights.n_out());
        let n_rows = (0..last).map(|i| shape[i]).product();
        shape[last] = weights.n_out();
        with_floats!(x, |values| linear(values, n_rows, &weights, bias.as_deref()), shape)
    }

    fn quantized_conv2d(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        let (size, out) = conv2d_sizes(&x, &call);
        let ending = Ending { scale: vector(scale, call.has_scale), shift: vector(shift, call.has_shift), adds: false };
        let mut y = vec![0.0; out.num_elements()];
        with_floats!(
            x,
            |values| {
                conv2d(values, size, &call, &ending, &mut y);
                y
            },
            out
        )
    }

    fn quantized_conv2d_add(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        let (size, out) = conv2d_sizes(&x, &call);
        assert_eq!(y.layout().shape(), &out, "the tensor that outputs are added to");
        let ending = Ending { scale: vector(scale, call.has_scale), shift: vector(shift, call.has_shift), adds: true };
        change(y, |y| conv2d(elements::<f32>(&x), size, &call, &ending, y))
    }

    fn quantized_embedding(ids: IntTensor<Self>, table: Table) -> FloatTensor<Self> {
        let mut shape: Vec<usize> = (0..ids.layout().shape().num_dims()).map(|i| ids.layout().shape()[i]).collect();
        shape.push(table.n_cols());
        let ids: Vec<usize> =
            ids.into_data().iter::<i64>().map(|id| usize::try_from(id).unwrap_or(usize::MAX)).collect();
        let mut out = vec![0.0_f32; ids.len() * table.n_cols()];
        match &table.0 {
            TableKind::Host(table) => int8_embedding(&ids, table, &mut out),
            #[cfg(feature = "cuda")]
            TableKind::Cube(_) => panic!("{ELSEWHERE}"),
        }
        FlexTensor::from_data(TensorData::new(out, shape))
    }

    fn quantized_decode(like: FloatTensor<Self>, weights: Weights) -> FloatTensor<Self> {
        let floats = weights.host_floats().unwrap_or_else(|| panic!("weights are laid out for another device"));
        FlexTensor::from_data(TensorData::new(floats, weights.dims()).convert_dtype(like.dtype()))
    }
}
