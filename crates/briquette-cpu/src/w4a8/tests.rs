use super::*;
use crate::linear::tests::{floats, numbers};
use crate::{ActivationGrid, quantize_rows};
use proptest::prelude::*;

const GRIDS: [ActivationGrid; 3] =
    [ActivationGrid::Symmetric, ActivationGrid::SymmetricFull, ActivationGrid::Asymmetric];

struct Case {
    codes: Vec<i8>,
    scales: Vec<f32>,
    packed: PackedW4A8,
}

fn case(n_out: usize, n_in: usize, group: usize, seed: u64) -> Case {
    let codes: Vec<i8> = numbers(n_out * n_in, seed).map(|bits| (bits % 16) as i8 - 8).collect();
    let scales: Vec<f32> = floats(n_out * n_in.div_ceil(group), seed ^ 5).iter().map(|scale| scale + 1.5).collect();
    let packed = PackedW4A8::new(&codes, &scales, n_out, n_in, group).unwrap();
    Case { codes, scales, packed }
}

/// Compares the scalar reference with a simulation in f64, and every path with the reference.
fn agrees(m: usize, k: usize, n: usize, group: usize, seed: u64) {
    let Case { codes, scales, packed } = case(n, k, group, seed);
    let (x, bias) = (floats(m * k, seed ^ 9), floats(n, seed ^ 3));
    for grid in GRIDS {
        let mut slow = vec![f32::NAN; m * n];
        w4a8_linear(SimdLevel::SCALAR, &x, m, grid, &packed, Some(&bias), &mut slow);
        let rows = quantize_rows(SimdLevel::SCALAR, &x, m, k, grid);
        for (i, &value) in slow.iter().enumerate() {
            let (row, o) = (i / n, i % n);
            let weight =
                |col: usize| f64::from(codes[o * k + col]) * f64::from(scales[o * k.div_ceil(group) + col / group]);
            let zero = rows.zeros()[row];
            let input = |col: usize| f64::from(i32::from(rows.row(row)[col]) - zero) * f64::from(rows.scales()[row]);
            let exact: f64 = (0..k).map(|col| weight(col) * input(col)).sum();
            let far = (exact + f64::from(bias[o]) - f64::from(value)).abs();
            assert!(far < 2e-5 * (1.0 + k as f64), "{value} {exact} M {m} K {k} N {n} by {group}");
        }
        for level in SimdLevel::available() {
            let mut fast = vec![f32::NAN; m * n];
            w4a8_linear(level, &x, m, grid, &packed, Some(&bias), &mut fast);
            assert_eq!(fast, slow, "{level} {grid:?} M {m} K {k} N {n} by {group}");
            w4a8_linear(level, &x, m, grid, &packed, None, &mut fast);
            w4a8_linear(SimdLevel::SCALAR, &x, m, grid, &packed, None, &mut slow);
            assert_eq!(fast, slow, "{level} {grid:?} M {m} K {k} N {n} by {group} without bias");
            w4a8_linear(SimdLevel::SCALAR, &x, m, grid, &packed, Some(&bias), &mut slow);
        }
    }
}

#[test]
fn every_path_gives_the_bits_of_the_reference_at_awkward_shapes() {
    for m in [0, 1, 2, 5, 15, 29] {
        for k in [0, 1, 3, 4, 31, 32, 33, 130] {
            for n in [0, 1, 16, 31, 33, 65] {
                agrees(m, k, n, 32, (m + k * 3 + n * 7) as u64);
            }
        }
    }
    for group in [1, 2, 3, 5, 7, 64, 128, 200, 1000] {
        agrees(3, 200, 33, group, group as u64);
    }
    agrees(300, 64, 40, 32, 1);
}

#[test]
fn packed_codes_are_read_back() {
    for (n_out, n_in, group) in [(1, 1, 1), (31, 5, 3), (33, 67, 32), (70, 64, 64), (5, 7, 100)] {
        let Case { codes, scales, packed } = case(n_out, n_in, group, 3);
        assert_eq!(packed.codes(), (codes.clone(), scales.clone()));
        let (values, mut row) = (packed.to_floats(), vec![f32::NAN; n_in]);
        for (o, values) in values.chunks(n_in).enumerate() {
            packed.read_row(o, &mut row);
            assert_eq!(row, values, "output {o} of {packed:?}");
            let exact = |col: usize| f32::from(codes[o * n_in + col]) * scales[o * n_in.div_ceil(group) + col / group];
            assert!(row.iter().enumerate().all(|(col, &value)| value == exact(col)), "output {o} of {packed:?}");
        }
    }
    let packed = PackedW4A8::new(&vec![-8; 64 * 256], &[1.0; 128], 64, 256, 128).unwrap();
    assert_eq!(packed.n_bytes(), 64 * 256 / 2 + 4 * 128 + 4 * 64);
}

#[test]
fn a_row_of_zeros_gives_exactly_the_bias() {
    let (Case { packed, .. }, bias) = (case(40, 96, 32, 7), floats(40, 2));
    for level in SimdLevel::available() {
        for grid in GRIDS {
            let mut y = vec![f32::NAN; 40];
            w4a8_linear(level, &[0.0_f32; 96], 1, grid, &packed, Some(&bias), &mut y);
            assert_eq!(y, bias, "{level} {grid:?}");
        }
    }
}

#[test]
fn the_largest_sums_do_not_saturate() {
    for (code, stored) in [(-8, -8.0), (7, 7.0)] {
        let n = crate::MAX_DEPTH;
        let packed = PackedW4A8::new(&vec![code; n], &[1.0], 1, n, n).unwrap();
        for level in SimdLevel::available() {
            for x in [1.0, -1.0] {
                let mut y = [0.0];
                w4a8_linear(level, &vec![x; n], 1, ActivationGrid::Asymmetric, &packed, None, &mut y);
                assert!((y[0] / (stored * x) / n as f32 - 1.0).abs() < 1e-5, "{level} {}", y[0]);
            }
        }
    }
    let more = PackedW4A8::new(&vec![0; crate::MAX_DEPTH + 1], &[1.0], 1, crate::MAX_DEPTH + 1, 1 << 20);
    assert_eq!(
        more.unwrap_err().to_string(),
        "found 65537 inputs, expected at most 65536: int32 sums cannot hold more"
    );
}

#[test]
fn non_finite_rows_are_nan_and_do_not_affect_others() {
    let Case { packed, .. } = case(40, 70, 32, 1);
    for level in SimdLevel::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = floats(3 * 70, 2);
            x[70 + 69] = bad;
            let mut y = vec![0.0; 3 * 40];
            w4a8_linear(level, &x, 3, ActivationGrid::Asymmetric, &packed, None, &mut y);
            assert!(y.iter().enumerate().all(|(i, value)| value.is_nan() == (i / 40 == 1)), "{level}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_path_gives_the_bits_of_the_reference(m in 0_usize..35, k in 0_usize..300, n in 0_usize..70, group in 1_usize..260, seed: u64) {
        agrees(m, k, n, group, seed);
    }
}
