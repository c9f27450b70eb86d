//! The attached state of a parameter on the host, and its decision.

use crate::form::Form;
use crate::module::view;
use briquette_core::{Decision, Error, Mask, QuantParams, Result, Rows};
use briquette_ops::fused::masked::scale_of;

/// The state of [`Attached`](crate::Attached) on the host.
#[derive(Debug, Default, Clone)]
pub(crate) struct State {
    pub(crate) form: Option<Form>,
    pub(crate) dropped: Vec<bool>,
    pub(crate) scale: Vec<f32>,
    pub(crate) zero: Vec<f32>,
}

impl State {
    /// Converts the state to a decision.
    ///
    /// # Errors
    /// Refused: masks or scales have another size than the parameter.
    pub(crate) fn decision(self, rows: &Rows) -> Result<Decision> {
        let n_cols = rows.n_cols;
        self.check(rows)?;
        // Before a rule begins, nothing is dropped and all scales are 0: there is no decision.
        let mask = self.dropped.contains(&true).then(|| {
            let dropped: Vec<u8> = self.dropped.into_iter().map(u8::from).collect();
            let dropped = view::to_rows(dropped, rows);
            Mask::from_fn(rows.n_rows, n_cols, |row, col| dropped[row * n_cols + col] == 0)
        });
        let quant = self.form.filter(|_| self.scale.iter().any(|scale| *scale != 0.0)).map(|form| {
            let zero = if self.zero.is_empty() { vec![0.0; self.scale.len()] } else { self.zero };
            let scales = self.scale.into_iter().map(scale_of).collect();
            QuantParams::new(form.grid, form.grouping, n_cols, view::affines_to_rows(scales, zero, rows))
        });
        Ok(Decision { mask, quant })
    }

    /// Refuses a mask or scales of another parameter or of other rules.
    fn check(&self, rows: &Rows) -> Result<()> {
        let n_scales = match self.form {
            Some(form) if form.grouping.per_row(rows.n_cols).is_none() => {
                let message = format!("{} do not divide {} columns", form.grouping, rows.n_cols);
                return Err(Error::refused(format!("the attached state belongs to other rules: {message}")));
            }
            Some(form) => view::n_scales(rows, form.grouping),
            None => 0,
        };
        let (n_dropped, found) = (self.dropped.len(), self.scale.len());
        let fits = [0, rows.n_elements()].contains(&n_dropped)
            && (self.form.is_none() || found == n_scales)
            && [0, found].contains(&self.zero.len());
        match fits {
            true => Ok(()),
            false => {
                let message = format!("found {found} scales and a mask of {n_dropped}, expected {n_scales} scales");
                Err(Error::refused(format!(
                    "the attached state belongs to other rules: {message}; attach the rules and load again"
                )))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use briquette_core::ErrorKind;
    use briquette_methods::quant::Scheme;

    #[test]
    fn masks_and_scales_of_other_rules_are_refused() {
        let rows = Rows::plain(4, 16);
        let state = |scheme: &str, n_scales: usize, n_dropped: usize| State {
            form: Some(Form::of(&scheme.parse::<Scheme>().unwrap())),
            dropped: vec![false; n_dropped],
            scale: vec![1.0; n_scales],
            zero: Vec::new(),
        };
        for (scheme, n_scales, n_dropped) in [("int8", 4, 0), ("int4-g8", 8, 64), ("step0.01-tensor", 1, 64)] {
            assert!(state(scheme, n_scales, n_dropped).decision(&rows).is_ok(), "{scheme}");
        }
        let others = [("int4-g8", 4, 0), ("int8", 8, 64), ("int8", 4, 63), ("int4-g5", 4, 0), ("int8", 0, 0)];
        for (scheme, n_scales, n_dropped) in others {
            let error = state(scheme, n_scales, n_dropped).decision(&rows).unwrap_err();
            assert!(
                error.kind == ErrorKind::Refused && error.message.contains("belongs to other rules"),
                "{scheme}: {error}"
            );
        }
    }
}
