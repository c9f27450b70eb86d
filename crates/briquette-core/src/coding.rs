//! How a tensor is stored: dense or sparse, as floats or codes, and in which parts.

pub use crate::code_blocks::CodeBlocks;
use crate::code_blocks::MAX_BLOCK_COLS;
use crate::entropy::trellis::can_have_trellis;
use crate::{Affine, DType, Grid, GridKind, Grouping, Mask, bits, log_scale};
use serde::{Deserialize, Serialize};

/// Whether dropped weights take space in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Every element is stored, including zeros.
    Dense,
    /// One bit per element is stored, followed by the kept elements only.
    Bitmask,
    /// Every element is stored as an entropy-coded code, including zeros.
    Entropy {
        /// Bytes of all entropy-coded blocks.
        n_bytes: usize,
        /// Whether blocks may have a table for each parity: see [`crate::entropy::trellis`].
        #[serde(rename = "trellis", skip_serializing_if = "std::ops::Not::not", default)]
        has_trellis: bool,
    },
}

/// The type of stored scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ScaleType {
    /// 4 bytes each.
    #[default]
    F32,
    /// 2 bytes each.
    ///
    /// Scales are rounded to f16 before weights are quantized with them. A tensor with scales that f16 cannot
    /// represent has f32 scales.
    F16,
    /// 1 byte each: the scale is a power of `2^(1/8)`, see [`crate::log_scale`].
    ///
    /// A tensor with other scales has f32 scales.
    Log8,
}

impl ScaleType {
    /// Returns the size of one scale in bytes.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Log8 => 1,
        }
    }
}

/// The format of a tensor's integer codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Codes {
    /// Width of a code, 2 to 8.
    pub bits: u8,
    /// Which codes the grid uses, and whether it has a zero point.
    pub grid: GridKind,
    /// Which weights share a scale.
    pub grouping: Grouping,
    /// The type of the scales.
    pub scale: ScaleType,
    /// Whether each column has a scale too, a byte of [`crate::log_scale`].
    #[serde(rename = "column_scale", skip_serializing_if = "std::ops::Not::not", default)]
    pub has_columns: bool,
}

impl Codes {
    /// Returns the grid, or `None` if the file has a bit width that no grid has.
    pub fn grid(self) -> Option<Grid> {
        Grid::new(self.bits, self.grid)
    }
}

/// How a tensor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coding {
    /// Dense or sparse.
    pub storage: Storage,
    /// Integer codes instead of the tensor's own floats.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub codes: Option<Codes>,
}

/// An array that a file stores for a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The whole tensor in its own type.
    Weight,
    /// Dense codes: I8, or packed codes in U8 rows.
    Codes,
    /// Only the kept elements, as floats or codes.
    Values,
    /// Entropy-coded blocks of codes.
    Blocks,
    /// The end of each entropy-coded block, in bytes.
    BlockEnds,
    /// One bit per element.
    Bitmask,
    /// The start of each row in [`Values`](Self::Values), in elements.
    RowOffsets,
    /// Scales, `[rows, groups]`.
    Scale,
    /// Zero points, in the shape of the scales.
    Zero,
    /// Scales of columns, `[cols]`.
    ColumnScale,
}

impl Part {
    /// All parts, in the order of [`Parts`].
    pub const ALL: [Self; 10] = [
        Self::Weight,
        Self::Codes,
        Self::Values,
        Self::Blocks,
        Self::BlockEnds,
        Self::Bitmask,
        Self::RowOffsets,
        Self::Scale,
        Self::Zero,
        Self::ColumnScale,
    ];

    /// Returns the suffix of the part's name in a file, which follows the tensor's name.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Weight => "",
            Self::Codes => ".codes",
            Self::Values => ".values",
            Self::Blocks => ".blocks",
            Self::BlockEnds => ".block_ends",
            Self::Bitmask => ".bitmask",
            Self::RowOffsets => ".row_offsets",
            Self::Scale => ".scale",
            Self::Zero => ".zero",
            Self::ColumnScale => ".column_scale",
        }
    }
}

/// Type and shape of a part as a file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartSpec {
    /// Which part of the tensor.
    pub part: Part,
    /// Element type in the file.
    pub dtype: DType,
    /// Extents in the file.
    pub shape: Vec<usize>,
}

impl PartSpec {
    /// Returns the size of the part in bytes.
    pub fn n_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.n_bits() / 8
    }
}

impl Coding {
    /// The tensor unchanged: dense, in its own type.
    pub const DENSE: Self = Self { storage: Storage::Dense, codes: None };

