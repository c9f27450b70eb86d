//! Operations with quantized weights.

use super::weights::CudaLinear;
use crate::compressed::host_or_cuda::{ELSEWHERE, HostOrCuda};
use crate::compressed::quantized::QuantizedOps;
use crate::compressed::shapes::{conv2d_shape, embedding_shape, linear_shape};
use crate::compressed::weights::{Conv2dCall, LinearWeights, Table, Weights};
use crate::cube_tensor::{Like, buffer, elem_type, floats, vector};
use briquette_cpu::{ActivationGrid, OutputBounds};
use briquette_cuda::{Conv2dSteps, DeviceEpilogue, Floats, Gpu, Ids};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape, Slice};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::{permute, reshape};
use burn_cubecl::tensor::CubeTensor;

/// Returns the weights on a CUDA device.
pub(super) fn on_cuda<H, C>(placed: &HostOrCuda<H, C>) -> &C {
    match placed {
        HostOrCuda::Cuda(weights, _) => weights,
        HostOrCuda::Host(_) => panic!("{ELSEWHERE}"),
    }
}

fn steps(call: &Conv2dCall, size: [usize; 2]) -> Conv2dSteps {
    let shape = &call.shape;
    Conv2dSteps {
        channels: shape.n_in,
        size,
        kernel: shape.kernel,
        stride: shape.stride,
        padding: shape.padding,
        dilation: shape.dilation,
    }
}

/// Computes a convolution into `y`, or adds it to `y` if `adds`.
fn conv2d(x: CubeTensor, y: Floats, [scale, shift]: [CubeTensor; 2], call: &Conv2dCall, adds: bool) -> Floats {
    let weights = on_cuda(&call.weights.placed);
    let shape = x.meta.shape().clone();
    assert!(shape.num_dims() == 4 && shape[1] == call.shape.n_in, "{shape:?} convolved as {:?}", call.shape);
    let (scale, shift) = (vector(scale, call.has_scale), vector(shift, call.has_shift));
    let epilogue = DeviceEpilogue { scale, shift, adds, relu: call.bounds != OutputBounds::None };
    let is_symmetric = call.weights.grid != ActivationGrid::Asymmetric;
    if call.shape.is_pointwise() {
        let pixels = floats(pixels_of(x, call.shape.stride), call.shape.n_in);
        weights.forward_pixels(&pixels, is_symmetric, &epilogue, &y);
    } else {
        let steps = steps(call, [shape[2], shape[3]]);
        weights.forward(&floats(x, shape[1] * shape[2] * shape[3]), &steps, is_symmetric, &epilogue, &y);
    }
    y
}

/// Returns the pixels of images that are `stride` apart, `[n, height, width, channel]`.
fn pixels_of(x: CubeTensor, stride: [usize; 2]) -> CubeTensor {
    let shape = x.meta.shape();
    let extents = [shape[0], shape[1], shape[2], shape[3]];
    let steps = [1, 1, stride[0], stride[1]];
    let apart: Vec<Slice> =
        extents.into_iter().zip(steps).map(|(n, step)| Slice::new(0, Some(n as isize), step as isize)).collect();
    let x = if stride == [1, 1] { x } else { <CubeBackend as FloatTensorOps<CubeBackend>>::float_slice(x, &apart) };
    into_contiguous(permute(x, &[0, 2, 3, 1]))
}

impl QuantizedOps for CubeBackend {
    fn quantized_linear(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        weights: LinearWeights,
        has_bias: bool,
    ) -> FloatTensor<Self> {
        let (n_in, n_out) = (weights.n_in(), weights.n_out());
        let last = x.meta.shape().num_dims() - 1;
        assert_eq!(x.meta.shape()[last], n_in, "{:?} times weights of [{n_out}, {n_in}]", x.meta.shape());
        let shape = linear_shape(x.meta.shape(), &weights);
        let (like, x, shift) = (Like(x.clone()), floats(x, n_in), vector(bias.clone(), has_bias));
        let by_floats = |weights: Floats, x: Floats| {
            let y = like.multiply(x, weights);
            let bias = reshape(bias, Shape::new(if has_bias { [1, n_out] } else { [1, 1] }));
            let y = if has_bias { <Self as FloatTensorOps<Self>>::float_add(y, bias) } else { y };
            reshape(y, shape.clone())
        };
        // Inputs on a fixed grid were rounded before.
        let y = match (on_cuda(&weights.placed), weights.grid.filter(|grid| !grid.is_fixed())) {
            (CudaLinear::Int8(weights), Some(grid)) => {
                let epilogue = DeviceEpilogue { shift, ..DeviceEpilogue::default() };
                weights.linear(&x, grid != ActivationGrid::Asymmetric, &epilogue)
            }
            (CudaLinear::Int8(weights), None) => match weights.weight_only(&x, shift.as_ref()) {
                Some(y) => y,
                None => return by_floats(weights.decode(x.dtype), x),
            },
            (CudaLinear::Int4(weights), _) => match weights.weight_only(&x, shift.as_ref()) {
                Some(y) => y,
                None => return by_floats(weights.decode(x.dtype), x),
            },
        };
        like.tensor(y, shape)
    }

    fn quantized_conv2d(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self> {
        let (like, shape) = (Like(x.clone()), conv2d_shape(x.meta.shape(), &call));
        let gpu = Gpu::new(x.client.clone());
        let y = Floats::empty(&gpu, elem_type(x.dtype), shape[0], shape[1] * shape[2] * shape[3]);
        like.tensor(conv2d(x, y, [scale, shift], &call, false), shape)
    }

    fn quantized_conv2d_add(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self> {
        // Memory shared with another tensor is copied before it is overwritten.
        let y = into_contiguous(y);
        let y = if y.can_mut() { y } else { y.copy() };
        let shape = y.meta.shape().clone();
        let n_cols = shape[1] * shape[2] * shape[3];
        let like = Like(CubeTensor { handle: x.handle.clone(), ..y.clone() });
        like.tensor(conv2d(x, floats(y, n_cols), [scale, shift], &call, true), shape)
    }

    fn quantized_embedding(ids: IntTensor<Self>, table: Table) -> FloatTensor<Self> {
        let weights = on_cuda(&table.placed);
        let shape = embedding_shape(ids.meta.shape(), &table);
        let (like, dtype) = (Like(ids.clone()), elem_type(ids.dtype));
        let rows = weights.lookup(&Ids { buffer: buffer(ids), dtype }, elem_type(DType::F32));
        like.of_type(rows, shape, DType::F32)
    }

    fn quantized_decode(like: FloatTensor<Self>, weights: Weights) -> FloatTensor<Self> {
        let dtype = elem_type(like.dtype);
        let (shape, like) = (Shape::new(weights.dims()), Like(like));
        let rows = match &weights {
            Weights::Linear(weights) => match on_cuda(&weights.placed) {
                CudaLinear::Int8(weights) => weights.decode(dtype),
                CudaLinear::Int4(weights) => weights.decode(dtype),
            },
            Weights::Conv(conv) => on_cuda(&conv.placed).rows().decode(dtype),
            Weights::Table(table) => on_cuda(&table.placed).decode(dtype),
        };
        like.tensor(rows, shape)
    }
}
