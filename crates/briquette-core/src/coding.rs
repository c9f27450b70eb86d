//! How a tensor is kept: dense or sparse, as floats or codes, and which parts that makes.

use crate::{Affine, DType, Grid, GridKind, Grouping, Mask, Rows, bits};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Whether dropped weights take room in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Every element is stored, zeros too.
    Dense,
    /// One bit is stored for each element, then only the kept elements.
    Bitmask,
    /// Every element is stored as a code, zeros too, in as many bits as its frequency says.
    Entropy {
        /// Bytes of all blocks of codes.
        n_bytes: usize,
    },
}

/// The type scales are stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ScaleType {
    /// 4 bytes each.
    #[default]
    F32,
    /// 2 bytes each. Scales are rounded to f16 before weights are quantized with them; a tensor whose scales f16 cannot hold has f32 ones.
    F16,
}

impl ScaleType {
    /// Bytes of one scale.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// The integer codes of a tensor.
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
}

impl Codes {
    /// The grid; `None` where a file names a width that no grid has.
    pub fn grid(self) -> Option<Grid> {
        Grid::new(self.bits, self.grid)
    }
}

/// How a tensor is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coding {
    /// Dense or sparse.
    pub storage: Storage,
    /// Integer codes instead of the tensor's own floats.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub codes: Option<Codes>,
}

/// One of the arrays that a file stores for a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The tensor itself, in its own type.
    Weight,
    /// Dense codes: I8, or U8 rows of packed codes.
    Codes,
    /// Kept elements only, as floats or codes.
    Values,
    /// Blocks of entropy-coded codes.
    Blocks,
    /// Where each block ends in the blocks, in bytes.
    BlockEnds,
    /// One bit for each element.
    Bitmask,
    /// Where each row starts in the values, in elements.
    RowOffsets,
    /// Scales, `[rows, groups]`.
    Scale,
    /// Zero points, like the scales.
    Zero,
}

impl Part {
    /// Every part, in the order of [`Parts`].
    pub const ALL: [Self; 9] = [
        Self::Weight,
        Self::Codes,
        Self::Values,
        Self::Blocks,
        Self::BlockEnds,
        Self::Bitmask,
        Self::RowOffsets,
        Self::Scale,
        Self::Zero,
    ];

    /// The suffix of the part's name in a file, after the tensor's name.
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
        }
    }
}

/// Type and shape of one part as a file declares it.
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
    /// Bytes of the part.
    pub fn n_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.n_bits() / 8
    }
}

impl Coding {
    /// The tensor unchanged: dense, in its own type.
    pub const DENSE: Self = Self { storage: Storage::Dense, codes: None };

    /// The parts of a tensor of `n_rows` by `n_cols` in `dtype` of which `n_kept` elements are kept. [`Part::Weight`] has the shape
    /// `[n_rows, n_cols]` here; a file gives it the tensor's own shape.
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
            (Storage::Entropy { n_bytes }, _) => spec(Part::Blocks, DType::U8, vec![n_bytes]),
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
            };
            parts.push(spec(Part::Scale, scale, shape.clone()));
            if codes.grid == GridKind::Asymmetric {
                parts.push(spec(Part::Zero, DType::I8, shape));
            }
        }
        parts
    }

    /// Bytes of all [`parts`](Self::parts), without making the list: this runs for each of what may be millions of tensors.
    pub fn n_bytes(&self, dtype: DType, n_rows: usize, n_cols: usize, n_kept: usize) -> usize {
        let n_bits = self.codes.map_or(dtype.n_bits(), |codes| usize::from(codes.bits));
        let elements = match (self.storage, self.codes) {
            (Storage::Dense, None) => n_rows * n_cols * n_bits / 8,
            (Storage::Dense, Some(codes)) => n_rows * bits::packed_bytes(n_cols, codes.bits),
            (Storage::Bitmask, None) => n_kept * n_bits / 8,
            (Storage::Bitmask, Some(codes)) => bits::packed_bytes(n_kept, codes.bits),
            (Storage::Entropy { n_bytes }, _) => n_bytes,
        };
        let bitmask = match self.storage {
            Storage::Dense => 0,
            Storage::Bitmask => n_rows * Mask::row_bytes(n_cols) + 8 * n_rows,
            Storage::Entropy { .. } => 8 * CodeBlocks::new(n_rows, n_cols).len(),
        };
        let scales = self.codes.map_or(0, |codes| {
            let [n, groups] = codes.grouping.scale_shape(n_rows, n_cols);
            n * groups * (codes.scale.n_bytes() + usize::from(codes.grid == GridKind::Asymmetric))
        });
        elements + bitmask + scales
    }

    /// The smaller of dense and sparse; dense where they are equal.
    pub fn smallest(codes: Option<Codes>, dtype: DType, n_rows: usize, n_cols: usize, n_kept: usize) -> Self {
        let dense = Self { storage: Storage::Dense, codes };
        let sparse = Self { storage: Storage::Bitmask, codes };
        let n_bytes = |coding: &Self| coding.n_bytes(dtype, n_rows, n_cols, n_kept);
        if n_bytes(&sparse) < n_bytes(&dense) { sparse } else { dense }
    }

    /// Entropy-coded codes of a tensor, at the most bytes that they can take: what they would be without frequencies.
    /// `None` for tensors whose rows are too long for a block.
    pub fn entropy(codes: Codes, n_rows: usize, n_cols: usize) -> Option<Self> {
        let blocks = CodeBlocks::new(n_rows, n_cols);
        let n_bytes = match blocks.len() {
            0 => 0,
            n => (n - 1) * blocks.packed_bytes(0, codes.bits) + blocks.packed_bytes(n - 1, codes.bits),
        };
        (1..=MAX_BLOCK_COLS)
            .contains(&n_cols)
            .then_some(Self { storage: Storage::Entropy { n_bytes }, codes: Some(codes) })
    }

    /// How the codes lie once they were read: those of blocks are a byte each.
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

