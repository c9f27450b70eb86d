//! What the output is compared with, where the last stages work on something else: a student, or factors.

use super::figures::{Footprint, GoneTensor, TensorReport};
use briquette_core::Result;
use briquette_core::{Role, RoleRule};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use briquette_recipe::plan::role::RoleContext;
use std::collections::BTreeMap;

/// The recipe's own model.
#[derive(Debug, Clone)]
pub struct Original {
    pub(super) format: String,
    pub(super) footprint: Footprint,
    tensors: Vec<(TensorInfo, Role)>,
}

impl Original {
    /// Of a checkpoint, by its headers.
    ///
    /// # Errors
    /// Input, where its config.json is damaged.
    pub fn of(checkpoint: &Checkpoint, roles: &[RoleRule]) -> Result<Self> {
        let infos = checkpoint.tensors().iter();
        let footprint = Footprint {
            file_bytes: checkpoint.weight_bytes(),
            tensor_bytes: infos.clone().map(|info| info.n_bytes() as u64).sum(),
            n_elements: infos.clone().map(|info| info.n_elements() as u64).sum(),
            n_zeros: None,
        };
        let known = RoleContext::of_model(checkpoint, checkpoint.layout(), roles)?;
        let tensors = infos.map(|info| (info.clone(), known.of(info).role)).collect();
        Ok(Self { format: checkpoint.format().to_string(), footprint, tensors })
    }

    /// Gives tensors of the output the bytes that those of the same name and shape had. Returns what is gone.
    pub(super) fn put_before(&self, tensors: &mut [TensorReport]) -> Vec<GoneTensor> {
        let mut left: BTreeMap<&str, &(TensorInfo, Role)> =
            self.tensors.iter().map(|tensor| (tensor.0.name.as_str(), tensor)).collect();
        for tensor in tensors {
            // With another shape it is not the same tensor, whatever its name: the original's counts as gone.
            let same = left.get(tensor.name.as_str()).filter(|(info, _)| info.shape.0 == tensor.shape);
            if let Some((info, _)) = same {
                (tensor.dtype, tensor.before_bytes) = (info.dtype.to_string(), info.n_bytes() as u64);
                left.remove(tensor.name.as_str());
            } else {
                (tensor.is_new, tensor.before_bytes) = (true, 0);
            }
        }
        left.into_values().map(|(info, role)| gone(info, *role)).collect()
    }
}

fn gone(info: &TensorInfo, role: Role) -> GoneTensor {
    GoneTensor {
        name: info.name.clone(),
        role,
        dtype: info.dtype.to_string(),
        shape: info.shape.0.clone(),
        bytes: info.n_bytes() as u64,
    }
}
