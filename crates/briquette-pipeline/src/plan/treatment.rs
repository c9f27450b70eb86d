//! What is done to a tensor: the same for most tensors of a model, so that each kind of it is kept once.

use super::{Prune, Quant, TensorPlan};
use crate::role::{Known, Reason, Role};
use briquette_core::{DType, OutputAxis, Rows};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Kinds of treatment that are looked through for one that is there already.
const MAX_KNOWN: usize = 64;

/// What is done to a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Treatment {
    /// What it is in its network.
    pub role: Role,
    /// Which of its axes counts outputs.
    pub axis: OutputAxis,
    /// What shows that.
    pub why: Reason,
    /// Its row view. A tensor that is no weight is rows of one byte.
    pub rows: Rows,
    /// Which weights go.
    pub prune: Option<Prune>,
    /// The grid they are rounded to.
    pub quant: Option<Quant>,
    /// The type that it is stored in, where not its own.
    pub cast: Option<DType>,
    /// Whether it is kept sparse in the model already.
    pub was_sparse: bool,
    /// Why nothing is done, where nothing is.
    pub skipped: Option<String>,
}

impl Treatment {
    /// Nothing is done.
    pub fn none(known: Known, rows: Rows) -> Self {
        let Known { role, axis, why } = known;
        Self { role, axis, why, rows, prune: None, quant: None, cast: None, was_sparse: false, skipped: None }
    }
}

/// The treatments of late, so that tensors that are treated alike share one.
#[derive(Debug, Default)]
pub(crate) struct Shared(Vec<Arc<Treatment>>);

impl Shared {
    /// The treatment that is equal to this one.
    pub(crate) fn of(&mut self, treatment: Arc<Treatment>) -> Arc<Treatment> {
        let is_known = |known: &Arc<Treatment>| Arc::ptr_eq(known, &treatment) || **known == *treatment;
        match self.0.iter().position(is_known) {
            Some(place) => self.0[..=place].rotate_right(1),
            None => {
                self.0.truncate(MAX_KNOWN - 1);
                self.0.insert(0, treatment);
            }
        }
        self.0[0].clone()
    }

    /// Has a tensor whose treatment was changed share that of others.
    pub(crate) fn keep(&mut self, tensor: &mut TensorPlan) {
        tensor.treatment = self.of(tensor.treatment.clone());
    }
}

impl Deref for TensorPlan<'_> {
    type Target = Treatment;

    fn deref(&self) -> &Treatment {
        &self.treatment
    }
}

impl DerefMut for TensorPlan<'_> {
    /// The tensor's own from here on, until it is shared again.
    fn deref_mut(&mut self) -> &mut Treatment {
        Arc::make_mut(&mut self.treatment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Shape;
    use briquette_formats::TensorInfo;

    #[test]
    fn tensors_treated_alike_share_and_a_change_is_of_one() {
        let info = TensorInfo::checked("w".into(), DType::F32, vec![4, 2]).unwrap();
        let rows = Rows::of(&Shape(vec![4, 2]), OutputAxis::First);
        let mut shared = Shared::default();
        let known = Known { role: Role::Linear, axis: OutputAxis::First, why: Reason::Matrix };
        let tensor = |index| TensorPlan::new(index, &info, Treatment::none(known, rows));
        let mut tensors: Vec<TensorPlan> = (0..3).map(tensor).collect();
        tensors.iter_mut().for_each(|tensor| shared.keep(tensor));
        assert!(Arc::ptr_eq(&tensors[0].treatment, &tensors[2].treatment));
        tensors[1].cast = Some(DType::F16);
        shared.keep(&mut tensors[1]);
        assert_eq!((tensors[0].cast, tensors[1].cast, tensors[2].cast), (None, Some(DType::F16), None));
        tensors[2].cast = Some(DType::F16);
        shared.keep(&mut tensors[2]);
        assert!(Arc::ptr_eq(&tensors[1].treatment, &tensors[2].treatment));
    }
}
