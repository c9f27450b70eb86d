//! What the products of every instruction set take: rows of codes, and what a panel of weights is finished with.

/// Outputs in a panel of weights.
pub(crate) const PANEL: usize = 32;

/// Rows of activation codes, `stride` bytes apart, in memory for a multiple of 16 rows.
#[derive(Clone, Copy)]
pub(crate) struct RowBlock<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) stride: usize,
    pub(crate) scales: &'a [f32],
    pub(crate) zeros: &'a [i32],
}

impl RowBlock<'_> {
    pub(crate) fn n_rows(&self) -> usize {
        self.scales.len()
    }
}

/// What the outputs of a panel need besides its codes: the sum of each one's codes, its scale and its bias. There are `n`
/// outputs; zeros follow them.
#[repr(C, align(64))]
pub(crate) struct PanelColumns {
    pub(crate) sums: [i32; PANEL],
    pub(crate) scales: [f32; PANEL],
    pub(crate) bias: [f32; PANEL],
    pub(crate) n: usize,
}

impl PanelColumns {
    /// The values of outputs `first..first + 32`.
    pub(crate) fn new(sums: &[i32], scales: &[f32], bias: Option<&[f32]>, first: usize) -> Self {
        let n = PANEL.min(sums.len() - first);
        let mut columns = Self { sums: [0; PANEL], scales: [0.0; PANEL], bias: [0.0; PANEL], n };
        columns.sums[..n].copy_from_slice(&sums[first..first + n]);
        columns.scales[..n].copy_from_slice(&scales[first..first + n]);
        if let Some(bias) = bias {
            columns.bias[..n].copy_from_slice(&bias[first..first + n]);
        }
        columns
    }
}
