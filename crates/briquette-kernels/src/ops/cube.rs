//! The operations on CUDA devices, by the kernels of `briquette-cube`.

use super::QuantizedOps;
use super::weights::{Conv2dCall, ConvKind, Kind, LinearWeights, Table, TableKind, Weights};
use crate::activations::ActivationGrid;
use briquette_cube::{Buffer, Conv2dSteps, ElemType, Ending, Floats, Gpu, Ids};
use burn::backend::cubecl::dtype_to_elem_type;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::{DType, Device, Shape};
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, ops};

/// A bug of the caller.
const ELSEWHERE: &str = "weights are laid out for another device";

/// The CUDA device that a device is, if it is one.
pub fn gpu_of(device: &Device) -> Option<Gpu> {
    match device.as_dispatch() {
        DispatchDevice::Cube(device @ CubeDevice::Cuda(_)) => Some(Gpu::new(device.client())),
        _ => None,
    }
}

/// Elements one behind the other.
fn buffer(tensor: CubeTensor) -> Buffer {
    let tensor = into_contiguous(tensor);
    let n_bytes = tensor.meta.shape().num_elements() * tensor.dtype.size();
    Buffer::new(tensor.handle, n_bytes)
}

/// A tensor as rows of its last `n_cols` elements.
fn floats(tensor: CubeTensor, n_cols: usize) -> Floats {
    let (n, dtype) = (tensor.meta.shape().num_elements(), elem_type(tensor.dtype));
    Floats { buffer: buffer(tensor), dtype, n_rows: n.checked_div(n_cols).unwrap_or(0), n_cols }
}

fn elem_type(dtype: DType) -> ElemType {
    dtype_to_elem_type(dtype)
}

/// f32 elements of a vector, where there is one.
fn vector(tensor: CubeTensor, is_there: bool) -> Option<Buffer> {
    is_there.then(|| buffer(if tensor.dtype == DType::F32 { tensor } else { cast(tensor, DType::F32) }))
}

/// Where and of what type the results are.
struct Like(CubeTensor);

impl Like {
    fn tensor(&self, floats: Floats, shape: Shape) -> CubeTensor {
        self.of_type(floats, shape, self.0.dtype)
    }

    fn of_type(&self, floats: Floats, shape: Shape, dtype: DType) -> CubeTensor {
        let handle = floats.buffer.into_handle();
        CubeTensor::new_contiguous(self.0.client.clone(), self.0.device.clone(), shape, handle, dtype)
    }

