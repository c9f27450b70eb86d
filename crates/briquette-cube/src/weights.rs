//! Weights on a device, as they are kept there.

use crate::bitmask::BLOCK_ROWS;
use crate::cubek::Cubek;
use crate::fastest::Call;
use crate::gpu::{Buffer, Gpu};
use crate::launch::Codes;
use crate::launch::{self, Ending, Floats, Ids, Place, Product, RowScales};
use crate::mma::Tile;
use crate::pack;
use cubecl_core::ir::ElemType;

/// Up to so many rows, reading the weights takes longer than the products.
const FEW: usize = 8;
/// Most rows of floats that are multiplied with codes as they are; more have the weights decoded first.
const FEW_FLOATS: usize = 15;

/// Codes without their zeros, on a device.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    pub(crate) bits: Buffer,
    pub(crate) values: Buffer,
    pub(crate) bases: Buffer,
}

impl Blocks {
    fn new(gpu: &Gpu, packed: &pack::Bitmask) -> Self {
        Self { bits: gpu.keep(&packed.bits), values: gpu.keep(&packed.values), bases: gpu.keep(&packed.bases) }
    }

    fn n_bytes(&self) -> usize {
        self.bits.n_bytes() + self.values.n_bytes() + self.bases.n_bytes()
    }
}

/// How codes are kept.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    Dense(Buffer),
    Blocks(Blocks),
}

impl Kept {
    fn n_bytes(&self) -> usize {
        match self {
            Self::Dense(words) => words.n_bytes(),
            Self::Blocks(blocks) => blocks.n_bytes(),
        }
    }
}

/// int8 weights `[n_out, n_in]` with a scale for each output.
#[derive(Debug, Clone)]
pub struct Int8 {
    gpu: Gpu,
    n_out: usize,
    n_in: usize,
    pub(crate) kept: Kept,
    /// Sums of the codes of each output, which a zero point of the activations multiplies.
    pub(crate) sums: Buffer,
    pub(crate) scales: Buffer,
}

/// Which kernel makes a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Matrix instructions.
    Mma(Tile),
    /// Matrix instructions, by a kernel of CubeK.
    Cubek(Cubek),
    /// Dot products, a warp for some outputs.
    FewRows,
    /// Dot products, a unit for each output.
    Dp4a,
}

impl Int8 {
    /// Copies row-major `codes` `[n_out, n_in]`, worth `codes[o, i] * scales[o]` each, to the device.
    ///
    /// # Panics
    /// If the lengths disagree with the shape.
    pub fn new(gpu: &Gpu, codes: &[i8], scales: &[f32], [n_out, n_in]: [usize; 2], is_sparse: bool) -> Self {
        assert_eq!((codes.len(), scales.len()), (n_out * n_in, n_out), "codes and scales of [{n_out}, {n_in}]");
        let kept = match is_sparse {
            true => Kept::Blocks(Blocks::new(gpu, &pack::blocks(codes, n_out, n_in))),
            false => Kept::Dense(gpu.keep(&pack::rows(codes, n_out, n_in))),
        };
        let sum = |row: usize| codes[row * n_in..(row + 1) * n_in].iter().map(|&code| i32::from(code)).sum::<i32>();
        let sums: Vec<i32> = (0..n_out).map(sum).collect();
        Self { gpu: gpu.clone(), n_out, n_in, kept, sums: gpu.keep(&sums), scales: gpu.keep(scales) }
    }

    /// Outputs.
    pub const fn n_out(&self) -> usize {
        self.n_out
    }

    /// Inputs.
    pub const fn n_in(&self) -> usize {
        self.n_in
    }

    /// Whether zeros are left out.
    pub const fn is_sparse(&self) -> bool {
        matches!(self.kept, Kept::Blocks(_))
    }

    /// Bytes held on the device.
    pub fn n_bytes(&self) -> usize {
        self.kept.n_bytes() + self.sums.n_bytes() + self.scales.n_bytes()
    }

