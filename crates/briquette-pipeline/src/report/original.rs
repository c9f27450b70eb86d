//! The original model, if the last stages work on a student or on factors.

use super::figures::{Footprint, GoneTensor, TensorReport};
use briquette_core::Result;
use briquette_core::{Role, RoleRule};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use briquette_recipe::plan::role::RoleContext;
use briquette_recipe::plan::topology::Topology;
use std::collections::BTreeMap;

/// The recipe's own model.
#[derive(Debug, Clone)]
pub struct Original {
    pub(super) format: String,
    pub(super) footprint: Footprint,
    tensors: Vec<(TensorInfo, Role)>,
}

impl Original {
    /// Reads the figures of a checkpoint from its headers.
    ///
    /// # Errors
    /// Input: its config.json is invalid.
    pub fn of(checkpoint: &Checkpoint, roles: &[RoleRule]) -> Result<Self> {
        let infos = checkpoint.tensors().iter();
        let footprint = Footprint {
            file_bytes: checkpoint.weight_bytes(),
            tensor_bytes: infos.clone().map(|info| info.n_bytes() as u64).sum(),
            n_elements: infos.clone().map(|info| info.n_elements() as u64).sum(),
            n_zeros: None,
        };
        let topology = Topology::of(checkpoint, checkpoint.layout())?;
        let known = RoleContext::of_model(checkpoint, &topology, checkpoint.layout(), roles)?;
        let tensors = infos.map(|info| (info.clone(), known.of(info).role)).collect();
        Ok(Self { format: checkpoint.format().to_string(), footprint, tensors })
    }

    /// Sets the bytes before compression of tensors with the same name and shape. Returns the tensors that the
    /// output lacks.
    pub(super) fn put_before(&self, tensors: &mut [TensorReport]) -> Vec<GoneTensor> {
        let mut left: BTreeMap<&str, &(TensorInfo, Role)> =
            self.tensors.iter().map(|tensor| (tensor.0.name.as_str(), tensor)).collect();
        for tensor in tensors {
            // A tensor with another shape is a different tensor, so the original's tensor counts as gone.
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
        name: info.name.to_string(),
        role,
        dtype: info.dtype.to_string(),
        shape: info.shape.0.clone(),
        bytes: info.n_bytes() as u64,
    }
}
