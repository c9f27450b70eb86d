//! Panels of sparse weights: a bitmask and the nonzero values.

use super::operands::PANEL;

/// Bytes that a vector load at the last value may read beyond it.
const SLACK: usize = 64;

/// Panels `[n_groups][32][4]`: two mask words for each group, and the nonzero values.
///
/// Kernels rely on these invariants: panel `p` has `2 * n_groups` masks and, starting at `offsets[p]`, one
/// value per set bit. 64 more bytes follow the last value.
#[derive(Clone)]
pub(crate) struct SparsePanels {
    n_groups: usize,
    masks: Vec<u64>,
    values: Vec<i8>,
    offsets: Vec<usize>,
}

impl SparsePanels {
    pub(crate) fn new(n_groups: usize) -> Self {
        Self { n_groups, masks: Vec::new(), values: vec![0; SLACK], offsets: Vec::new() }
    }

    /// Appends a panel.
    pub(crate) fn push(&mut self, panel: &[i8]) {
        assert_eq!(panel.len(), self.n_groups * 4 * PANEL, "one panel");
        self.values.truncate(self.values.len() - SLACK);
        self.offsets.push(self.values.len());
        for codes in panel.as_chunks::<64>().0 {
            self.masks.push(codes.iter().rev().fold(0, |mask, &code| mask << 1 | u64::from(code != 0)));
            self.values.extend(codes.iter().filter(|code| **code != 0));
        }
        self.values.extend([0; SLACK]);
    }

    /// Frees memory that was reserved for more panels.
    pub(crate) fn shrink(&mut self) {
        self.masks.shrink_to_fit();
        self.values.shrink_to_fit();
        self.offsets.shrink_to_fit();
    }

    pub(crate) const fn n_groups(&self) -> usize {
        self.n_groups
    }

    pub(crate) fn n_bytes(&self) -> usize {
        size_of_val(&self.masks[..]) + self.values.len() + size_of_val(&self.offsets[..])
    }

    /// Returns the masks of a panel, and all values starting with its first.
    pub(crate) fn panel(&self, index: usize) -> (&[u64], &[i8]) {
        (&self.masks[index * 2 * self.n_groups..][..2 * self.n_groups], &self.values[self.offsets[index]..])
    }

    /// Returns the values of a panel.
    pub(crate) fn values(&self, index: usize) -> &[i8] {
        let end = self.offsets.get(index + 1).copied().unwrap_or(self.values.len());
        &self.values[self.offsets[index]..end]
    }

    /// Writes all codes of a panel, including zeros.
    pub(crate) fn expand(&self, index: usize, codes: &mut [i8]) {
        let (masks, values) = self.panel(index);
        let codes = bytemuck::cast_slice_mut(codes);
        briquette_core::simd::expand8(bytemuck::cast_slice(values), bytemuck::cast_slice(masks), codes);
    }
}
