//! The operands of products on every instruction set: rows of codes, and the epilogue of a panel.

/// Outputs in a panel of weights.
pub(crate) const PANEL: usize = 32;
/// With a zero point of 128, four activation codes with these bits flipped are signed weights.
pub(crate) const SIGNS: u32 = 0x8080_8080;

/// Rows of activation codes, `stride` bytes apart, in memory for a multiple of 16 rows.
#[derive(Clone, Copy)]
pub(crate) struct RowBlock<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) stride: usize,
    pub(crate) scales: &'a [f32],
    pub(crate) zeros: &'a [i32],
}

impl<'a> RowBlock<'a> {
    pub(crate) fn n_rows(&self) -> usize {
        self.scales.len()
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn len(&self) -> usize {
        self.n_rows()
    }

    /// Returns the number of runs in a row, and the distance between them.
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn runs(&self) -> [usize; 2] {
        [1, 0]
    }

    /// Returns `n` rows starting at `first`.
    pub(crate) fn part(self, first: usize, n: usize) -> RowBlock<'a> {
        let (scales, zeros) = (&self.scales[first..first + n], &self.zeros[first..first + n]);
        Self { codes: &self.codes[first * self.stride..], scales, zeros, ..self }
    }
}

/// Patches of an image that a convolution reads in place.
///
/// A patch has runs of neighbouring codes, such as the rows of a kernel. The runs of neighbouring patches overlap.
#[derive(Clone, Copy)]
pub(crate) struct PatchRows<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) n_rows: usize,
    /// The distance between patches.
    pub(crate) stride: usize,
    pub(crate) n_runs: usize,
    /// The distance between the starts of runs.
    pub(crate) between: usize,
}

impl PatchRows<'_> {
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn len(&self) -> usize {
        self.n_rows
    }

    /// Returns the number of runs in a row, and the distance between them.
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn runs(&self) -> [usize; 2] {
        [self.n_runs, self.between]
    }

    /// Returns whether all codes of patches of `depth` codes exist, and runs have whole groups of 4.
    pub(crate) fn has_depth(&self, depth: usize) -> bool {
        let run = depth / self.n_runs.max(1);
        let last = self.n_rows.saturating_sub(1) * self.stride + self.n_runs.saturating_sub(1) * self.between;
        self.n_rows > 0
            && self.n_runs > 0
            && run.is_multiple_of(4)
            && run * self.n_runs == depth
            && last + run <= self.codes.len()
    }
}

/// The epilogue of a panel's outputs: sum of codes, scale and bias. There are `n` outputs; values after them
/// are unspecified.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct PanelColumns {
    pub(crate) sums: [i32; PANEL],
    pub(crate) scales: [f32; PANEL],
    pub(crate) bias: [f32; PANEL],
    pub(crate) n: usize,
}

impl PanelColumns {
    /// Scales and biases of 0 for 32 outputs.
    pub(crate) const EMPTY: Self = Self { sums: [0; PANEL], scales: [0.0; PANEL], bias: [0.0; PANEL], n: PANEL };

    /// Sets the values of outputs `first..first + 32`, or of the outputs up to the end.
    pub(crate) fn set(&mut self, sums: &[i32], scales: &[f32], bias: Option<&[f32]>, first: usize) {
        let n = PANEL.min(sums.len() - first);
        self.n = n;
        self.sums[..n].copy_from_slice(&sums[first..first + n]);
        self.scales[..n].copy_from_slice(&scales[first..first + n]);
        match bias {
            Some(bias) => self.bias[..n].copy_from_slice(&bias[first..first + n]),
            None => self.bias.fill(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_after_the_end_are_found() {
        // Three patches of 3x3 pixels with four channels, in an image of 3x5.
        let whole = PatchRows { codes: &[0; 60], n_rows: 3, stride: 4, n_runs: 3, between: 20 };
        assert!(whole.has_depth(36));
        let changed = [
            PatchRows { codes: &whole.codes[1..], ..whole },
            PatchRows { n_rows: 4, ..whole },
            PatchRows { n_rows: 0, ..whole },
            PatchRows { n_runs: 4, ..whole },
            PatchRows { n_runs: 0, ..whole },
            PatchRows { stride: 5, ..whole },
            PatchRows { between: 21, ..whole },
        ];
        assert!(changed.iter().all(|rows| !rows.has_depth(36)));
        assert!(!whole.has_depth(38), "runs of a group and a half");
    }
}