    /// Returns the parts of a tensor of `n_rows` by `n_cols` in `dtype` with `n_kept` kept elements.
    ///
    /// [`Part::Weight`] has the shape `[n_rows, n_cols]` here; a file has the tensor's own shape.
    pub fn parts(&self, dtype: DType, n_rows: usize, n_cols: usize, n_kept: usize) -> Vec<PartSpec> {
        let n_bits = self.codes.map_or(8, |codes| codes.bits);
        let spec = |part, dtype, shape| PartSpec { part, dtype, shape };
        let mut parts = Vec::with_capacity(if self.storage == Storage::Bitmask { 5 } else { 3 });
        parts.push(match (self.storage, self.codes) {
            (Storage::Dense, None) => spec(Part::Weight, dtype, vec![n_rows, n_cols]),
            (Storage::Dense, Some(_)) if n_bits == 8 => spec(Part::Codes, DType::I8, vec![n_rows, n_cols]),
            (Storage::Dense, Some(_)) => spec(Part::Codes, DType::U8, vec![n_rows, bits::packed_bytes(n_cols, n_bits)]),
            (Storage::Bitmask, None) => spec(Part::Values, dtype, vec![n_kept]),
            (Storage::Bitmask, Some(_)) if n_bits == 8 => spec(Part::Values, DType::I8, vec![n_kept]),
            (Storage::Bitmask, Some(_)) => spec(Part::Values, DType::U8, vec![bits::packed_bytes(n_kept, n_bits)]),
            (Storage::Entropy { n_bytes, .. }, _) => spec(Part::Blocks, DType::U8, vec![n_bytes]),
        });
        match self.storage {
            Storage::Dense => {}
            Storage::Bitmask => {
                parts.push(spec(Part::Bitmask, DType::U8, vec![n_rows, Mask::row_bytes(n_cols)]));
                parts.push(spec(Part::RowOffsets, DType::I64, vec![n_rows]));
            }
            Storage::Entropy { .. } => {
                parts.push(spec(Part::BlockEnds, DType::I64, vec![CodeBlocks::new(n_rows, n_cols).len()]));
            }
        }
        if let Some(codes) = self.codes {
            let shape = codes.grouping.scale_shape(n_rows, n_cols).to_vec();
            let scale = match codes.scale {
                ScaleType::F32 => DType::F32,
                ScaleType::F16 => DType::F16,
                ScaleType::Log8 => DType::U8,
            };
            parts.push(spec(Part::Scale, scale, shape.clone()));
            if codes.grid == GridKind::Asymmetric {
                parts.push(spec(Part::Zero, DType::I8, shape));
            }
            if codes.has_columns {
                parts.push(spec(Part::ColumnScale, DType::U8, vec![n_cols]));
            }
        }
        parts
    }

    /// Returns the size of all [`parts`](Self::parts) in bytes.
    ///
    /// Does not allocate a list, because it runs for each of possibly millions of tensors.
    pub fn n_bytes(&self, dtype: DType, n_rows: usize, n_cols: usize, n_kept: usize) -> usize {
        let n_bits = self.codes.map_or(dtype.n_bits(), |codes| usize::from(codes.bits));
        let elements = match (self.storage, self.codes) {
            (Storage::Dense, None) => n_rows * n_cols * n_bits / 8,
            (Storage::Dense, Some(codes)) => n_rows * bits::packed_bytes(n_cols, codes.bits),
            (Storage::Bitmask, None) => n_kept * n_bits / 8,
            (Storage::Bitmask, Some(codes)) => bits::packed_bytes(n_kept, codes.bits),
            (Storage::Entropy { n_bytes, .. }, _) => n_bytes,
        };
        let bitmask = match self.storage {
            Storage::Dense => 0,
            Storage::Bitmask => n_rows * Mask::row_bytes(n_cols) + 8 * n_rows,
            Storage::Entropy { .. } => 8 * CodeBlocks::new(n_rows, n_cols).len(),
        };
        let scales = self.codes.map_or(0, |codes| {
            let [n, groups] = codes.grouping.scale_shape(n_rows, n_cols);
            let columns = if codes.has_columns { n_cols } else { 0 };
            n * groups * (codes.scale.n_bytes() + usize::from(codes.grid == GridKind::Asymmetric)) + columns
        });
        elements + bitmask + scales
    }

    /// Returns the smaller of dense and sparse storage, or dense if they are equal.
    pub fn smallest(codes: Option<Codes>, dtype: DType, n_rows: usize, n_cols: usize, n_kept: usize) -> Self {
        let dense = Self { storage: Storage::Dense, codes };
        let sparse = Self { storage: Storage::Bitmask, codes };
        let n_bytes = |coding: &Self| coding.n_bytes(dtype, n_rows, n_cols, n_kept);
        if n_bytes(&sparse) < n_bytes(&dense) { sparse } else { dense }
    }

