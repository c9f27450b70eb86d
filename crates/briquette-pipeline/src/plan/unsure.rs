//! What is left alone because nothing shows what it is.

use super::{Plan, TensorPlan};
use crate::role::Role;
use briquette_core::{Error, Result};

/// Names that a line lists.
const N_LISTED: usize = 5;

impl Plan {
    /// The tensors that no stage took because nothing shows what they are, where a stage prunes or quantizes at all.
    pub fn unsure(&self) -> impl Iterator<Item = &TensorPlan> {
        let changes = self.tensors.iter().any(|tensor| tensor.is_recoded());
        self.tensors.iter().filter(move |tensor| changes && tensor.role == Role::Unknown && !tensor.is_recoded())
    }

    /// One line that names them, and says how to take them in.
    pub fn unsure_text(&self) -> Option<String> {
        let listed: Vec<&str> = self.unsure().take(N_LISTED).map(|tensor| tensor.info.name.as_str()).collect();
        let n = self.unsure().count();
        let more = if n > N_LISTED { format!(" and {} more", n - N_LISTED) } else { String::new() };
        let what = if n == 1 { "1 tensor was" } else { &format!("{n} tensors were") };
        (n > 0).then(|| {
            format!(
                "{what} left alone, as nothing shows what they are for: {}{more}; say what they are in [[model.roles]] to take them in.",
                listed.join(", ")
            )
        })
    }

    /// Refuses an axis that a rule gives a tensor that has none such.
    pub(super) fn check_axes(&self) -> Result<()> {
        let Some(tensor) =
            self.tensors.iter().find(|tensor| tensor.info.dtype.is_weight() && tensor.rows.axis != tensor.axis)
        else {
            return Ok(());
        };
        let message = format!(
            "outputs: its shape is {}; \"last\" is for matrices, \"stacked\" for three axes and more",
            tensor.info.shape
        );
        Err(Error::config(message).at(tensor.culprit()).at("model.roles"))
    }
}
