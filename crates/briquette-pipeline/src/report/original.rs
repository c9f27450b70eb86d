//! What the output is compared with, where the last stages work on something else: a student, or factors.

use super::{Footprint, TensorReport};
use crate::role::{Role, RoleRule};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The recipe's own model.
#[derive(Debug, Clone)]
pub(crate) struct Original {
    pub(crate) format: String,
    pub(crate) footprint: Footprint,
    tensors: Vec<(TensorInfo, Role)>,
}

/// A tensor of the original that the output does not have, by its name and shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoneTensor {
    /// Its name.
    pub name: String,
    /// What it was in its network.
    pub role: Role,
    /// Its type.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The bytes it took.
    pub bytes: u64,
}

impl Original {
    /// Of a checkpoint, by its headers.
    pub(crate) fn of(checkpoint: &Checkpoint, roles: &[RoleRule]) -> Self {
        let infos = checkpoint.tensors().iter();
        let footprint = Footprint {
            file_bytes: checkpoint.weight_bytes(),
            tensor_bytes: infos.clone().map(|info| info.n_bytes() as u64).sum(),
            n_elements: infos.clone().map(|info| info.n_elements() as u64).sum(),
            n_zeros: None,
        };
        let tensors = infos.map(|info| (info.clone(), Role::of(info, roles))).collect();
        Self { format: checkpoint.format().to_string(), footprint, tensors }
    }

    /// Gives tensors of the output the bytes that those of the same name and shape had. Returns what is gone.
    pub(super) fn put_before(&self, tensors: &mut [TensorReport]) -> Vec<GoneTensor> {
        let mut left: BTreeMap<&str, &(TensorInfo, Role)> =
            self.tensors.iter().map(|tensor| (tensor.0.name.as_str(), tensor)).collect();
        for tensor in tensors {
            // One of another shape is another tensor: the original's is gone.
            let same = left.get(tensor.name.as_str()).filter(|(info, _)| info.shape.0 == tensor.shape);
            if let Some((info, _)) = same {
                (tensor.dtype, tensor.before_bytes) = (info.dtype.to_string(), info.n_bytes() as u64);
                left.remove(tensor.name.as_str());
            } else {
                (tensor.is_new, tensor.before_bytes) = (true, 0);
            }
        }
        left.into_values().map(|(info, role)| GoneTensor::of(info, *role)).collect()
    }
}

impl GoneTensor {
    fn of(info: &TensorInfo, role: Role) -> Self {
        Self {
            name: info.name.clone(),
            role,
            dtype: info.dtype.to_string(),
            shape: info.shape.0.clone(),
            bytes: info.n_bytes() as u64,
        }
    }
}

/// A row beside those of the output: kept as nothing.
impl From<&GoneTensor> for TensorReport {
    fn from(gone: &GoneTensor) -> Self {
        Self {
            name: gone.name.clone(),
            role: gone.role,
            dtype: gone.dtype.clone(),
            shape: gone.shape.clone(),
            encoding: String::new(),
            why: String::new(),
            before_bytes: gone.bytes,
            is_new: false,
            after_bytes: 0,
            bits_per_weight: 0.0,
            sparsity: 0.0,
            error: None,
        }
    }
}
