//! Looks up tensors by name, of which there may be millions.

use super::PlainFiles;
use crate::stored::FoundPart;
use crate::{TensorInfo, names};
use std::cell::Cell;

/// A tensor, the index of its file, and the offset of its first byte.
pub type FoundTensor<'a> = (&'a TensorInfo, usize, u64);

/// Positions around the last name found that are tried before a binary search.
const NEAR: usize = 8;

/// Contiguous tensors by name, with four bytes of memory for each.
#[derive(Debug)]
pub struct TensorsByName<'a> {
    plain: &'a PlainFiles,
    order: Vec<u32>,
    /// The position of the last name found. The next lookup is mostly near it.
    last: Cell<usize>,
}

impl PlainFiles {
    /// Returns the contiguous tensors by name.
    pub fn by_name(&self) -> TensorsByName<'_> {
        TensorsByName::of(self)
    }

    /// Returns the location of a contiguous tensor.
    fn found(&self, index: usize) -> Option<FoundTensor<'_>> {
        (!self.is_gathered(index)).then(|| (&self.infos[index], self.file_of(index), self.offsets[index]))
    }
}

impl<'a> TensorsByName<'a> {
    pub(super) fn of(plain: &'a PlainFiles) -> Self {
        let order = names::order(plain.infos.len(), |index| &plain.infos[index].name);
        Self { plain, order, last: Cell::new(0) }
    }

    /// Returns the tensor of this name; `None` if it is missing or must be gathered on each read.
    pub fn get(&self, name: &str) -> Option<FoundTensor<'a>> {
        let name_at = |index: &u32| self.plain.infos[*index as usize].name.as_str();
        let last = self.last.get();
        let near = last.saturating_sub(NEAR)..self.order.len().min(last + NEAR);
        let place = match near.clone().find(|place| name_at(&self.order[*place]) == name) {
            Some(place) => place,
            None => self.order.binary_search_by(|index| name_at(index).cmp(name)).ok()?,
        };
        self.last.set(place);
        self.plain.found(self.order[place] as usize)
    }

    /// Returns the location of the tensor of this name: see [`get`](Self::get).
    pub fn part(&self, name: &str) -> Option<FoundPart> {
        let (info, file, offset) = self.get(name)?;
        Some(FoundPart { dtype: info.dtype, shape: info.shape.clone(), file, offset })
    }

    /// Returns whether there is a contiguous tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
}
