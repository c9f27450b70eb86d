//! The locations of tensors in files, in few bytes, as there may be millions.

use briquette_core::Coding;
use briquette_core::encoded::Part;
use briquette_formats::foreign::ForeignLayout;
use briquette_formats::output_format::FilePart;

/// The most forms that are searched for an equal one.
const MAX_KNOWN: usize = 64;

/// The location of each tensor of a plan. A tied tensor has the location of its main tensor.
#[derive(Debug, Clone, Default)]
pub struct PlacedTensors {
    tensors: Vec<Placed>,
    /// The starts of the tensors of files, in the order of the plan.
    starts: Vec<u64>,
    forms: Vec<PlacedForm>,
}

/// The location of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct PlacedTensor<'a> {
    /// How the tensor is stored.
    pub coding: Coding,
    /// Number of kept elements.
    pub n_kept: usize,
    /// The index of its file.
    pub file: usize,
    parts: &'a [PartKind],
    starts: &'a [u64],
}

#[derive(Debug, Clone, Copy)]
struct Placed {
    n_kept: usize,
    /// Index of the first of its starts.
    first: u32,
    form: u32,
}

/// The properties that tensors share.
#[derive(Debug, Clone, PartialEq)]
struct PlacedForm {
    coding: Coding,
    file: usize,
    parts: Vec<PartKind>,
    n_starts: usize,
}

/// A part, the number of its tensor in the file, and its layout if that is another program's.
type PartKind = (Part, u8, Option<ForeignLayout>);

/// Returns the parts in the `nth` tensor of a file.
fn kinds_of(part: &FilePart, nth: u8) -> impl Iterator<Item = PartKind> {
    part.holds.parts().map(move |(kind, layout)| (kind, nth, layout))
}

impl PlacedTensors {
    /// Creates an empty list with memory for `n` tensors.
    pub(super) fn with_capacity(n: usize) -> Self {
        Self { tensors: Vec::with_capacity(n), starts: Vec::with_capacity(2 * n), forms: Vec::new() }
    }

    /// Adds the next tensor of the plan, stored in `parts` of a file. Their starts are set later.
    pub(super) fn push(&mut self, coding: Coding, n_kept: usize, file: usize, parts: &[FilePart]) {
        let kinds = || parts.iter().zip(0..).flat_map(|(part, nth)| kinds_of(part, nth));
        let last = self.tensors.last().map(|last| &self.forms[last.form as usize]);
        let is_alike = |form: &PlacedForm| {
            (form.coding, form.file, form.n_starts) == (coding, file, parts.len())
                && form.parts.iter().copied().eq(kinds())
        };
        let form = match last.filter(|last| is_alike(last)) {
            Some(_) => self.tensors[self.tensors.len() - 1].form,
            None => {
                let first = self.forms.len().saturating_sub(MAX_KNOWN);
                let known = self.forms[first..].iter().position(is_alike).map(|place| first + place);
                known.unwrap_or_else(|| {
                    self.forms.push(PlacedForm { coding, file, parts: kinds().collect(), n_starts: parts.len() });
                    self.forms.len() - 1
                }) as u32
            }
        };
        // Plans number tensors in 32 bits too, and a tensor that fits in memory has few starts.
        let first = u32::try_from(self.starts.len()).expect("an output has fewer than 2^32 parts");
        self.tensors.push(Placed { n_kept, first, form });
        self.starts.resize(self.starts.len() + parts.len(), 0);
    }

    /// Sets the start of a tensor's `nth` tensor in a file.
    pub(super) fn set_start(&mut self, tensor: usize, nth: usize, start: u64) {
        self.starts[self.tensors[tensor].first as usize + nth] = start;
    }

    /// Copies the location of a main tensor to a tensor that is tied to it.
    pub(super) fn tie(&mut self, tied: usize, main: usize) {
        self.tensors[tied] = self.tensors[main];
    }

    /// Forgets the starts, which are only needed while files are written.
    pub(crate) fn forget_starts(&mut self) {
        self.starts = Vec::new();
    }

    /// Returns the location of a tensor.
    pub fn of(&self, index: usize) -> PlacedTensor<'_> {
        let Placed { n_kept, first, form } = self.tensors[index];
        let PlacedForm { coding, file, parts, n_starts } = &self.forms[form as usize];
        let first = first as usize;
        let starts = self.starts.get(first..first + n_starts).unwrap_or_default();
        PlacedTensor { coding: *coding, n_kept, file: *file, parts, starts }
    }

    /// Returns the locations of all tensors, in the order of the plan.
    pub fn iter(&self) -> impl Iterator<Item = PlacedTensor<'_>> {
        (0..self.tensors.len()).map(|index| self.of(index))
    }
}

impl PlacedTensor<'_> {
    /// Returns the start and the layout of a part; `None` if the tensor does not have it.
    pub fn part(&self, part: Part) -> Option<(u64, Option<ForeignLayout>)> {
        let (_, nth, layout) = self.parts.iter().find(|(kind, ..)| *kind == part)?;
        Some((*self.starts.get(usize::from(*nth))?, *layout))
    }

    /// Returns the start of the `nth` tensor in the file.
    pub(super) fn start(&self, nth: u8) -> u64 {
        self.starts[usize::from(nth)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::{DType, OutputAxis, Storage};
    use briquette_formats::{OutputFormat, TensorInfo};

    #[test]
    fn tensors_of_any_form_are_found_again() {
        let codings = |i: usize| match i % 3 {
            0 => Coding::DENSE,
            _ => Coding { storage: Storage::Bitmask, codes: None },
        };
        let info = TensorInfo::checked("w".into(), DType::F32, vec![2, 4]).unwrap();
        let parts =
            |i: usize| OutputFormat::Briquette.file_parts(&info, OutputAxis::First, codings(i), i % 8, None).unwrap();
        let mut placed = PlacedTensors::with_capacity(0);
        for i in 0..300 {
            placed.push(codings(i), i % 8, i / 2, &parts(i));
        }
        for i in 0..300 {
            (0..parts(i).len()).for_each(|nth| placed.set_start(i, nth, (10 * i + nth) as u64));
        }
        placed.tie(0, 299);
        for i in 1..300 {
            let found = placed.of(i);
            assert_eq!((found.coding, found.n_kept, found.file), (codings(i), i % 8, i / 2));
            let start = |part| found.part(part).map(|(start, _)| start as usize);
            let dense = (start(Part::Weight), start(Part::Bitmask));
            let sparse = (start(Part::Values), start(Part::Bitmask), start(Part::RowOffsets));
            match i % 3 {
                0 => assert_eq!(dense, (Some(10 * i), None)),
                _ => assert_eq!(sparse, (Some(10 * i), Some(10 * i + 1), Some(10 * i + 2))),
            }
        }
        assert_eq!(placed.of(0).file, 149);
        placed.forget_starts();
        assert_eq!((placed.of(5).n_kept, placed.of(5).part(Part::Values)), (5, None));
    }
}
