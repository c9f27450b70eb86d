//! Scales of the columns of linear weights, which multiply the inputs.

use briquette_core::ColumnScales;
use burn::tensor::{DType, Device, Tensor, TensorData};

/// Scales of columns on the device that multiplies inputs by them.
#[derive(Debug, Clone)]
pub struct InputColumns {
    scales: ColumnScales,
    on_device: Tensor<1>,
}

impl InputColumns {
    pub(super) fn new(scales: ColumnScales, device: &Device) -> Self {
        let data = TensorData::from(scales.values());
        let on_device = Tensor::from_data(data, (&device.clone().without_autodiff(), DType::F32));
        Self { scales, on_device }
    }

    /// Returns the scales.
    pub const fn scales(&self) -> &ColumnScales {
        &self.scales
    }

    /// Multiplies inputs, or rows of weights, by the scales, in f32. The result has the type of `x`.
    pub(in crate::compressed) fn multiply<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (dtype, mut shape) = (x.dtype(), [1; D]);
        shape[D - 1] = self.scales.values().len();
        let scales = self.on_device.clone().reshape(shape);
        let scales = if x.device().is_autodiff() { Tensor::from_inner(scales) } else { scales };
        match dtype {
            DType::F32 => x.mul(scales),
            _ => x.cast(DType::F32).mul(scales).cast(dtype),
        }
    }
}
