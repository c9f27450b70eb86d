//! Encoding and decoding of whole tensors in memory: [`encode`] and [`decode`].

use crate::block::{RowDecoder, StoredRows};
use crate::coder::{RowCoder, RowForm, RowsDecision, WeightRows};
use crate::{DType, Decision, Mask, Rows, rows};

pub use crate::coding::{CodeBlocks, Codes, Coding, Part, PartSpec, Parts, ScaleType, Storage};

/// A whole f32 tensor, encoded in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// How the tensor is stored.
    pub coding: Coding,
    /// Number of rows.
    pub n_rows: usize,
    /// Number of columns.
    pub n_cols: usize,
    /// The stored bytes.
    pub parts: Parts,
}

/// Encodes f32 weights `[n_rows, n_cols]` with `decision`, in the smaller of dense and sparse storage.
///
/// Scales are stored as f32. `decode(encode(w, d)) == fake_quantize(w, d)` bit for bit.
///
/// # Panics
/// If the lengths disagree.
pub fn encode(weights: &[f32], n_rows: usize, n_cols: usize, decision: &Decision) -> Encoded {
    assert_eq!(weights.len(), n_rows * n_cols, "whole rows of weights");
    let is_nonzero = |row: usize, col: usize| weights[row * n_cols + col].to_bits() != 0;
    let mask = decision.mask.clone().unwrap_or_else(|| Mask::from_fn(n_rows, n_cols, is_nonzero));
    let codes = decision.quant.as_ref().map(|quant| Codes {
        bits: quant.grid.n_bits(),
        grid: quant.grid.kind(),
        grouping: quant.grouping,
        scale: ScaleType::F32,
        has_columns: quant.columns.is_some(),
    });
    let coding = Coding::smallest(codes, DType::F32, n_rows, n_cols, mask.n_kept());
    let quant = decision.quant.as_ref().map(|quant| (quant.grid, quant.grouping));
    let form = RowForm { coding, dtype: DType::F32, is_cast: false, quant, n_cols };
    let decision = Decision { mask: Some(mask), quant: decision.quant.clone() };
    let (mut coder, mut encoder) = (RowCoder::default(), form.encoder(0, Parts::default()));
    let (mut of_rows, mut scratch) = (RowsDecision::default(), Vec::new());
    let strip_rows = Rows::plain(n_rows, n_cols).rows_per_strip();
    for first in (0..n_rows).step_by(strip_rows) {
        let rows = first..(first + strip_rows).min(n_rows);
        let values = &weights[rows.start * n_cols..rows.end * n_cols];
        of_rows.take_from(&decision, rows.clone());
        let kept = of_rows.kept_of(values, n_cols, &mut scratch);
        coder.push(&form, &WeightRows { rows, bytes: bytemuck::cast_slice(values), kept }, &of_rows, &mut encoder);
    }
    encoder.finish();
    Encoded { coding, n_rows, n_cols, parts: encoder.into_parts() }
}

/// Decodes a tensor into its values, `[n_rows, n_cols]`.
pub fn decode(encoded: &Encoded) -> Vec<f32> {
    let Encoded { coding, n_rows, n_cols, parts } = encoded;
    let elements = match (coding.storage, coding.codes) {
        (Storage::Bitmask, _) => &parts[Part::Values],
        (Storage::Entropy { .. }, _) => &parts[Part::Blocks],
        (Storage::Dense, Some(_)) => &parts[Part::Codes],
        (Storage::Dense, None) => &parts[Part::Weight],
    };
    let stored = StoredRows {
        elements,
        first: 0,
        bitmask: &parts[Part::Bitmask],
        scale: &parts[Part::Scale],
        zero: &parts[Part::Zero],
        columns: &parts[Part::ColumnScale],
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
    use crate::{Affine, ColumnScales, Grid, GridKind, Grouping, QuantParams, fake_quantize};
    use proptest::prelude::*;

    fn any_decision(n_rows: usize, n_cols: usize) -> impl Strategy<Value = Decision> {
        let mask = prop::option::of(prop::collection::vec(any::<bool>(), n_rows * n_cols));
        let kind = prop::sample::select(vec![GridKind::Symmetric, GridKind::SymmetricFull, GridKind::Asymmetric]);
        let grouping =
            prop::sample::select(vec![Grouping::Tensor, Grouping::Row, Grouping::Group(1), Grouping::Group(4)]);
        let quant = prop::option::of((2_u8..=8, kind, grouping));
        let columns = prop::option::of(prop::collection::vec(150_u8..220, n_cols));
        (mask, quant, -1.0_f32..0.0, 0.01_f32..1.0, columns).prop_map(move |(mask, quant, min, max, columns)| {
            Decision {
                mask: mask.map(|keep| Mask::from_fn(n_rows, n_cols, |row, col| keep[row * n_cols + col])),
                quant: quant.map(|(n_bits, kind, grouping)| {
                    let grouping = if grouping.per_row(n_cols).is_some() { grouping } else { Grouping::Row };
                    let grid = Grid::new(n_bits, kind).unwrap();
                    let [rows, groups] = grouping.scale_shape(n_rows, n_cols);
                    let n = if grouping == Grouping::Tensor { 1 } else { rows * groups };
                    let affines = (0..n).map(|i| Affine::over(min, max * (1.0 + i as f32), grid)).collect();
                    let columns = columns.clone().map(ColumnScales::of_bytes);
                    QuantParams::new(grid, grouping, n_cols, affines).with_columns(columns)
                }),
            }
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
        fn decoding_gives_the_fake_quantized_values((n_rows, n_cols, weights, decision) in any_case()) {
            let fake_quantized = fake_quantize(&weights, n_rows, n_cols, &decision);
            let encoded = encode(&weights, n_rows, n_cols, &decision);
            prop_assert_eq!(to_bits(&decode(&encoded)), to_bits(&fake_quantized));
            let again = fake_quantize(&fake_quantized, n_rows, n_cols, &decision);
            prop_assert_eq!(to_bits(&again), to_bits(&fake_quantized), "fake_quantize is idempotent");
            if let Some(mask) = &decision.mask {
                for row in 0..n_rows {
                    for col in (0..n_cols).filter(|&col| !mask.keeps(row, col)) {
                        prop_assert_eq!(fake_quantized[row * n_cols + col].to_bits(), 0, "a dropped weight is exactly 0.0");
                    }
                }
            }
        }

        #[test]
        fn parts_have_the_declared_sizes((n_rows, n_cols, weights, decision) in any_case()) {
            let encoded = encode(&weights, n_rows, n_cols, &decision);
            let n_kept = match &decision.mask {
                Some(mask) => mask.n_kept(),
                None => weights.iter().filter(|weight| weight.to_bits() != 0).count(),
            };
            let n_bytes = encoded.coding.n_bytes(DType::F32, n_rows, n_cols, n_kept);
            let specs = encoded.coding.parts(DType::F32, n_rows, n_cols, n_kept);
            prop_assert_eq!(n_bytes, specs.iter().map(PartSpec::n_bytes).sum::<usize>());
            for spec in specs {
                let is_single_scale = matches!(spec.part, Part::Scale | Part::Zero | Part::ColumnScale) && n_rows == 0;
                prop_assert!(is_single_scale || encoded.parts[spec.part].len() == spec.n_bytes(), "{:?}", spec);
            }
        }
    }
}
