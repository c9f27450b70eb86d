//! Properties of error-compensated weights.

#![allow(clippy::unwrap_used)]

use briquette_core::{Affine, Decision, Grid, GridKind, Grouping, Mask, QuantParams, fake_quantize};
use briquette_methods::prune::{SparsityPattern, select};
use briquette_methods::quant::{QuantSpec, ScaleSearch, Scheme};
use briquette_methods::reconstruct::{ColumnOrder, FactorSpec, InverseFactor, admm, gptq, sparsegpt};
use proptest::prelude::*;
use std::convert::Infallible;

fn check_stop() -> Result<(), Infallible> {
    Ok(())
}

/// Returns pseudorandom numbers from -1 to 1.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Returns the Gram matrix of 300 correlated vectors.
fn gram(n_cols: usize, seed: u64) -> Vec<f64> {
    let mut gram = vec![0.0; n_cols * n_cols];
    for x in numbers(300 * n_cols, seed).chunks_exact_mut(n_cols) {
        for i in 1..n_cols {
            x[i] = 0.2 * x[i] + 0.8 * x[i - 1] + if i % 13 == 0 { x[0] } else { 0.0 };
        }
        for (row, a) in gram.chunks_exact_mut(n_cols).zip(&*x) {
            row.iter_mut().zip(&*x).for_each(|(sum, b)| *sum += f64::from(a * b));
        }
    }
    gram
}

fn factor(gram: &[f64], order: ColumnOrder) -> InverseFactor {
    let Ok(factor) = InverseFactor::new(gram, 300, &FactorSpec { order, ..FactorSpec::default() }, &check_stop);
    assert_eq!(factor.outcome().fallback, None);
    factor
}

fn error(original: &[f32], found: &[f32], gram: &[f64]) -> f64 {
    let n = gram.len().isqrt();
    let apart: Vec<f64> = original.iter().zip(found).map(|(a, b)| f64::from(a - b)).collect();
    let of_row = |e: &[f64]| -> f64 { (0..n * n).map(|at| e[at / n] * gram[at] * e[at % n]).sum() };
    apart.chunks_exact(n).map(of_row).sum()
}

fn spec(n_bits: u8, kind: GridKind, grouping: Grouping, range: ScaleSearch) -> QuantSpec {
    let spec: QuantSpec = "int8".parse::<Scheme>().unwrap().weights;
    QuantSpec { grid: Grid::new(n_bits, kind).unwrap(), grouping, range, ..spec }
}

