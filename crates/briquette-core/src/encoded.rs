//! How a tensor is kept: its coding, the parts that makes, and the pair [`encode`] / [`decode`] over whole tensors.

mod parts;

use crate::block::{RowDecoder, RowEncoder, StoredRows};
use crate::{Affine, DType, Decision, Grid, GridKind, Grouping, Mask, bits, rows, simd};
pub use parts::Parts;
use serde::{Deserialize, Serialize};

/// Whether dropped weights take room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Every element, zeros too.
    Dense,
    /// One bit for each element, then the kept ones only.
    Bitmask,
}

/// The type scales are stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ScaleType {
    /// 4 bytes each.
    #[default]
    F32,
    /// 2 bytes each; scales are rounded to it before any weight is.
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
    /// How the codes are used.
    pub grid: GridKind,
    /// Which weights share a scale.
    pub grouping: Grouping,
    /// The type of the scales.
    pub scale: ScaleType,
}

impl Codes {
    /// The grid, `None` where a file names a width there is no grid for.
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

/// One of the arrays that stand for a tensor in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The tensor itself, in its own type.
    Weight,
    /// Dense codes: I8, or U8 rows of packed codes.
    Codes,
    /// Kept elements only.
    Values,
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
    pub const ALL: [Self; 7] =
        [Self::Weight, Self::Codes, Self::Values, Self::Bitmask, Self::RowOffsets, Self::Scale, Self::Zero];

    /// What is appended to the tensor's name.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Weight => "",
            Self::Codes => ".codes",
            Self::Values => ".values",
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
    /// Which part.
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
    /// As it came: dense, in its own type.
    pub const DENSE: Self = Self { storage: Storage::Dense, codes: None };

