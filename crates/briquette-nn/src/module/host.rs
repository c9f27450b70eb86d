//! Reads tensors to host memory.

use briquette_core::{Error, ErrorKind, Result};
use burn::tensor::{Bool, DType, Tensor, TensorData};

/// Reads a tensor to the host as f32; quantized tensors are dequantized.
///
/// # Errors
/// Io: the device does not return the tensor.
pub fn read_f32<const D: usize>(tensor: Tensor<D>, path: &str) -> Result<Vec<f32>> {
    let tensor = if matches!(tensor.dtype(), DType::QFloat(_)) { tensor.dequantize() } else { tensor };
    let data = tensor.without_autodiff().try_into_data().map_err(|error| unreadable(path, &error))?;
    data.convert::<f32>().try_into_vec().map_err(|error| unreadable(path, &error))
}

/// Returns the error for a device that does not return a tensor.
pub fn unreadable(path: &str, error: &impl std::fmt::Display) -> Error {
    Error { kind: ErrorKind::Io, ..Error::bug(format!("{path}: cannot read from its device: {error}")) }
}

/// Reads booleans to the host, whatever the device's storage type.
///
/// # Errors
/// See [`read_f32`].
pub fn read_bools<const D: usize>(tensor: Tensor<D, Bool>, path: &str) -> Result<Vec<bool>> {
    let data: TensorData = tensor.try_into_data().map_err(|error| unreadable(path, &error))?;
    Ok(data.iter::<bool>().collect())
}