    /// Where they are.
    pub const fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) const fn row_words(&self) -> usize {
        pack::row_words(self.n_in)
    }

    /// The codes with their zeros: those that are kept, or a copy that is soon gone.
    pub(crate) fn words(&self) -> Buffer {
        match &self.kept {
            Kept::Dense(words) => words.clone(),
            Kept::Blocks(blocks) => launch::expand(&self.gpu, blocks, self.n_out, self.n_in),
        }
    }

    /// The weights as floats.
    pub fn decode(&self, dtype: ElemType) -> Floats {
        let out = Floats::empty(&self.gpu, dtype, self.n_out, self.n_in);
        if self.n_out * self.n_in > 0 {
            launch::decode(&self.gpu, &self.words(), &self.scales, self.n_in, 8, &out);
        }
        out
    }

    /// The kernel of `n_rows` rows of codes where none has to be measured: for few rows, and on devices without matrix
    /// instructions.
    fn way(&self, n_rows: usize) -> Option<Way> {
        let has_matrices = self.gpu.has_int8_matrices();
        // Expanding first would read and write more than the product itself.
        if n_rows <= FEW && !(has_matrices && self.is_sparse()) {
            return Some(Way::FewRows);
        }
        (!has_matrices).then_some(Way::Dp4a)
    }

    /// `y = x · wᵀ` with `x` quantized by the row, and what follows.
    ///
    /// # Panics
    /// If `x` has other columns than there are inputs.
    pub fn linear(&self, x: &Floats, symmetric: bool, ending: &Ending) -> Floats {
        let (y, codes, rows) = self.quantized(x, symmetric);
        self.multiply(&codes, &rows, Place::rows(self.n_out), ending, &y);
        y
    }

    /// As [`Self::linear`], by a kernel of one's choice.
    ///
    /// # Errors
    /// Where the kernel does not fit the device or the extents.
    ///
    /// # Panics
    /// As [`Self::linear`].
    pub fn linear_by(&self, way: Way, x: &Floats, symmetric: bool, ending: &Ending) -> Result<Floats, String> {
        let (y, codes, rows) = self.quantized(x, symmetric);
        self.multiply_by(way, &codes, &rows, Place::rows(self.n_out), ending, &y)?;
        Ok(y)
    }

    /// Room for outputs, and activations as codes.
    fn quantized(&self, x: &Floats, symmetric: bool) -> (Floats, Codes, RowScales) {
        assert_eq!(x.n_cols, self.n_in, "columns of activations for weights of [{}, {}]", self.n_out, self.n_in);
        let y = Floats::empty(&self.gpu, x.dtype, x.n_rows, self.n_out);
        let (codes, rows) = launch::quantize(&self.gpu, x, self.row_words(), symmetric);
        (y, codes, rows)
    }

    pub(crate) fn multiply(&self, codes: &Codes, rows: &RowScales, place: Place, ending: &Ending, y: &Floats) {
        if place.is_empty(codes.n_rows) {
            return;
        }
        if let Some(way) = self.way(codes.n_rows) {
            return self.multiply_by(way, codes, rows, place, ending, y).expect("kernels that fit all extents");
        }
        let (weights, codes, rows, ending, y) = (self.clone(), codes.clone(), rows.clone(), ending.clone(), y.clone());
        Call { weights, codes, rows, place, ending, y }.by_the_fastest();
    }

    pub(crate) fn multiply_by(
        &self,
        way: Way,
        codes: &Codes,
        rows: &RowScales,
        place: Place,
        ending: &Ending,
        y: &Floats,
    ) -> Result<(), String> {
        if place.is_empty(codes.n_rows) {
            return Ok(());
        }
        let product = Product { codes, rows, weights: self, place, ending };
        match way {
            Way::Mma(tile) => {
                // A product that begins within a block has its zeros put back first.
                let words = (self.is_sparse() && !place.first_col.is_multiple_of(BLOCK_ROWS)).then(|| self.words());
                launch::product_mma(&self.gpu, &product, words.as_ref(), tile, y);
            }
            Way::Cubek(strategy) => return launch::product_cubek(&self.gpu, &product, &self.words(), strategy, y),
            Way::FewRows => launch::few_rows_codes(&self.gpu, &product, &self.words(), y),
            Way::Dp4a => launch::product_dp4a(&self.gpu, &product, &self.words(), y),
        }
        Ok(())
    }

    /// `y = x · wᵀ + shift` with `x` as it is, where there is a kernel for so few rows; else [`Self::decode`] and multiply.
    pub fn weight_only(&self, x: &Floats, shift: Option<&Buffer>) -> Option<Floats> {
        let fits = (1..=FEW_FLOATS).contains(&x.n_rows) && x.n_cols == self.n_in && self.n_in.is_multiple_of(4);
        if !fits || self.n_in == 0 || self.n_out == 0 {
            return None;
        }
        let y = Floats::empty(&self.gpu, x.dtype, x.n_rows, self.n_out);
        launch::few_rows_int8(&self.gpu, x, self, &self.words(), shift, &y);
        Some(y)
    }
}

/// int4 weights `[n_out, n_in]` with a scale for each `group` inputs of each output.
#[derive(Debug, Clone)]
pub struct Int4 {
    gpu: Gpu,
    n_out: usize,
    n_in: usize,
    group: usize,
    words: Buffer,
    scales: Buffer,
}