fn on_grid(weights: &[f32], n_cols: usize, quant: &QuantParams, keep: Option<&Mask>) -> Vec<f32> {
    let decision = Decision { mask: keep.cloned(), quant: Some(quant.clone()) };
    fake_quantize(weights, weights.len() / n_cols, n_cols, &decision)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn rounded_weights_lie_on_the_grid_and_dropped_ones_are_zero(
        seed in any::<u64>(), n_rows in 1_usize..70, n_groups in 1_usize..40, n_bits in 2_u8..=8, is_ordered in any::<bool>(),
        kind in prop::sample::select(vec![GridKind::Symmetric, GridKind::SymmetricFull, GridKind::Asymmetric]),
        grouping in prop::sample::select(vec![Grouping::Tensor, Grouping::Row, Grouping::Group(4)]), drops in any::<bool>(),
    ) {
        let n_cols = 4 * n_groups;
        let weights = numbers(n_rows * n_cols, seed);
        let keep = drops.then(|| Mask::from_fn(n_rows, n_cols, |row, col| !(row * 7 + col * 3 + seed as usize % 5).is_multiple_of(3)));
        let quant = briquette_methods::quant::fit(&weights, n_cols, keep.as_ref(), &spec(n_bits, kind, grouping, ScaleSearch::AbsMax));
        let order = if is_ordered { ColumnOrder::ByActivation } else { ColumnOrder::Stored };
        let mut found = weights.clone();
        let Ok(()) = gptq(&mut found, n_cols, &quant, keep.as_ref(), &factor(&gram(n_cols, seed ^ 5), order), &check_stop);
        prop_assert_eq!(bits(&on_grid(&found, n_cols, &quant, keep.as_ref())), bits(&found));
    }

    #[test]
    fn dropped_weights_are_counted_and_zero(
        seed in any::<u64>(), n_rows in 1_usize..70, n_runs in 1_usize..40, share in 0.0_f64..=1.0, is_ordered in any::<bool>(),
        has_given in any::<bool>(), per_row in any::<bool>(),
    ) {
        let n_cols = 8 * n_runs;
        let weights = numbers(n_rows * n_cols, seed);
        let given = Mask::from_fn(n_rows, n_cols, |row, col| !(row % 5 == 1 && col * 3 < n_cols || col % 9 == 2));
        let given = has_given.then_some(&given);
        let sparsity = if per_row { SparsityPattern::PerRow((share * n_cols as f64) as usize) } else { SparsityPattern::Unstructured((share * weights.len() as f64) as usize) };
        let order = if is_ordered { ColumnOrder::ByActivation } else { ColumnOrder::Stored };
        let mut found = weights.clone();
        let Ok(keep) = sparsegpt(&mut found, n_cols, sparsity, given, &factor(&gram(n_cols, seed ^ 5), order), &check_stop);
        let is_dropped = |row: usize, col: usize| given.is_some_and(|given| !given.keeps(row, col));
        for row in 0..n_rows {
            for col in 0..n_cols {
                prop_assert!(!(is_dropped(row, col) && keep.keeps(row, col)), "{} {}", row, col);
                prop_assert!(keep.keeps(row, col) || found[row * n_cols + col].to_bits() == 0);
            }
        }
        let n_given = |row: usize| (0..n_cols).filter(|&col| is_dropped(row, col)).count();
        let n_dropped = |row: usize| (0..n_cols).filter(|&col| !keep.keeps(row, col)).count();
        match sparsity {
            SparsityPattern::Unstructured(n) => prop_assert_eq!(weights.len() - keep.n_kept(), n.max((0..n_rows).map(n_given).sum())),
            SparsityPattern::PerRow(n) => (0..n_rows).try_for_each(|row| { prop_assert_eq!(n_dropped(row), n.max(n_given(row))); Ok(()) })?,
            SparsityPattern::NOfM { .. } => unreachable!(),
        }
    }

    #[test]
    fn every_run_keeps_n(seed in any::<u64>(), n_rows in 1_usize..70, n_runs in 1_usize..60, m in 1_usize..10, share in 0.0_f64..=1.0) {
        let (n_cols, n) = (m * n_runs, (share * m as f64) as usize);
        let mut found = numbers(n_rows * n_cols, seed);
        let factor = factor(&gram(n_cols, seed ^ 5), ColumnOrder::Stored);
        let Ok(keep) = sparsegpt(&mut found, n_cols, SparsityPattern::NOfM { n, m }, None, &factor, &check_stop);
        for row in 0..n_rows {
            for run in 0..n_runs {
                prop_assert_eq!((run * m..(run + 1) * m).filter(|&col| keep.keeps(row, col)).count(), n);
            }
        }
        prop_assert!((0..n_rows * n_cols).all(|at| keep.keeps(at / n_cols, at % n_cols) || found[at].to_bits() == 0));
    }
}

#[test]
fn correlated_inputs_compensate_for_most_of_an_error() {
    let (n_rows, n_cols) = (70, 200);
    for seed in 0..5 {
        let (weights, gram) = (numbers(n_rows * n_cols, seed), gram(n_cols, seed + 100));
        for (order, n_bits) in
            [(ColumnOrder::Stored, 4), (ColumnOrder::ByActivation, 3), (ColumnOrder::ByActivation, 8)]
        {
            let factor = factor(&gram, order);
            let keep = Mask::from_fn(n_rows, n_cols, |row, col| (row * 7 + col * 3) % 5 > 1);
            for keep in [None, Some(&keep)] {
                let spec = spec(n_bits, GridKind::Symmetric, Grouping::Group(20), ScaleSearch::AbsMax);
                let quant = briquette_methods::quant::fit(&weights, n_cols, keep, &spec);
                let (nearest, mut found) = (on_grid(&weights, n_cols, &quant, keep), weights.clone());
                let Ok(()) = gptq(&mut found, n_cols, &quant, keep, &factor, &check_stop);
                assert!(error(&weights, &found, &gram) < 0.5 * error(&weights, &nearest, &gram), "{order:?} {n_bits}");
            }
            for sparsity in [
                SparsityPattern::Unstructured(7000),
                SparsityPattern::PerRow(100),
                SparsityPattern::NOfM { n: 2, m: 4 },
            ] {
                if order == ColumnOrder::ByActivation && matches!(sparsity, SparsityPattern::NOfM { .. }) {
                    continue;
                }
                let mut found = weights.clone();
                let Ok(keep) = sparsegpt(&mut found, n_cols, sparsity, None, &factor, &check_stop);
                let zeroed = fake_quantize(&weights, n_rows, n_cols, &Decision { mask: Some(keep), quant: None });
                assert!(
                    error(&weights, &found, &gram) < 0.5 * error(&weights, &zeroed, &gram),
                    "{order:?} {sparsity:?}"
                );
            }
        }
    }
}

