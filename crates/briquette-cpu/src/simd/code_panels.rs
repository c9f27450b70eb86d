//! Packing of activation codes with zero point 128 into panels.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::operands::{PANEL, RowBlock, SIGNS};
use briquette_core::simd::{Isa, SimdLevel};
use std::ops::Range;

/// Packs up to 32 rows starting at `first` as the outputs of a panel `[n_in / 4][32][4]`, with the sum of each
/// row.
///
/// Takes as many codes as the panel is deep, starting at `column`. Lanes without a row have unspecified values.
///
/// # Panics
/// If codes are missing, also those of padding rows up to a multiple of 8.
pub(crate) fn turn_rows(
    level: SimdLevel,
    rows: RowBlock,
    (first, column): (usize, usize),
    panel: &mut [i8],
    sums: &mut [i32; PANEL],
) {
    let (n_in, n) = (panel.len() / PANEL, PANEL.min(rows.n_rows() - first));
    let groups = bytemuck::cast_slice_mut::<i8, [u32; PANEL]>(panel);
    let codes = &rows.codes[first * rows.stride + column..];
    assert!(n == 0 || codes.len() >= (n.next_multiple_of(8) - 1) * rows.stride + n_in, "codes of {n} rows");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512Vnni | Isa::AvxVnni | Isa::Avx2 if groups.len().is_multiple_of(8) => {
            // SAFETY: a level exists only if its instructions are available; the codes have whole squares.
            unsafe { avx2::turn_rows(codes, rows.stride, n, groups, sums) }
        }
        _ => turn_plain(codes, rows.stride, n, groups, sums),
    }
}

fn turn_plain(codes: &[u8], stride: usize, n: usize, groups: &mut [[u32; PANEL]], sums: &mut [i32; PANEL]) {
    let n_in = 4 * groups.len();
    for lane in 0..n {
        let row = &codes[lane * stride..][..n_in];
        for (group, codes) in groups.iter_mut().zip(row.as_chunks::<4>().0) {
            group[lane] = u32::from_ne_bytes(*codes) ^ SIGNS;
        }
        sums[lane] = row.iter().map(|&code| i32::from(code)).sum::<i32>() - 128 * n_in as i32;
    }
}

/// Packs columns of rows as the outputs of a panel `[n_rows / 4][32][4]`.
///
/// Lanes without a row or column have unspecified values.
///
/// # Panics
/// If codes are missing, also those of padding rows up to a multiple of 4.
pub(crate) fn weave_rows(level: SimdLevel, rows: RowBlock, columns: Range<usize>, panel: &mut [i8]) {
    let groups = bytemuck::cast_slice_mut::<i8, [u32; PANEL]>(panel);
    let codes = &rows.codes[columns.start..];
    assert!(groups.is_empty() || codes.len() >= (4 * groups.len() - 1) * rows.stride + columns.len(), "codes of rows");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512Vnni | Isa::AvxVnni | Isa::Avx2 if columns.len() == PANEL => {
            // SAFETY: a level exists only if its instructions are available; each group has 4 rows of 32 codes.
            unsafe { avx2::weave_rows(codes, rows.stride, groups) }
        }
        _ => weave_plain(codes, rows.stride, columns.len(), groups),
    }
}

fn weave_plain(codes: &[u8], stride: usize, n: usize, groups: &mut [[u32; PANEL]]) {
    for (index, words) in groups.iter_mut().enumerate() {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| &codes[(4 * index + i) * stride..][..n]);
        for ((((word, a), b), c), d) in words.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *word = u32::from_le_bytes([*a, *b, *c, *d]) ^ SIGNS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIDE: usize = 192;

    fn codes() -> Vec<u8> {
        (0..48 * STRIDE).map(|i| ((i * 7919) >> 3) as u8).collect()
    }

    #[test]
    fn every_path_packs_rows_with_their_sums() {
        let codes = codes();
        for (n, first, column, depth) in
            [(40, 0, 0, 32), (40, 32, 64, 64), (5, 0, 32, 96), (33, 32, 4, 12), (7, 0, 8, 40)]
        {
            let rows = RowBlock { codes: &codes, stride: STRIDE, scales: &vec![1.0; n], zeros: &vec![128; n] };
            for level in SimdLevel::available() {
                let (mut panel, mut sums) = (vec![0; depth * PANEL], [0; PANEL]);
                turn_rows(level, rows, (first, column), &mut panel, &mut sums);
                for lane in 0..PANEL.min(n - first) {
                    let row = &codes[(first + lane) * STRIDE + column..][..depth];
                    let code = |at: usize| i32::from(row[at]) - 128;
                    for at in 0..depth {
                        assert_eq!(
                            i32::from(panel[at / 4 * 128 + lane * 4 + at % 4]),
                            code(at),
                            "{level} {n} {lane} {at}"
                        );
                    }
                    assert_eq!(sums[lane], (0..depth).map(code).sum::<i32>(), "{level} {n} {lane}");
                }
            }
        }
    }

    #[test]
    fn every_path_packs_columns() {
        let codes = codes();
        for (n, columns) in [(40, 0..32), (5, 64..96), (9, 4..16)] {
            let rows = RowBlock { codes: &codes, stride: STRIDE, scales: &vec![1.0; n], zeros: &vec![128; n] };
            for level in SimdLevel::available() {
                let mut panel = vec![0; n.div_ceil(4) * 4 * PANEL];
                weave_rows(level, rows, columns.clone(), &mut panel);
                for (at, column) in (0..n).flat_map(|at| columns.clone().map(move |column| (at, column))) {
                    let found = panel[at / 4 * 128 + (column - columns.start) * 4 + at % 4];
                    assert_eq!(i32::from(found), i32::from(codes[at * STRIDE + column]) - 128, "{level} {at} {column}");
                }
            }
        }
    }
}
