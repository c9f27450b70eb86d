//! The search against losses that are computed directly.

use super::*;
use crate::reconstruct::refit::refit;
use briquette_core::random::uniform;
use std::convert::Infallible;

fn check_stop() -> Result<(), Infallible> {
    Ok(())
}

/// A random layer with correlated inputs.
struct Layer {
    gram: Vec<f64>,
    weights: Vec<f32>,
    n: usize,
}

impl Layer {
    fn new(seed: u64, n: usize, n_out: usize) -> Self {
        let number = |at: usize| f64::from(uniform(0, seed * 100_000 + at as u64)) - 0.5;
        let mut gram = vec![0.0; n * n];
        for vector in 0..4 * n {
            let own: Vec<f64> = (0..n).map(|i| number(vector * n + i)).collect();
            let x: Vec<f64> = (0..n).map(|i| own[i] * (1 + i % 3) as f64 + 0.7 * own[(i + 1) % n]).collect();
            (0..n * n).for_each(|at| gram[at] += x[at / n] * x[at % n]);
        }
        let weights = (0..n * n_out).map(|at| number(50_000 + at) as f32).collect();
        Self { gram, weights, n }
    }

    fn consumer(&self) -> Consumer<'_> {
        Consumer { gram: &self.gram, weights: &self.weights, n: self.n, damping: 0.01 }
    }

    /// Returns the loss after removing these columns and refitting the rest.
    fn loss(&self, gone: &[usize]) -> f64 {
        let (n, layer) = (self.n, self.consumer());
        let kept: Vec<usize> = (0..n).filter(|column| !gone.contains(column)).collect();
        let Ok(fitted) = refit(&layer, &kept, &check_stop);
        let (fitted, ridge) = (fitted.unwrap_or_default(), layer.ridge().unwrap());
        let of_row = |row: usize| {
            let mut change: Vec<f64> = self.weights[row * n..(row + 1) * n].iter().map(|w| -f64::from(*w)).collect();
            kept.iter()
                .enumerate()
                .for_each(|(at, &column)| change[column] += f64::from(fitted[row * kept.len() + at]));
            let product = |i: usize| (0..n).map(|j| self.gram[i * n + j] * change[j]).sum::<f64>() + ridge * change[i];
            (0..n).map(|i| change[i] * product(i)).sum::<f64>()
        };
        (0..self.weights.len() / n).map(of_row).sum()
    }
}

fn columns(units: &[Vec<usize>], chosen: &[usize]) -> Vec<usize> {
    chosen.iter().flat_map(|&unit| units[unit].iter().copied()).collect()
}

/// Units of this width, whose columns are apart.
fn units(n: usize, width: usize) -> Vec<Vec<usize>> {
    let n_units = n / width;
    (0..n_units).map(|unit| (0..width).map(|part| part * n_units + unit).collect()).collect()
}

/// Every way to choose `k` of `n`.
fn choices(n: usize, k: usize) -> Vec<Vec<usize>> {
    let all = (0_u32..1 << n).filter(|bits| bits.count_ones() as usize == k);
    all.map(|bits| (0..n).filter(|at| bits >> at & 1 == 1).collect()).collect()
}

#[test]
fn costs_and_gains_are_differences_of_losses() {
    for width in [1, 2, 3] {
        let layer = Layer::new(width as u64, 12, 5);
        let units = units(12, width);
        let Ok(state) = LayerState::of(layer.consumer(), &units, &check_stop);
        let mut state = state.unwrap();
        let mut removed = BTreeSet::new();
        for unit in [2, 0] {
            let gone = columns(&units, &removed.iter().copied().collect::<Vec<_>>());
            let mut costs = vec![0.0; units.len()];
            state.add_costs(&removed, &mut costs);
            for other in (0..units.len()).filter(|other| !removed.contains(other)) {
                let expected = layer.loss(&[gone.clone(), units[other].clone()].concat()) - layer.loss(&gone);
                assert!((costs[other] - expected).abs() < 1e-4 * expected.abs().max(1.0), "{width}: {other}");
            }
            state.remove(unit);
            removed.insert(unit);
        }
        state.prepare_adding();
        let mut gains = vec![0.0; 2];
        state.add_gains(&[0, 2], &mut gains);
        let loss = |chosen: &[usize]| layer.loss(&columns(&units, chosen));
        for (gain, left) in gains.iter().zip([2, 0]) {
            let expected = loss(&[0, 2]) - loss(&[left]);
            assert!((gain - expected).abs() < 1e-4 * expected.max(1.0), "{width}: {gain} {expected}");
        }
        // A unit that was added back costs what its addition gained.
        state.add(2);
        let mut costs = vec![0.0; units.len()];
        state.add_costs(&BTreeSet::from([0]), &mut costs);
        assert!((costs[2] - gains[1]).abs() < 1e-6 * gains[1].max(1.0), "{width}: {} {}", costs[2], gains[1]);
    }
}

#[test]
fn one_unit_is_the_best_one_and_more_are_near_the_best() {
    let (mut n_best, mut n_all) = (0, 0);
    for seed in 10..30 {
        let layer = Layer::new(seed, 10, 4);
        for width in [1, 2] {
            let units = units(10, width);
            for n_removed in 1..units.len() - 1 {
                let own = [units.clone()];
                let Ok(found) = osscar(&[layer.consumer()], &own, n_removed, &check_stop);
                let found = found.unwrap();
                assert_eq!(found.len(), n_removed);
                let all = choices(units.len(), n_removed);
                let best = all.iter().map(|chosen| layer.loss(&columns(&units, chosen))).fold(f64::INFINITY, f64::min);
                let own = layer.loss(&columns(&units, &found));
                assert!(own <= 1.5 * best + 1e-6, "{seed}, {width}, {n_removed}: {own} {best}");
                (n_best, n_all) = (n_best + usize::from(own <= best * (1.0 + 1e-4) + 1e-6), n_all + 1);
                assert!(n_removed > 1 || own <= best * (1.0 + 1e-4) + 1e-6);
            }
        }
    }
    assert!(n_best * 10 >= n_all * 8, "{n_best} of {n_all}");
}

#[test]
fn layers_with_the_same_units_add_their_costs() {
    let layers = [Layer::new(40, 6, 3), Layer::new(41, 12, 2)];
    let units = [units(6, 1), units(12, 2)];
    let consumers: Vec<Consumer> = layers.iter().map(Layer::consumer).collect();
    let Ok(found) = osscar(&consumers, &units, 1, &check_stop);
    let loss = |unit: usize| (0..2).map(|at| layers[at].loss(&units[at][unit])).sum::<f64>();
    let best = (0..6).min_by(|&a, &b| loss(a).total_cmp(&loss(b))).unwrap();
    assert_eq!(found.unwrap(), [best]);
}

#[test]
fn edges() {
    let layer = Layer::new(50, 4, 2);
    let units = [units(4, 1)];
    assert_eq!(osscar(&[layer.consumer()], &units, 0, &check_stop), Ok(Some(vec![])));
    assert_eq!(osscar(&[layer.consumer()], &units, 4, &check_stop), Ok(Some(vec![0, 1, 2, 3])));
    let unseen = Consumer { gram: &[0.0; 16], ..layer.consumer() };
    assert_eq!(osscar(&[unseen], &units, 1, &check_stop), Ok(None));
    assert_eq!(osscar(&[layer.consumer()], &units, 1, &|| Err("stop")), Err("stop"));
}
