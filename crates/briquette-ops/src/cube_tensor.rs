//! Conversions between burn tensors and device buffers.

use briquette_cuda::{DeviceBuffer, ElemType, Floats, Gpu};
use burn::backend::cubecl::dtype_to_elem_type;
use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::{DType, Device, Shape};
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops;
use burn_cubecl::tensor::CubeTensor;

/// Returns the CUDA device of a burn device, if it is one.
pub fn gpu_of(device: &Device) -> Option<Gpu> {
    match device.as_dispatch() {
        DispatchDevice::Cube(device @ CubeDevice::Cuda(_)) => Some(Gpu::new(device.client())),
        _ => None,
    }
}

/// Returns the elements of a tensor as one contiguous buffer.
pub(crate) fn buffer(tensor: CubeTensor) -> DeviceBuffer {
    let tensor = into_contiguous(tensor);
    let n_bytes = tensor.meta.shape().num_elements() * tensor.dtype.size();
    DeviceBuffer::new(tensor.handle, n_bytes)
}

/// Returns a tensor as rows of its last `n_cols` elements.
pub(crate) fn floats(tensor: CubeTensor, n_cols: usize) -> Floats {
    let (n, dtype) = (tensor.meta.shape().num_elements(), elem_type(tensor.dtype));
    Floats { buffer: buffer(tensor), dtype, n_rows: n.checked_div(n_cols).unwrap_or(0), n_cols }
}

pub(crate) fn elem_type(dtype: DType) -> ElemType {
    dtype_to_elem_type(dtype)
}

/// Returns the elements of an f32 vector, or `None` if not `is_there`.
pub(crate) fn vector(tensor: CubeTensor, is_there: bool) -> Option<DeviceBuffer> {
    is_there.then(|| buffer(if tensor.dtype == DType::F32 { tensor } else { cast(tensor, DType::F32) }))
}

/// A tensor that gives results their device and type.
pub(crate) struct Like(pub(crate) CubeTensor);

impl Like {
    pub(crate) fn tensor(&self, floats: Floats, shape: Shape) -> CubeTensor {
        self.of_type(floats, shape, self.0.dtype)
    }

    pub(crate) fn of_type(&self, floats: Floats, shape: Shape, dtype: DType) -> CubeTensor {
        self.of_buffer(floats.buffer, shape, dtype)
    }

    pub(crate) fn of_buffer(&self, buffer: DeviceBuffer, shape: Shape, dtype: DType) -> CubeTensor {
        let handle = buffer.into_handle();
        CubeTensor::new_contiguous(self.0.client.clone(), self.0.device.clone(), shape, handle, dtype)
    }

    /// Computes `x · wᵀ` with burn's own product, for weights decoded to floats.
    pub(crate) fn multiply(&self, x: Floats, weights: Floats) -> CubeTensor {
        let [n_rows, n_in, n_out] = [x.n_rows, x.n_cols, weights.n_rows];
        let weights = ops::permute(self.tensor(weights, Shape::new([n_out, n_in])), &[1, 0]);
        let x = self.tensor(x, Shape::new([n_rows, n_in]));
        matmul(x, weights, None, MatmulStrategy::default(), self.0.dtype).expect("a product of floats")
    }
}
