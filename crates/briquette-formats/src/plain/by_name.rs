//! Looking up tensors by name, of which there may be millions.

use super::{Place, PlainFiles};
use crate::{TensorInfo, names};
use std::cell::Cell;

/// A tensor, the index of its file, and the offset of its first byte there.
pub type FoundTensor<'a> = (&'a TensorInfo, usize, u64);

/// How many places before and after the last name found are tried before all are searched.
const NEAR: usize = 8;

/// The tensors that lie in files as they are, by name: four bytes each.
#[derive(Debug)]
pub struct TensorsByName<'a> {
    plain: &'a PlainFiles,
    order: Vec<u32>,
    /// The place of the name that was found last. What is asked for next mostly lies beside it.
    last: Cell<usize>,
}

impl PlainFiles {
    /// The tensors that lie in files as they are, to be looked up by name.
    pub fn by_name(&self) -> TensorsByName<'_> {
        TensorsByName::of(self)
    }

    /// A tensor that lies in a file as it is, with its file's index and its offset there.
    fn found(&self, index: usize) -> Option<FoundTensor<'_>> {
        match self.places[index] {
            Place::At(offset) => Some((&self.infos[index], self.file_of(index), offset)),
            #[cfg(feature = "pytorch")]
            Place::Gathered(_) => None,
        }
    }
}

impl<'a> TensorsByName<'a> {
    pub(super) fn of(plain: &'a PlainFiles) -> Self {
        let order = names::order(plain.infos.len(), |index| &plain.infos[index].name);
        Self { plain, order, last: Cell::new(0) }
    }

    /// The tensor of this name; none where it has to be put together on each read.
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

    /// Whether there is one of this name.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
}
