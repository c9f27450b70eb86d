//! The parameters of a module as tensors that the `safetensors` crate writes.

use crate::NameMap;
use crate::module_source::ModuleSource;
use briquette_core::{Error, Result};
use briquette_formats::TensorSource;
use burn::module::Module;
use burn::tensor::Device;
use safetensors::{Dtype, View};
use std::borrow::Cow;

/// A parameter with its effective weights, for [`safetensors::serialize`]: see [`dense_tensors`].
#[derive(Debug, Clone, PartialEq)]
pub struct DenseTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for DenseTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Returns all parameters of a module by name, with the weights that the module computes with.
///
/// Dropped weights are 0, and quantized weights have the values of their codes. Use it to write a plain file for
/// programs that read dense weights. All weights are in memory at once. [`Export`](crate::Export) writes masks
/// and codes, and holds only a few tensors.
///
/// ```
/// use briquette_nn::{NameMap, dense_tensors, safetensors};
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
///
/// let layer = LinearConfig::new(4, 3).init(&Device::flex());
/// let file = safetensors::serialize(dense_tensors(&layer, &NameMap::torch())?, None)?;
/// let tensors = safetensors::SafeTensors::deserialize(&file)?;
/// assert_eq!(tensors.tensor("weight")?.shape(), [3, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - Config: two parameters have one name
/// - Refused: safetensors cannot store the type, or masks or scales do not belong to the attached rules
/// - Io: a device does not return a tensor
pub fn dense_tensors<M: Module>(module: &M, names: &NameMap) -> Result<Vec<(String, DenseTensor)>> {
    if module.devices().iter().any(Device::is_autodiff) {
        // During training, burn delays the last update of running statistics; `valid` applies it.
        drop(module.valid());
    }
    let source = ModuleSource::new(module, names)?;
    let tensor = |(index, info): (usize, &briquette_formats::TensorInfo)| {
        let refused = || Error::refused(format!("safetensors cannot store {}", info.dtype)).at(&info.name);
        let dtype = serde_json::from_value(info.dtype.name().into()).map_err(|_| refused())?;
        let bytes = source.effective(index)?;
        Ok((info.name.to_string(), DenseTensor { dtype, shape: info.shape.0.clone(), bytes }))
    };
    source.tensors().iter().enumerate().map(tensor).collect()
}
