//! What is left alone because nothing shows what it is.

use super::{Plan, TensorPlan};
use crate::known::Reason;
use briquette_core::{Error, Result, Role, Rows};

/// Names that a line lists.
const N_LISTED: usize = 5;

impl Plan<'_> {
    /// The tensors that no stage took because nothing shows what they are, where a stage prunes or quantizes at all.
    pub fn unsure(&self) -> impl Iterator<Item = &TensorPlan<'_>> {
        let changes = self.tensors.iter().any(|tensor| tensor.is_recoded());
        self.tensors.iter().filter(move |tensor| changes && tensor.role == Role::Unknown && !tensor.is_recoded())
    }

    /// One line that names them, and says how to take them in.
    pub fn unsure_text(&self) -> Option<String> {
        let listed = listed(self.unsure())?;
        let n = self.unsure().count();
        let what = if n == 1 { "1 tensor was" } else { &format!("{n} tensors were") };
        Some(format!(
            "{what} left alone, as nothing shows what they are for: {listed}; say what they are in [[model.roles]] to take them in."
        ))
    }

    /// Why a stage chooses nothing.
    pub fn nothing_chosen(&self) -> Error {
        let hint = match listed(self.tensors.iter().filter(|tensor| tensor.role == Role::Unknown)) {
            Some(listed) => format!("nothing shows what these are for, say so in [[model.roles]]: {listed}"),
            None => "see `briquette inspect` for names and roles".into(),
        };
        Error::config(format!("chooses no tensor; give `include` or `roles`; {hint}"))
    }

    /// Refuses an axis that a rule gives a tensor that has none such.
    ///
    /// # Errors
    /// Config, naming the tensor.
    pub fn check_axes(&self) -> Result<()> {
        let is_told = |tensor: &&TensorPlan| tensor.why == Reason::Told && tensor.info.dtype.is_weight();
        let fits = |tensor: &TensorPlan| Rows::of(&tensor.info.shape, tensor.axis).axis == tensor.axis;
        let Some(tensor) = self.tensors.iter().filter(is_told).find(|tensor| !fits(tensor)) else { return Ok(()) };
        let message = format!(
            "outputs: its shape is {}; \"last\" is for matrices, \"stacked\" for three axes and more",
            tensor.info.shape
        );
        Err(Error::config(message).at(tensor.culprit()).at("model.roles"))
    }
}

/// The names of some, and how many more there are.
fn listed<'a, 'b: 'a>(tensors: impl Iterator<Item = &'a TensorPlan<'b>>) -> Option<String> {
    let names: Vec<&str> = tensors.map(|tensor| tensor.info.name.as_str()).collect();
    let shown = names[..names.len().min(N_LISTED)].join(", ");
    match names.len() {
        0 => None,
        n if n > N_LISTED => Some(format!("{shown} and {} more", n - N_LISTED)),
        _ => Some(shown),
    }
}