    /// Returns entropy-coded storage at its largest possible size: all codes packed.
    ///
    /// Blocks of a trellis need codes of eight bits and [rows](can_have_trellis) whose length is a multiple of 32; others
    /// have one table. Returns `None` if the rows of the tensor are too long for a block.
    pub fn entropy(codes: Codes, has_trellis: bool, n_rows: usize, n_cols: usize) -> Option<Self> {
        let blocks = CodeBlocks::new(n_rows, n_cols);
        let n_bytes = match blocks.len() {
            0 => 0,
            n => (n - 1) * blocks.packed_bytes(0, codes.bits) + blocks.packed_bytes(n - 1, codes.bits),
        };
        let has_trellis = has_trellis && codes.bits == 8 && can_have_trellis(n_cols);
        (1..=MAX_BLOCK_COLS)
            .contains(&n_cols)
            .then_some(Self { storage: Storage::Entropy { n_bytes, has_trellis }, codes: Some(codes) })
    }

    /// Returns the coding of decoded rows: entropy-coded codes become one byte each.
    pub(crate) fn as_read(self) -> Self {
        match self.storage {
            Storage::Entropy { .. } => {
                let codes = self.codes.map(|codes| Codes { bits: 8, ..codes });
                Self { storage: Storage::Dense, codes }
            }
            Storage::Dense | Storage::Bitmask => self,
        }
    }
}

/// The number of codes that entropy-coded blocks may always hold.
const CODES_ANYWAY: u64 = 64 << 20;
/// The limit of codes per byte of entropy-coded blocks. int8 codes at 99.5 % sparsity have about 100.
const MAX_CODES_PER_BYTE: u64 = 128;

/// Returns whether blocks of `n_bytes` may hold `n_codes` codes in one output.
///
/// Equal codes take almost no bytes, so a file of one megabyte could keep a reader busy for minutes. A writer
/// stores such codes without entropy coding.
pub fn may_be_entropy_coded(n_codes: u64, n_bytes: u64) -> bool {
    n_codes <= n_bytes.saturating_mul(MAX_CODES_PER_BYTE).max(CODES_ANYWAY)
}

impl ScaleType {
    /// Rounds a scale to this type.
    ///
    /// If rounding would change the scale by more than one part in 256, as f16 does below 1e-5 and above 65504,
    /// and `Log8` does between its powers, the scale is unchanged. It then has to be stored as f32: see [`holds`](Self::holds).
    pub fn round(self, affine: Affine) -> Affine {
        let rounded = self.nearest(affine.scale);
        let is_near = (rounded - affine.scale).abs() <= affine.scale / 256.0;
        Affine { scale: if is_near { rounded } else { affine.scale }, ..affine }
    }

    /// Returns whether this type can store a scale exactly.
    pub fn holds(self, affine: Affine) -> bool {
        self.nearest(affine.scale) == affine.scale
    }

    fn nearest(self, scale: f32) -> f32 {
        match self {
            Self::F32 => scale,
            Self::F16 => half::f16::from_f32(scale).to_f32(),
            Self::Log8 => log_scale::of_byte(log_scale::nearest_byte(scale)),
        }
    }
}

/// The bytes of each part, for encoding and decoding in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts([Vec<u8>; Part::ALL.len()]);

impl Parts {
    /// Empties every part but keeps the memory for reuse.
    pub fn clear(&mut self) {
        self.0.iter_mut().for_each(Vec::clear);
    }
}

impl std::ops::Index<Part> for Parts {
    type Output = Vec<u8>;

    fn index(&self, part: Part) -> &Vec<u8> {
        &self.0[part as usize]
    }
}

impl std::ops::IndexMut<Part> for Parts {
    fn index_mut(&mut self, part: Part) -> &mut Vec<u8> {
        &mut self.0[part as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_scales_are_close_or_rejected() {
        for (scale, is_held) in
            [(1e-30, false), (5e-8, false), (2e-5, true), (0.37, true), (65_519.0, true), (1e5, false)]
        {
            let rounded = ScaleType::F16.round(Affine::symmetric(scale));
            assert!((rounded.scale - scale).abs() <= scale / 256.0, "{scale}");
            assert_eq!(ScaleType::F16.holds(rounded), is_held, "{scale}");
            assert_eq!(ScaleType::F16.round(rounded), rounded, "{scale}");
            assert!(ScaleType::F32.holds(rounded), "{scale}");
            assert!(!ScaleType::Log8.holds(Affine::symmetric(scale)), "{scale}");
        }
        assert!((-192..64).all(|e| ScaleType::Log8.holds(Affine::symmetric(log_scale::of_eighths(e)))));
    }
}
