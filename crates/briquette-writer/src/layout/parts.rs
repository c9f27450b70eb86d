//! The tensors in a file that store a tensor of the plan.
//!
//! They are computed once for consecutive tensors that only differ in their names.

use crate::plan::{Plan, TensorPlan};
use briquette_core::{Coding, Result};
use briquette_formats::output_format::FilePart;
use std::sync::Arc;

/// Returns the tensors in a file that store a tensor of the plan, from its coding and number of kept elements.
///
/// Their names must begin with the tensor's name. Everything else may only depend on treatment, type and shape.
pub(crate) type TensorParts<'a> = &'a dyn Fn(&TensorPlan, Coding, usize) -> Result<Vec<FilePart>>;

/// A plan, and the number of kept elements of each tensor.
pub(super) struct PartSizes<'a> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) n_kept: &'a dyn Fn(usize) -> usize,
    pub(super) parts: TensorParts<'a>,
}

impl PartSizes<'_> {
    /// Returns how a tensor is stored.
    pub(super) fn coding(&self, index: usize) -> Coding {
        self.plan.tensors[index].coding(self.plan.profile, (self.n_kept)(index))
    }
}

/// The parts of the last tensor.
pub(super) struct LastParts<'a> {
    sizes: &'a PartSizes<'a>,
    index: Option<usize>,
    parts: Vec<FilePart>,
}

impl<'a> LastParts<'a> {
    /// Creates the state before the first tensor.
    pub(super) fn of_none(sizes: &'a PartSizes<'a>) -> Self {
        Self { sizes, index: None, parts: Vec::new() }
    }

    /// Returns the tensors in a file that store this tensor of the plan.
    ///
    /// # Errors
    /// Config: the format does not support the tensor.
    pub(super) fn of(&mut self, index: usize) -> Result<&[FilePart]> {
        let PartSizes { plan, n_kept, parts } = self.sizes;
        match self.index.take() {
            Some(last) if last == index => {}
            Some(last) if self.sizes.are_alike(last, index) => {
                let n_before = plan.tensors[last].info.name.len();
                let name = &plan.tensors[index].info.name;
                self.parts.iter_mut().for_each(|part| part.info.name.replace_start(n_before, name));
            }
            _ => self.parts = parts(&plan.tensors[index], self.sizes.coding(index), n_kept(index))?,
        }
        self.index = Some(index);
        Ok(&self.parts)
    }
}

impl PartSizes<'_> {
    /// Returns whether the parts of two tensors only differ in their names.
    fn are_alike(&self, one: usize, other: usize) -> bool {
        let of = |index: usize| (&self.plan.tensors[index], (self.n_kept)(index));
        let ((a, a_kept), (b, b_kept)): ((&TensorPlan, usize), (&TensorPlan, usize)) = (of(one), of(other));
        Arc::ptr_eq(a.treatment(), b.treatment())
            && (a.info.dtype, &a.info.shape, a_kept) == (b.info.dtype, &b.info.shape, b_kept)
    }
}