#[test]
fn uncorrelated_inputs_allow_no_compensation() {
    let (n_rows, n_cols) = (70, 260);
    let weights = numbers(n_rows * n_cols, 3);
    let identity: Vec<f64> = (0..n_cols * n_cols).map(|at| f64::from(at / n_cols == at % n_cols)).collect();
    let Ok(unseen) = InverseFactor::new(&identity, 0, &FactorSpec::default(), &check_stop);
    for factor in [factor(&identity, ColumnOrder::ByActivation), factor(&identity, ColumnOrder::Stored), unseen] {
        let quant = briquette_methods::quant::fit(
            &weights,
            n_cols,
            None,
            &spec(4, GridKind::Asymmetric, Grouping::Group(20), ScaleSearch::Mse),
        );
        let mut found = weights.clone();
        let Ok(()) = gptq(&mut found, n_cols, &quant, None, &factor, &check_stop);
        assert_eq!(bits(&found), bits(&on_grid(&weights, n_cols, &quant, None)));
        let mut found = weights.clone();
        let Ok(keep) = sparsegpt(&mut found, n_cols, SparsityPattern::PerRow(130), None, &factor, &check_stop);
        // The blocks of 128, 128 and 4 columns drop 64, 64 and 2 weights of each row.
        for (row, weights) in weights.chunks_exact(n_cols).enumerate() {
            for (first, block) in weights.chunks(128).enumerate() {
                let mut sizes: Vec<f32> = block.iter().map(|weight| weight.abs()).collect();
                sizes.sort_by(f32::total_cmp);
                let least = sizes[block.len() / 2];
                assert!((0..block.len()).all(|i| keep.keeps(row, 128 * first + i) == (block[i].abs() >= least)));
            }
        }
        assert_eq!(
            bits(&found),
            bits(&fake_quantize(&weights, n_rows, n_cols, &Decision { mask: Some(keep), quant: None }))
        );
    }
}

#[test]
fn admm_without_inputs_prunes_by_magnitude() {
    let (n_rows, n_cols) = (70, 100);
    let weights = numbers(n_rows * n_cols, 3);
    for (gram, count) in [(gram(n_cols, 7), 0), (vec![f64::NAN; n_cols * n_cols], 300)] {
        let found = |sparsity| {
            let mut found = weights.clone();
            let Ok((keep, outcome)) = admm(&mut found, n_cols, sparsity, &gram, count, &check_stop);
            assert!(outcome.fallback.is_some());
            let zeroed = Decision { mask: Some(keep.clone()), quant: None };
            assert_eq!(bits(&found), bits(&fake_quantize(&weights, n_rows, n_cols, &zeroed)));
            keep
        };
        assert_eq!(found(SparsityPattern::Unstructured(3001)), select::smallest(&weights, n_rows, n_cols, 3001));
        assert_eq!(found(SparsityPattern::NOfM { n: 2, m: 5 }), select::n_of_m(&weights, n_rows, n_cols, 2, 5));
        let mut rows = vec![0; n_rows * Mask::row_bytes(n_cols)];
        for (row, bits) in weights.chunks(n_cols).zip(rows.chunks_mut(Mask::row_bytes(n_cols))) {
            select::smallest_of_each(row, n_cols, 33, &mut Vec::new(), bits);
        }
        assert_eq!(found(SparsityPattern::PerRow(33)), Mask::from_bits(n_rows, n_cols, rows));
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let (n_rows, n_cols) = (200, 392);
    let weights = numbers(n_rows * n_cols, 9);
    let gram = gram(n_cols, 4);
    let quant = briquette_methods::quant::fit(
        &weights,
        n_cols,
        None,
        &spec(4, GridKind::Symmetric, Grouping::Group(8), ScaleSearch::AbsMax),
    );
    let all = |n_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            let (stored, ordered) = (factor(&gram, ColumnOrder::Stored), factor(&gram, ColumnOrder::ByActivation));
            let mut rounded = weights.clone();
            let Ok(()) = gptq(&mut rounded, n_cols, &quant, None, &ordered, &check_stop);
            let mut found = vec![bits(&rounded)];
            for sparsity in [
                SparsityPattern::Unstructured(30_000),
                SparsityPattern::PerRow(100),
                SparsityPattern::NOfM { n: 2, m: 4 },
            ] {
                let mut weights = weights.clone();
                let Ok(_) = sparsegpt(&mut weights, n_cols, sparsity, None, &stored, &check_stop);
                found.push(bits(&weights));
                let Ok(_) = admm(&mut weights, n_cols, sparsity, &gram, 300, &check_stop);
                found.push(bits(&weights));
            }
            found
        })
    };
    assert_eq!(all(1), all(4));
}