impl Int4 {
    /// Copies row-major `codes` of -8 to 7 to the device, worth `codes[o, i] * scales[o, i / group]` each.
    ///
    /// # Panics
    /// If the lengths disagree with the shape.
    pub fn new(gpu: &Gpu, codes: &[i8], scales: &[f32], [n_out, n_in]: [usize; 2], group: usize) -> Self {
        let n_scales = n_out * n_in.div_ceil(group);
        assert_eq!((codes.len(), scales.len()), (n_out * n_in, n_scales), "[{n_out}, {n_in}] in groups of {group}");
        let words = gpu.keep(&pack::rows_of_int4(codes, n_in));
        Self { gpu: gpu.clone(), n_out, n_in, group, words, scales: gpu.keep(scales) }
    }

    /// Outputs.
    pub const fn n_out(&self) -> usize {
        self.n_out
    }

    /// Inputs.
    pub const fn n_in(&self) -> usize {
        self.n_in
    }

    /// Bytes held on the device.
    pub fn n_bytes(&self) -> usize {
        self.words.n_bytes() + self.scales.n_bytes()
    }

    /// The weights as floats.
    pub fn decode(&self, dtype: ElemType) -> Floats {
        let out = Floats::empty(&self.gpu, dtype, self.n_out, self.n_in);
        if self.n_out * self.n_in > 0 {
            launch::decode(&self.gpu, &self.words, &self.scales, self.group, 4, &out);
        }
        out
    }

    /// As [`Int8::weight_only`].
    pub fn weight_only(&self, x: &Floats, shift: Option<&Buffer>) -> Option<Floats> {
        let is_whole = self.n_in.is_multiple_of(8) && self.group.is_multiple_of(8);
        let fits = (1..=FEW_FLOATS).contains(&x.n_rows) && x.n_cols == self.n_in && is_whole;
        if !fits || self.n_in == 0 || self.n_out == 0 {
            return None;
        }
        let y = Floats::empty(&self.gpu, x.dtype, x.n_rows, self.n_out);
        launch::few_rows_int4(&self.gpu, x, [&self.words, &self.scales], self.group, shift, &y);
        Some(y)
    }
}

/// A table `[n_rows, n_cols]` of int8 codes with a scale for each row.
#[derive(Debug, Clone)]
pub struct Table {
    gpu: Gpu,
    n_rows: usize,
    n_cols: usize,
    kept: Kept,
    scales: Buffer,
}

impl Table {
    /// Copies row-major `codes`, worth `codes[r, c] * scales[r]` each, to the device.
    ///
    /// # Panics
    /// If the lengths disagree with the shape.
    pub fn new(gpu: &Gpu, codes: &[i8], scales: &[f32], [n_rows, n_cols]: [usize; 2], is_sparse: bool) -> Self {
        assert_eq!((codes.len(), scales.len()), (n_rows * n_cols, n_rows), "codes and scales of [{n_rows}, {n_cols}]");
        let kept = match is_sparse {
            true => Kept::Blocks(Blocks::new(gpu, &pack::row_bitmasks(codes, n_cols))),
            false => Kept::Dense(gpu.keep(&pack::rows(codes, n_rows, n_cols))),
        };
        Self { gpu: gpu.clone(), n_rows, n_cols, kept, scales: gpu.keep(scales) }
    }

    /// Rows.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Whether zeros are left out.
    pub const fn is_sparse(&self) -> bool {
        matches!(self.kept, Kept::Blocks(_))
    }

    /// Bytes held on the device.
    pub fn n_bytes(&self) -> usize {
        self.kept.n_bytes() + self.scales.n_bytes()
    }

    /// A row of floats for each id; NaN for one that is no row.
    pub fn lookup(&self, ids: &Ids, dtype: ElemType) -> Floats {
        let out = Floats::empty(&self.gpu, dtype, ids.n(), self.n_cols);
        if ids.n() * self.n_rows * self.n_cols > 0 {
            match &self.kept {
                Kept::Dense(words) => launch::lookup(&self.gpu, ids, words, &self.scales, self.n_rows, &out),
                Kept::Blocks(rows) => launch::lookup_bitmask(&self.gpu, ids, rows, &self.scales, self.n_rows, &out),
            }
        }
        out
    }

    /// All rows as floats.
    pub fn decode(&self, dtype: ElemType) -> Floats {
        let all: Vec<u32> = (0..self.n_rows as u32).collect();
        let buffer = self.gpu.copy(&all);
        self.lookup(&Ids { buffer, dtype: ElemType::UInt(cubecl_core::ir::UIntKind::U32) }, dtype)
    }
}
