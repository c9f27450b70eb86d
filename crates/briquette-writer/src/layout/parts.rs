//! The tensors of a file that stand for a tensor of the plan, made once for tensors that follow each other and differ by name only.

use crate::plan::{Plan, TensorPlan};
use briquette_core::{Coding, Result};
use briquette_formats::output_format::FilePart;
use std::sync::Arc;

/// The tensors of a file that hold a tensor of the plan, in this coding and with this many kept elements. Their names are the tensor's
/// with something behind it; all else follows from how the tensor is treated, its type and its shape.
pub(super) type TensorParts<'a> = &'a dyn Fn(&TensorPlan, Coding, usize) -> Result<Vec<FilePart>>;

/// A plan, and how many elements of each tensor are kept.
pub(super) struct PartSizes<'a> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) n_kept: &'a dyn Fn(usize) -> usize,
    pub(super) parts: TensorParts<'a>,
}

impl PartSizes<'_> {
    /// How a tensor is kept.
    pub(super) fn coding(&self, index: usize) -> Coding {
        self.plan.tensors[index].coding(self.plan.profile, (self.n_kept)(index))
    }
}

/// The parts of the tensor that was asked for last.
pub(super) struct LastParts<'a> {
    sizes: &'a PartSizes<'a>,
    index: Option<usize>,
    parts: Vec<FilePart>,
    /// A name that is not needed any more, to write the next one over.
    name: String,
}

impl<'a> LastParts<'a> {
    /// No tensor was asked for yet.
    pub(super) fn of_none(sizes: &'a PartSizes<'a>) -> Self {
        Self { sizes, index: None, parts: Vec::new(), name: String::new() }
    }

    /// The tensors of a file that hold the tensor at this index of the plan.
    ///
    /// # Errors
    /// Config where the format cannot hold it.
    pub(super) fn of(&mut self, index: usize) -> Result<&[FilePart]> {
        let PartSizes { plan, n_kept, parts } = self.sizes;
        match self.index.take() {
            Some(last) if last == index => {}
            Some(last) if self.sizes.are_alike(last, index) => {
                let n_before = plan.tensors[last].info.name.len();
                for part in &mut self.parts {
                    self.name.clear();
                    self.name.push_str(&plan.tensors[index].info.name);
                    self.name.push_str(&part.info.name[n_before..]);
                    std::mem::swap(&mut self.name, &mut part.info.name);
                }
            }
            _ => self.parts = parts(&plan.tensors[index], self.sizes.coding(index), n_kept(index))?,
        }
        self.index = Some(index);
        Ok(&self.parts)
    }
}

impl PartSizes<'_> {
    /// Whether the parts of two tensors differ by name only.
    fn are_alike(&self, one: usize, other: usize) -> bool {
        let of = |index: usize| (&self.plan.tensors[index], (self.n_kept)(index));
        let ((a, a_kept), (b, b_kept)): ((&TensorPlan, usize), (&TensorPlan, usize)) = (of(one), of(other));
        Arc::ptr_eq(a.treatment(), b.treatment())
            && (a.info.dtype, &a.info.shape, a_kept) == (b.info.dtype, &b.info.shape, b_kept)
    }
}