/// Codes that blocks may hold in any case.
const CODES_ANYWAY: u64 = 64 << 20;
/// Codes for each byte of blocks. Of int8 codes at 99.5 % sparsity, a byte holds about 100.
const MAX_CODES_PER_BYTE: u64 = 128;

/// Whether blocks of `n_bytes` may hold `n_codes` codes in one output.
///
/// Codes that are all equal take hardly any bytes: a file of a megabyte could keep a reader busy for minutes. A writer keeps
/// such codes without blocks.
pub fn may_be_entropy_coded(n_codes: u64, n_bytes: u64) -> bool {
    n_codes <= n_bytes.saturating_mul(MAX_CODES_PER_BYTE).max(CODES_ANYWAY)
}

/// The longest rows that are kept as blocks of codes, which have whole rows.
pub const MAX_BLOCK_COLS: usize = 1 << 24;

/// The blocks of an entropy-coded tensor: each has the rows of [a few](Self::OF_ROW_BLOCKS) blocks of [`Rows::blocks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeBlocks {
    rows: Rows,
    rows_per_block: usize,
}

impl CodeBlocks {
    /// Blocks of [`Rows::blocks`] that one has.
    pub const OF_ROW_BLOCKS: usize = 4;

    /// Those of a tensor of these rows.
    pub fn new(n_rows: usize, n_cols: usize) -> Self {
        let rows = Rows::plain(n_rows, n_cols);
        Self { rows, rows_per_block: Self::OF_ROW_BLOCKS * rows.rows_per_block() }
    }

    /// The fewest rows that are whole blocks and a multiple of 32.
    pub fn rows_by_32(rows: &Rows) -> usize {
        let n = Self::OF_ROW_BLOCKS * rows.rows_per_block();
        n << 5_u32.saturating_sub(n.trailing_zeros())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.n_rows.div_ceil(self.rows_per_block)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of a block.
    pub fn rows(&self, block: usize) -> Range<usize> {
        let start = (block * self.rows_per_block).min(self.rows.n_rows);
        start..(start + self.rows_per_block).min(self.rows.n_rows)
    }

    /// The blocks that have these rows.
    pub fn of_rows(&self, rows: &Range<usize>) -> Range<usize> {
        rows.start / self.rows_per_block..rows.end.div_ceil(self.rows_per_block)
    }

    /// Codes of a block.
    pub fn n_codes(&self, block: usize) -> usize {
        self.rows(block).len() * self.rows.n_cols
    }

    /// Bytes of a block whose codes take `n_bits` each, which is the most it has.
    pub fn packed_bytes(&self, block: usize, n_bits: u8) -> usize {
        bits::packed_bytes(self.n_codes(block), n_bits)
    }
}

impl ScaleType {
    /// Rounds a scale to this type.
    ///
    /// A scale stays as it is if rounding would change it by more than one part in 256, as f16 does below 1e-5 and above 65504. It is then
    /// to be stored as f32: see [`holds`](Self::holds).
    pub fn round(self, affine: Affine) -> Affine {
        let rounded = self.nearest(affine.scale);
        let is_near = (rounded - affine.scale).abs() <= affine.scale / 256.0;
        Affine { scale: if is_near { rounded } else { affine.scale }, ..affine }
    }

    /// Whether this type stores a scale without any change.
    pub fn holds(self, affine: Affine) -> bool {
        self.nearest(affine.scale) == affine.scale
    }

    fn nearest(self, scale: f32) -> f32 {
        match self {
            Self::F32 => scale,
            Self::F16 => half::f16::from_f32(scale).to_f32(),
        }
    }
}

/// The bytes of each part, while encoding or when decoding from memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts([Vec<u8>; Part::ALL.len()]);

impl Parts {
    /// Empties every part, keeping the memory.
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
    fn a_half_precision_scale_is_near_or_is_not_held() {
        for (scale, is_held) in
            [(1e-30, false), (5e-8, false), (2e-5, true), (0.37, true), (65_519.0, true), (1e5, false)]
        {
            let rounded = ScaleType::F16.round(Affine::symmetric(scale));
            assert!((rounded.scale - scale).abs() <= scale / 256.0, "{scale}");
            assert_eq!(ScaleType::F16.holds(rounded), is_held, "{scale}");
            assert_eq!(ScaleType::F16.round(rounded), rounded, "{scale}");
            assert!(ScaleType::F32.holds(rounded), "{scale}");
        }
    }
}
