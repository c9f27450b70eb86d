//! Compares the methods with `bench/peers/solve_reference.py`, which follows the reference implementations in
//! f64.

#![allow(clippy::unwrap_used)]

use briquette_core::{Affine, Grid, GridKind, Grouping, InputStats, Mask, QuantParams};
use briquette_methods::prune::SparsityPattern;
use briquette_methods::reconstruct::{ColumnOrder, FactorSpec, InverseFactor, admm, gptq, output_error, sparsegpt};
use std::convert::Infallible;

const ROWS: usize = 24;
const COLS: usize = 288;

fn check_stop() -> Result<(), Infallible> {
    Ok(())
}

/// Returns the bytes of a tensor of the fixture.
fn tensor(name: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/reference.safetensors");
    let file = std::fs::read(path).unwrap();
    let data = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..data]).unwrap();
    let place = |i: usize| data + header[name]["data_offsets"][i].as_u64().unwrap() as usize;
    file[place(0)..place(1)].to_vec()
}

fn floats(name: &str) -> Vec<f32> {
    tensor(name).chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn codes(name: &str) -> Vec<i8> {
    tensor(name).into_iter().map(|byte| byte as i8).collect()
}

fn error(name: &str) -> f64 {
    f64::from_le_bytes(tensor(name).try_into().unwrap())
}

fn mask(name: &str) -> Mask {
    let keep = tensor(name);
    Mask::from_fn(ROWS, COLS, |row, col| keep[row * COLS + col] == 1)
}

fn stats() -> InputStats {
    let x = codes("inputs");
    let mut stats = InputStats::empty(COLS, true);
    let gram = std::sync::Arc::make_mut(stats.gram.as_mut().unwrap());
    for x in x.chunks_exact(COLS) {
        let x: Vec<f64> = x.iter().map(|&value| f64::from(value) / 16.0).collect();
        for (row, a) in gram.chunks_exact_mut(COLS).zip(&x) {
            row.iter_mut().zip(&x).for_each(|(sum, b)| *sum += a * b);
        }
        stats.sum_squares.iter_mut().zip(&x).for_each(|(sum, a)| *sum += a * a);
        stats.count += 1;
    }
    stats
}

fn factor(order: ColumnOrder) -> InverseFactor {
    let stats = stats();
    let spec = FactorSpec { order, ..FactorSpec::default() };
    let Ok(factor) = InverseFactor::new(stats.gram.as_ref().unwrap(), stats.count, &spec, &check_stop);
    assert_eq!((factor.outcome().fallback, factor.outcome().n_dead), (None, 1));
    factor
}

fn assert_as_good(found: &[f32], name: &str) {
    let (found, expected) = (output_error(&floats("weights"), found, &stats()), error(name));
    assert!((found / expected - 1.0).abs() < 1e-3, "{name}: {found}, expected {expected}");
}

fn assert_same_mask(found: &Mask, name: &str) {
    let expected = mask(name);
    let at = |at: usize| (at / COLS, at % COLS);
    let n_apart =
        (0..ROWS * COLS).map(at).filter(|&(row, col)| found.keeps(row, col) != expected.keeps(row, col)).count();
    assert!(n_apart * 1000 <= ROWS * COLS, "{name}: {n_apart} of {} bits", ROWS * COLS);
    assert_eq!(found.n_kept(), expected.n_kept(), "{name}");
}

fn assert_gptq(name: &str, grid: Grid, group: usize, order: ColumnOrder, keep: Option<&Mask>) {
    let (scales, zeros) = (floats(&format!("gptq.{name}.scale")), codes(&format!("gptq.{name}.zero")));
    let affines: Vec<Affine> = scales.into_iter().zip(zeros).map(|(scale, zero)| Affine { scale, zero }).collect();
    let grouping = if group == COLS { Grouping::Row } else { Grouping::Group(group) };
    let quant = QuantParams::new(grid, grouping, COLS, affines);
    let mut found = floats("weights");
    let Ok(()) = gptq(&mut found, COLS, &quant, keep, &factor(order), &check_stop);
    let expected = codes(&format!("gptq.{name}.codes"));
    let value = |at: usize| quant.row(at / COLS)[at % COLS / group].dequantize(expected[at]);
    // The reference sets the weights of dead inputs to 0.
    let sums = stats().sum_squares;
    let seen = (0..ROWS * COLS).filter(|at| sums[at % COLS] > 0.0);
    let n_apart = seen.filter(|&at| found[at].to_bits() != value(at).to_bits()).count();
    assert!(n_apart * 1000 <= ROWS * COLS, "{name}: {n_apart} of {} codes", ROWS * COLS);
    assert_as_good(&found, &format!("gptq.{name}.error"));
}

#[test]
fn gptq_finds_the_codes_of_the_reference() {
    let grid = |n_bits, kind| Grid::new(n_bits, kind).unwrap();
    let (symmetric, ordered) = (GridKind::Symmetric, ColumnOrder::ByActivation);
    assert_gptq("int4-g32-ordered", grid(4, symmetric), 32, ordered, None);
    assert_gptq("int8-asym", grid(8, GridKind::Asymmetric), COLS, ColumnOrder::Stored, None);
    assert_gptq("int3-asym-g96-ordered", grid(3, GridKind::Asymmetric), 96, ordered, None);
    assert_gptq("int4-g32-ordered-kept", grid(4, symmetric), 32, ordered, Some(&mask("keep")));
}

#[test]
fn sparsegpt_drops_the_weights_of_the_reference() {
    let factor = factor(ColumnOrder::Stored);
    let (given, half) = (mask("given"), SparsityPattern::Unstructured(ROWS * COLS / 2));
    let cases = [
        ("share", half, None),
        ("2-4", SparsityPattern::NOfM { n: 2, m: 4 }, None),
        ("given", SparsityPattern::Unstructured(4147), Some(&given)),
    ];
    for (name, sparsity, given) in cases {
        let mut found = floats("weights");
        let Ok(keep) = sparsegpt(&mut found, COLS, sparsity, given, &factor, &check_stop);
        assert_same_mask(&keep, &format!("sparsegpt.{name}.keep"));
        assert_as_good(&found, &format!("sparsegpt.{name}.error"));
    }
}

#[test]
fn admm_drops_the_weights_of_the_reference() {
    let stats = stats();
    let cases = [
        ("share", SparsityPattern::Unstructured(ROWS * COLS / 2)),
        ("per-row", SparsityPattern::PerRow(COLS / 2)),
        ("2-4", SparsityPattern::NOfM { n: 2, m: 4 }),
    ];
    for (name, sparsity) in cases {
        let mut found = floats("weights");
        let gram = stats.gram.as_ref().unwrap();
        let Ok((keep, outcome)) = admm(&mut found, COLS, sparsity, gram, stats.count, &check_stop);
        assert_eq!((outcome.n_dead, outcome.fallback), (1, None));
        assert_same_mask(&keep, &format!("admm.{name}.keep"));
        assert_as_good(&found, &format!("admm.{name}.error"));
        assert!((0..ROWS * COLS).all(|at| keep.keeps(at / COLS, at % COLS) || found[at].to_bits() == 0));
    }
}