    /// `x · wᵀ` by burn, with weights that were made floats for it.
    fn multiply(&self, x: Floats, weights: Floats) -> CubeTensor {
        let [n_rows, n_in, n_out] = [x.n_rows, x.n_cols, weights.n_rows];
        let weights = ops::permute(self.tensor(weights, Shape::new([n_out, n_in])), &[1, 0]);
        let x = self.tensor(x, Shape::new([n_rows, n_in]));
        matmul(x, weights, None, MatmulStrategy::default(), self.0.dtype).expect("a product of floats")
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

/// A convolution into `y`, or into what is in it.
fn conv2d(x: CubeTensor, y: Floats, [scale, shift]: [CubeTensor; 2], call: &Conv2dCall, adds: bool) -> Floats {
    let ConvKind::Cube(weights) = &call.weights.kind else { panic!("{ELSEWHERE}") };
    let shape = x.meta.shape().clone();
    assert!(shape.num_dims() == 4 && shape[1] == call.shape.n_in, "{shape:?} convolved as {:?}", call.shape);
    let steps = steps(call, [shape[2], shape[3]]);
    let (scale, shift) = (vector(scale, call.has_scale), vector(shift, call.has_shift));
    let ending = Ending { scale, shift, adds, relu: call.relu };
    let is_symmetric = call.weights.grid != ActivationGrid::Asymmetric;
    weights.forward(&floats(x, shape[1] * shape[2] * shape[3]), &steps, is_symmetric, &ending, &y);
    y
}

impl QuantizedOps for CubeBackend {
    fn quantized_linear(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        weights: LinearWeights,
        has_bias: bool,
    ) -> FloatTensor<Self> {
        let (n_in, n_out) = (weights.n_in(), weights.n_out());
        let mut shape = x.meta.shape().clone();
        let last = shape.num_dims() - 1;
        assert_eq!(shape[last], n_in, "{shape:?} times weights of [{n_out}, {n_in}]");
        shape[last] = n_out;
        let (like, x, shift) = (Like(x.clone()), floats(x, n_in), vector(bias.clone(), has_bias));
        let by_floats = |weights: Floats, x: Floats| {
            let y = like.multiply(x, weights);
            let bias = reshape(bias, Shape::new(if has_bias { [1, n_out] } else { [1, 1] }));
            let y = if has_bias { <Self as burn::backend::ops::FloatTensorOps<Self>>::float_add(y, bias) } else { y };
            reshape(y, shape.clone())
        };
        let y = match &weights.0 {
            Kind::CubeInt8(weights, Some(grid)) => {
                let ending = Ending { shift, ..Ending::default() };
                weights.linear(&x, *grid != ActivationGrid::Asymmetric, &ending)
            }
            Kind::CubeInt8(weights, None) => match weights.weight_only(&x, shift.as_ref()) {
                Some(y) => y,
                None => return by_floats(weights.decode(x.dtype), x),
            },
            Kind::CubeInt4(weights) => match weights.weight_only(&x, shift.as_ref()) {
                Some(y) => y,
                None => return by_floats(weights.decode(x.dtype), x),
            },
            _ => panic!("{ELSEWHERE}"),
        };
        like.tensor(y, shape)
    }

    fn quantized_conv2d(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self> {
        let (like, size) = (Like(x.clone()), x.meta.shape().clone());
        let [height, width] = call.shape.out_size([size[2], size[3]]);
        let shape = Shape::new([size[0], call.shape.n_out, height, width]);
        let gpu = Gpu::new(x.client.clone());
        let y = Floats::empty(&gpu, elem_type(x.dtype), size[0], call.shape.n_out * height * width);
        like.tensor(conv2d(x, y, [scale, shift], &call, false), shape)
    }

    fn quantized_conv2d_add(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        call: Conv2dCall,
    ) -> FloatTensor<Self> {
        // What others still have is not written to.
        let y = into_contiguous(y);
        let y = if y.can_mut() { y } else { y.copy() };
        let shape = y.meta.shape().clone();
        let n_cols = shape[1] * shape[2] * shape[3];
        let like = Like(CubeTensor { handle: x.handle.clone(), ..y.clone() });
        like.tensor(conv2d(x, floats(y, n_cols), [scale, shift], &call, true), shape)
    }

    fn quantized_embedding(ids: IntTensor<Self>, table: Table) -> FloatTensor<Self> {
        let TableKind::Cube(weights) = &table.0 else { panic!("{ELSEWHERE}") };
        let shape = super::embedding_shape(ids.meta.shape(), &table);
        let (like, dtype) = (Like(ids.clone()), elem_type(ids.dtype));
        let rows = weights.lookup(&Ids { buffer: buffer(ids), dtype }, elem_type(DType::F32));
        like.of_type(rows, shape, DType::F32)
    }

    fn quantized_decode(like: FloatTensor<Self>, weights: Weights) -> FloatTensor<Self> {
        let dtype = elem_type(like.dtype);
        let (shape, like) = (Shape::new(weights.dims()), Like(like));
        let rows = match &weights {
            Weights::Linear(LinearWeights(Kind::CubeInt8(weights, _))) => weights.decode(dtype),
            Weights::Linear(LinearWeights(Kind::CubeInt4(weights))) => weights.decode(dtype),
            Weights::Table(Table(TableKind::Cube(table))) => table.decode(dtype),
            Weights::Conv(conv) => match &conv.kind {
                ConvKind::Cube(conv) => conv.rows().decode(dtype),
                ConvKind::Host(_) => panic!("{ELSEWHERE}"),
            },
            _ => panic!("{ELSEWHERE}"),
        };
        like.tensor(rows, shape)
    }
}
