//! Tensors that are left alone because nothing shows their role.

use super::{Plan, TensorPlan};
use crate::known::Reason;
use briquette_core::{Error, Remedy, Result, Role, Rows};

/// The most names that a line lists.
const N_LISTED: usize = 5;

impl Plan<'_> {
    /// The tensors of unknown role that no stage chose, if any stage prunes or quantizes at all.
    pub fn unsure(&self) -> impl Iterator<Item = &TensorPlan<'_>> {
        let changes = self.tensors.iter().any(|tensor| tensor.is_recoded());
        self.tensors.iter().filter(move |tensor| changes && tensor.role == Role::Unknown && !tensor.is_recoded())
    }

    /// One line that names these tensors, and says how to have them compressed too.
    pub fn unsure_text(&self) -> Option<String> {
        let listed = listed(self.unsure())?;
        let n = self.unsure().count();
        let what = if n == 1 { "1 tensor was" } else { &format!("{n} tensors were") };
        Some(format!(
            "{what} left alone, as nothing shows what they are for: {listed}; say what they are in [[model.roles]] to take them in."
        ))
    }

    /// The error for a stage that chooses no tensor.
    pub fn nothing_chosen(&self) -> Error {
        let message = "chooses no tensor; give `include` or `roles`";
        match listed(self.tensors.iter().filter(|tensor| tensor.role == Role::Unknown)) {
            Some(listed) => Error::config(format!(
                "{message}; nothing shows what these are for, say so in [[model.roles]]: {listed}"
            )),
            None => Error::config(message).with_remedy(Remedy::LookUpTensors),
        }
    }

    /// Refuses a rule of the recipe that gives a tensor an output axis which its shape does not have.
    ///
    /// # Errors
    /// Config, naming the tensor.
    pub fn check_axes(&self) -> Result<()> {
        let is_told = |tensor: &&TensorPlan| tensor.why == Reason::Told && tensor.info.dtype.is_weight();
        let fits = |tensor: &TensorPlan| Rows::of(&tensor.info.shape, tensor.axis).axis == tensor.axis;
        let Some(tensor) = self.tensors.iter().filter(is_told).find(|tensor| !fits(tensor)) else { return Ok(()) };
        let message = format!(
            "outputs: its shape is {}; \"last\" is for matrices, \"second\" and \"stacked\" for three axes and more",
            tensor.info.shape
        );
        Err(Error::config(message).at(tensor.culprit()).at("model.roles"))
    }
}

/// The first few names of these tensors, and how many more there are; `None` if there are none.
pub fn listed<'a, 'b: 'a>(tensors: impl Iterator<Item = &'a TensorPlan<'b>>) -> Option<String> {
    let names: Vec<&str> = tensors.map(|tensor| tensor.info.name.as_str()).collect();
    let shown = names[..names.len().min(N_LISTED)].join(", ");
    match names.len() {
        0 => None,
        n if n > N_LISTED => Some(format!("{shown} and {} more", n - N_LISTED)),
        _ => Some(shown),
    }
}