#[test]
fn weights_of_inputs_that_were_always_zero_are_rounded_or_pruned_first() {
    let n_cols = 12;
    let mut gram = gram(n_cols, 1);
    for at in 0..n_cols {
        (gram[5 * n_cols + at], gram[at * n_cols + 5]) = (0.0, 0.0);
    }
    let factor = factor(&gram, ColumnOrder::ByActivation);
    assert_eq!((factor.outcome().n_dead, factor.order()[n_cols - 1]), (1, 5));
    let quant = QuantParams::new(Grid::INT8, Grouping::Tensor, n_cols, vec![Affine::symmetric(0.01)]);
    let (weights, nearest) = (numbers(3 * n_cols, 8), |weight: f32| (weight / 0.01).round_ties_even() * 0.01);
    let mut found = weights.clone();
    let Ok(()) = gptq(&mut found, n_cols, &quant, None, &factor, &check_stop);
    let rounded: Vec<[f32; 2]> = (0..3).map(|row| [found[row * n_cols + 5], weights[row * n_cols + 5]]).collect();
    assert!(rounded.iter().all(|&[found, weight]| found == nearest(weight) && found != 0.0), "{rounded:?}");
    for (n, n_dead) in [(3, 3), (2, 2)] {
        let mut found = weights.clone();
        let Ok(keep) = sparsegpt(&mut found, n_cols, SparsityPattern::Unstructured(n), None, &factor, &check_stop);
        assert_eq!((0..3).filter(|&row| !keep.keeps(row, 5)).count(), n_dead, "they are pruned first");
        let others = (0..3).filter(|&row| keep.keeps(row, 5)).map(|row| row * n_cols + 5);
        others.for_each(|at| assert_eq!(found[at].to_bits(), weights[at].to_bits()));
    }
}

#[test]
fn an_error_of_check_stop_ends_the_work() {
    let factor = factor(&gram(8, 1), ColumnOrder::Stored);
    let quant = QuantParams::new(Grid::INT8, Grouping::Tensor, 8, vec![Affine::symmetric(0.01)]);
    let stop = || Err("stop");
    assert_eq!(gptq(&mut numbers(16, 2), 8, &quant, None, &factor, &stop), Err("stop"));
    for sparsity in [SparsityPattern::Unstructured(3), SparsityPattern::NOfM { n: 1, m: 2 }] {
        assert_eq!(sparsegpt(&mut numbers(16, 2), 8, sparsity, None, &factor, &stop), Err("stop"));
        assert_eq!(admm(&mut numbers(16, 2), 8, sparsity, &gram(8, 1), 300, &stop), Err("stop"));
    }
    let none = QuantParams::new(Grid::INT8, Grouping::Row, 8, Vec::new());
    assert_eq!(gptq(&mut [], 8, &none, None, &factor, &stop), Ok(()));
    assert_eq!(
        sparsegpt(&mut [], 8, SparsityPattern::Unstructured(0), None, &factor, &stop).map(|keep| keep.dim()),
        Ok((0, 8))
    );
    let Ok((keep, _)) = admm(&mut [], 8, SparsityPattern::NOfM { n: 2, m: 4 }, &gram(8, 1), 300, &check_stop);
    assert_eq!(keep.dim(), (0, 8));
}
