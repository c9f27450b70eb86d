//! Settings of operations that slide a window over an image.

use serde::Serialize;

/// The settings of a convolution; each list has one entry for each axis of space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConvSettings {
    /// Step of the kernel.
    pub stride: Vec<usize>,
    /// Zeros on each side.
    pub padding: Vec<usize>,
    /// Distance of the kernel's elements.
    pub dilation: Vec<usize>,
    /// Groups of channels.
    pub groups: usize,
    /// Whether it is transposed: the weight is `[in, out / groups, ..]`.
    pub transposed: bool,
}

impl ConvSettings {
    /// A two-dimensional convolution of one group.
    pub fn square(stride: usize, padding: usize) -> Self {
        Self { stride: vec![stride; 2], padding: vec![padding; 2], dilation: vec![1; 2], groups: 1, transposed: false }
    }

    /// The same with groups.
    #[must_use]
    pub fn with_groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }
}

/// A pooling window; each list has one entry for each axis of space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolWindow {
    /// Extents of the window.
    pub size: Vec<usize>,
    /// Step of the window.
    pub stride: Vec<usize>,
    /// Padding on each side. A maximum ignores it; an average counts zeros.
    pub padding: Vec<usize>,
    /// How the window's elements become one.
    pub kind: Reduction,
}

impl PoolWindow {
    /// A two-dimensional window of equal sides.
    pub fn square(kind: Reduction, size: usize, stride: usize, padding: usize) -> Self {
        Self { size: vec![size; 2], stride: vec![stride; 2], padding: vec![padding; 2], kind }
    }
}

/// Returns the zeros before and after an extent, so that a window of `size` has `extent / stride` outputs, rounded up.
///
/// `None` if the extents are too large. An odd zero is added at the end.
pub fn same_zeros(extent: usize, size: usize, stride: usize) -> Option<[usize; 2]> {
    let n_outputs = extent.checked_div(stride)? + usize::from(!extent.is_multiple_of(stride));
    let reached = n_outputs.saturating_sub(1).checked_mul(stride)?.checked_add(size)?;
    let zeros = reached.saturating_sub(extent);
    Some([zeros / 2, zeros.div_ceil(2)])
}

/// How several elements become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
    /// Their maximum.
    Max,
}