    /// The parts of a tensor of `n_rows` by `n_cols` in `dtype` of which `n_kept` elements are kept. The shape of
    /// [`Part::Weight`] is `[n_rows, n_cols]`; a file gives it the tensor's own shape.
    pub fn parts(&self, dtype: DType, n_rows: usize, n_cols: usize, n_kept: usize) -> Vec<PartSpec> {
        let n_bits = self.codes.map_or(8, |codes| codes.bits);
        let spec = |part, dtype, shape| PartSpec { part, dtype, shape };
        let mut parts = match (self.storage, self.codes) {
            (Storage::Dense, None) => vec![spec(Part::Weight, dtype, vec![n_rows, n_cols])],
            (Storage::Dense, Some(_)) if n_bits == 8 => vec![spec(Part::Codes, DType::I8, vec![n_rows, n_cols])],
            (Storage::Dense, Some(_)) => {
                vec![spec(Part::Codes, DType::U8, vec![n_rows, bits::packed_bytes(n_cols, n_bits)])]
            }
            (Storage::Bitmask, None) => vec![spec(Part::Values, dtype, vec![n_kept])],
            (Storage::Bitmask, Some(_)) if n_bits == 8 => vec![spec(Part::Values, DType::I8, vec![n_kept])],
            (Storage::Bitmask, Some(_)) => {
                vec![spec(Part::Values, DType::U8, vec![bits::packed_bytes(n_kept, n_bits)])]
            }
        };
        if self.storage == Storage::Bitmask {
            parts.push(spec(Part::Bitmask, DType::U8, vec![n_rows, Mask::row_bytes(n_cols)]));
            parts.push(spec(Part::RowOffsets, DType::I64, vec![n_rows]));
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

    /// Bytes of all [`parts`](Self::parts): asked for each of what may be millions of tensors.
    pub fn n_bytes(&self, dtype: DType, n_rows: usize, n_cols: usize, n_kept: usize) -> usize {
        let n_bits = self.codes.map_or(dtype.n_bits(), |codes| usize::from(codes.bits));
        let elements = match (self.storage, self.codes) {
            (Storage::Dense, None) => n_rows * n_cols * n_bits / 8,
            (Storage::Dense, Some(codes)) => n_rows * bits::packed_bytes(n_cols, codes.bits),
            (Storage::Bitmask, None) => n_kept * n_bits / 8,
            (Storage::Bitmask, Some(codes)) => bits::packed_bytes(n_kept, codes.bits),
        };
        let bitmask = match self.storage {
            Storage::Dense => 0,
            Storage::Bitmask => n_rows * Mask::row_bytes(n_cols) + 8 * n_rows,
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
}

impl ScaleType {
    /// Rounds a scale to this type; one too small or too large for it becomes its smallest or largest.
    pub fn round(self, affine: Affine) -> Affine {
        match self {
            Self::F32 => affine,
            Self::F16 => {
                let scale = half::f16::from_f32(affine.scale);
                let scale = scale.clamp(half::f16::from_bits(1), half::f16::MAX);
                Affine { scale: scale.to_f32(), ..affine }
            }
        }
    }
}

/// A whole f32 tensor, encoded in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// How it is kept.
    pub coding: Coding,
    /// Rows.
    pub n_rows: usize,
    /// Columns.
    pub n_cols: usize,
    /// The bytes.
    pub parts: Parts,
}

/// Keeps f32 weights `[n_rows, n_cols]` as `decision` says, in the smaller of dense and sparse storage.
///
/// Scales are stored as f32. `decode(encode(w, d)) == simulate(w, d)` bit for bit.
///
/// # Panics
/// If the lengths disagree.
pub fn encode(weights: &[f32], n_rows: usize, n_cols: usize, decision: &Decision) -> Encoded {
    assert_eq!(weights.len(), n_rows * n_cols, "whole rows of weights");
    let mask = decision
        .mask
        .clone()
        .unwrap_or_else(|| Mask::from_fn(n_rows, n_cols, |row, col| weights[row * n_cols + col].to_bits() != 0));
    let codes = decision.quant.as_ref().map(|quant| Codes {
        bits: quant.grid.n_bits(),
        grid: quant.grid.kind(),
        grouping: quant.grouping,
        scale: ScaleType::F32,
    });
    let coding = Coding::smallest(codes, DType::F32, n_rows, n_cols, mask.n_kept());
    let mut parts = Parts::default();
    let mut encoder = RowEncoder::new(coding, DType::F32, 0);
    let mut row_codes = vec![0; n_cols];
    let mut kept = vec![0.0; n_cols];
    for row in 0..n_rows {
        let values = &weights[row * n_cols..(row + 1) * n_cols];
        simd::copy_kept(values, mask.row(row), &mut kept);
        match &decision.quant {
            None => encoder.push_floats(bytemuck::cast_slice(&kept), Some(mask.row(row)), &mut parts),
            Some(quant) => {
                quantize_row(&kept, quant.grid, quant.row(row), &mut row_codes);
                encoder.push_codes(&row_codes, Some(mask.row(row)), &mut parts);
                if row == 0 || quant.grouping != Grouping::Tensor {
                    encoder.push_scales(quant.row(row), &mut parts);
                }
            }
        }
    }
    encoder.finish(&mut parts);
    Encoded { coding, n_rows, n_cols, parts }
}

/// The codes of one row, each of its groups by its own scale.
pub fn quantize_row(values: &[f32], grid: Grid, affines: &[Affine], codes: &mut [i8]) {
    let size = (values.len() / affines.len().max(1)).max(1);
    for ((values, codes), &affine) in values.chunks(size).zip(codes.chunks_mut(size)).zip(affines) {
        simd::quantize(values, affine, grid, codes);
    }
}

/// The values of one row of codes, each of its groups by its own scale.
pub fn dequantize_row(codes: &[i8], affines: &[Affine], values: &mut [f32]) {
    let size = (values.len() / affines.len().max(1)).max(1);
    for ((codes, values), &affine) in codes.chunks(size).zip(values.chunks_mut(size)).zip(affines) {
        simd::dequantize(codes, affine, values);
    }
}

/// The values an encoded tensor stands for, `[n_rows, n_cols]`.
pub fn decode(encoded: &Encoded) -> Vec<f32> {
    let Encoded { coding, n_rows, n_cols, parts } = encoded;
    let elements = match (coding.storage, coding.codes) {
        (Storage::Bitmask, _) => &parts[Part::Values],
        (Storage::Dense, Some(_)) => &parts[Part::Codes],
        (Storage::Dense, None) => &parts[Part::Weight],
    };
    let stored = StoredRows {
        elements,
        first: 0,
        bitmask: &parts[Part::Bitmask],
        scale: &parts[Part::Scale],
        zero: &parts[Part::Zero],
    };
    let mut decoder = RowDecoder::new(*coding, DType::F32, *n_cols);
    let mut values = vec![0.0; n_rows * n_cols];
    if coding.codes.is_some() {
        decoder.decode_codes(&stored, &mut values);
    } else {
        let mut bytes = vec![0; values.len() * 4];
        decoder.decode_floats(&stored, &mut bytes);
        rows::to_f32(&bytes, DType::F32, &mut values);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{QuantParams, simulate};
    use proptest::prelude::*;

    fn any_decision(n_rows: usize, n_cols: usize) -> impl Strategy<Value = Decision> {
        let mask = prop::option::of(prop::collection::vec(any::<bool>(), n_rows * n_cols));
        let kind = prop::sample::select(vec![GridKind::Symmetric, GridKind::SymmetricFull, GridKind::Asymmetric]);
        let grouping =
            prop::sample::select(vec![Grouping::Tensor, Grouping::Row, Grouping::Group(1), Grouping::Group(4)]);
        let quant = prop::option::of((2_u8..=8, kind, grouping));
        (mask, quant, -1.0_f32..0.0, 0.01_f32..1.0).prop_map(move |(mask, quant, min, max)| Decision {
            mask: mask.map(|keep| Mask::from_fn(n_rows, n_cols, |row, col| keep[row * n_cols + col])),
            quant: quant.map(|(n_bits, kind, grouping)| {
                let grouping = if grouping.per_row(n_cols).is_some() { grouping } else { Grouping::Row };
                let grid = Grid::new(n_bits, kind).unwrap();
                let [rows, groups] = grouping.scale_shape(n_rows, n_cols);
                let n = if grouping == Grouping::Tensor { 1 } else { rows * groups };
                let affines = (0..n).map(|i| Affine::over(min, max * (1.0 + i as f32), grid)).collect();
                QuantParams::new(grid, grouping, n_cols, affines)
            }),
        })
    }

    fn any_case() -> impl Strategy<Value = (usize, usize, Vec<f32>, Decision)> {
        (0_usize..5, prop::sample::select(vec![0_usize, 1, 4, 7, 31, 32, 33, 64, 130])).prop_flat_map(
            |(n_rows, n_cols)| {
                let value = prop_oneof![3 => -1.0_f32..1.0, 1 => Just(0.0), 1 => Just(-0.0)];
                let weights = prop::collection::vec(value, n_rows * n_cols);
                (Just(n_rows), Just(n_cols), weights, any_decision(n_rows, n_cols))
            },
        )
    }

    fn to_bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn decoding_what_was_encoded_gives_the_simulated_values((n_rows, n_cols, weights, decision) in any_case()) {
            let simulated = simulate(&weights, n_rows, n_cols, &decision);
            let encoded = encode(&weights, n_rows, n_cols, &decision);
            prop_assert_eq!(to_bits(&decode(&encoded)), to_bits(&simulated));
            let again = simulate(&simulated, n_rows, n_cols, &decision);
            prop_assert_eq!(to_bits(&again), to_bits(&simulated), "simulate is idempotent");
            if let Some(mask) = &decision.mask {
                for row in 0..n_rows {
                    for col in (0..n_cols).filter(|&col| !mask.keeps(row, col)) {
                        prop_assert_eq!(simulated[row * n_cols + col].to_bits(), 0, "a dropped weight is exactly 0.0");
                    }
                }
            }
        }

        #[test]
        fn parts_have_the_sizes_that_were_promised((n_rows, n_cols, weights, decision) in any_case()) {
            let encoded = encode(&weights, n_rows, n_cols, &decision);
            let n_kept = match &decision.mask {
                Some(mask) => mask.n_kept(),
                None => weights.iter().filter(|weight| weight.to_bits() != 0).count(),
            };
            let n_bytes = encoded.coding.n_bytes(DType::F32, n_rows, n_cols, n_kept);
            let specs = encoded.coding.parts(DType::F32, n_rows, n_cols, n_kept);
            prop_assert_eq!(n_bytes, specs.iter().map(PartSpec::n_bytes).sum::<usize>());
            for spec in specs {
                let is_single_scale = matches!(spec.part, Part::Scale | Part::Zero) && n_rows == 0;
                prop_assert!(is_single_scale || encoded.parts[spec.part].len() == spec.n_bytes(), "{:?}", spec);
            }
        }
    }

    #[test]
    fn a_half_precision_scale_is_never_zero_nor_infinite() {
        for scale in [1e-30, 1e30, 0.37] {
            let rounded = ScaleType::F16.round(Affine::symmetric(scale)).scale;
            assert!(rounded > 0.0 && rounded.is_finite());
            assert_eq!(ScaleType::F16.round(Affine::symmetric(rounded)).scale, rounded);
        }
    }
}
