//! The tensors of a file that stand for a tensor of the plan, made once for tensors that follow each other and differ by name only.

use super::KeptSizes;
use crate::plan::TensorPlan;
use briquette_core::Result;
use briquette_formats::output_format::FilePart;
use std::sync::Arc;

/// The parts of the tensor that was asked for last.
pub(super) struct LastParts<'a> {
    sizes: &'a KeptSizes<'a>,
    index: Option<usize>,
    parts: Vec<FilePart>,
    /// A name that is not needed any more, to write the next one over.
    name: String,
}

impl<'a> LastParts<'a> {
    /// No tensor was asked for yet.
    pub(super) fn of_none(sizes: &'a KeptSizes<'a>) -> Self {
        Self { sizes, index: None, parts: Vec::new(), name: String::new() }
    }

    /// The tensors of a file that hold the tensor at this index of the plan.
    ///
    /// # Errors
    /// Config where the format cannot hold it.
    pub(super) fn of(&mut self, index: usize) -> Result<&[FilePart]> {
        let KeptSizes { plan, n_kept, parts } = self.sizes;
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

impl KeptSizes<'_> {
    /// Whether the parts of two tensors differ by name only.
    fn are_alike(&self, one: usize, other: usize) -> bool {
        let of = |index: usize| (&self.plan.tensors[index], (self.n_kept)(index));
        let ((a, a_kept), (b, b_kept)): ((&TensorPlan, usize), (&TensorPlan, usize)) = (of(one), of(other));
        Arc::ptr_eq(a.treatment(), b.treatment())
            && (a.info.dtype, &a.info.shape, a_kept) == (b.info.dtype, &b.info.shape, b_kept)
    }
}
