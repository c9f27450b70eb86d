//! Tensors that stay unchanged because their role is unknown.

use super::{Plan, TensorPlan};
use crate::known::Reason;
use briquette_core::{Error, Remedy, Result, Role, Rows};

/// The most names in a line.
const N_LISTED: usize = 5;

impl Plan<'_> {
    /// Returns the unselected tensors of unknown role, if any stage prunes or quantizes.
    pub fn unsure(&self) -> impl Iterator<Item = &TensorPlan<'_>> {
        let changes = self.tensors.iter().any(|tensor| tensor.is_recoded());
        self.tensors.iter().filter(move |tensor| changes && tensor.role == Role::Unknown && !tensor.is_recoded())
    }

    /// Returns a line with the tensors of unknown role, and how to include them.
    pub fn unsure_text(&self) -> Option<String> {
        let listed = listed(self.unsure())?;
        let n = self.unsure().count();
        let what = if n == 1 { "1 tensor of unknown role stays" } else { &format!("{n} tensors of unknown role stay") };
        Some(format!("{what} unchanged: {listed}; to include them, set their roles in [[model.roles]]."))
    }

    /// Returns the error for a stage that selects no tensor.
    pub fn nothing_chosen(&self) -> Error {
        let message = "selects no tensor; give `include` or `roles`";
        match listed(self.tensors.iter().filter(|tensor| tensor.role == Role::Unknown)) {
            Some(listed) => {
                Error::config(format!("{message}; these have unknown roles, set them in [[model.roles]]: {listed}"))
            }
            None => Error::config(message).with_remedy(Remedy::LookUpTensors),
        }
    }

    /// Refuses a rule of the recipe with an output axis that a tensor's shape does not have.
    ///
    /// # Errors
    /// Config: the axis does not exist. The error names the tensor.
    pub fn check_axes(&self) -> Result<()> {
        let is_told = |tensor: &&TensorPlan| tensor.why == Reason::Told && tensor.info.dtype.is_weight();
        let fits = |tensor: &TensorPlan| Rows::of(&tensor.info.shape, tensor.axis).axis == tensor.axis;
        let Some(tensor) = self.tensors.iter().filter(is_told).find(|tensor| !fits(tensor)) else { return Ok(()) };
        let message = format!(
            "outputs: found shape {}; \"last\" is for matrices, \"second\" and \"stacked\" for three axes and more",
            tensor.info.shape
        );
        Err(Error::config(message).at(tensor.culprit()).at("model.roles"))
    }
}

/// Returns the first few names of these tensors and the number of others; `None` if there are none.
pub fn listed<'a, 'b: 'a>(tensors: impl Iterator<Item = &'a TensorPlan<'b>>) -> Option<String> {
    let names: Vec<&str> = tensors.map(|tensor| tensor.info.name.as_str()).collect();
    let shown = names[..names.len().min(N_LISTED)].join(", ");
    match names.len() {
        0 => None,
        n if n > N_LISTED => Some(format!("{shown} and {} more", n - N_LISTED)),
        _ => Some(shown),
    }
}
