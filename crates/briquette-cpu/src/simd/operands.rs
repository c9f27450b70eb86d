//! What the products of every instruction set take: rows of codes, and what a panel of weights is finished with.

/// Outputs in a panel of weights.
pub(crate) const PANEL: usize = 32;
/// Four codes of activations with these bits flipped are weights, where the zero point is 128.
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

    /// `n` rows from the `first` on.
    pub(crate) fn part(self, first: usize, n: usize) -> RowBlock<'a> {
        let (scales, zeros) = (&self.scales[first..first + n], &self.zeros[first..first + n]);
        Self { codes: &self.codes[first * self.stride..], scales, zeros, ..self }
    }
}

/// What the outputs of a panel need besides its codes: the sum of each one's codes, its scale and its bias. There are `n`
/// outputs; what follows them is arbitrary.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct PanelColumns {
    pub(crate) sums: [i32; PANEL],
    pub(crate) scales: [f32; PANEL],
    pub(crate) bias: [f32; PANEL],
    pub(crate) n: usize,
}

impl PanelColumns {
    /// 32 outputs of nothing.
    pub(crate) const EMPTY: Self = Self { sums: [0; PANEL], scales: [0.0; PANEL], bias: [0.0; PANEL], n: PANEL };

    /// Takes over the values of outputs `first..first + 32`, or as many as there are.
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
