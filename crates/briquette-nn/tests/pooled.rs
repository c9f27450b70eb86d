//! Tests shared thresholds against the definition: sort all scores, break ties by index.

use crate::law::to_rows;
use briquette_core::{OutputAxis, Rows, Shape};
use briquette_methods::prune::Ratio;
use briquette_nn::{Compression, Prune, Schedule, decisions};
use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeMap;

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    first: Linear,
    up: ConvTranspose2d,
    last: Linear,
}

/// Paths of the weights in module order, with shapes and output axes.
const WEIGHTS: [(&str, &[usize], OutputAxis); 4] = [
    ("conv.weight", &[7, 5, 3, 3], OutputAxis::First),
    ("first.weight", &[330, 501], OutputAxis::Last),
    ("up.weight", &[6, 11, 2, 2], OutputAxis::Second),
    ("last.weight", &[501, 300], OutputAxis::Last),
];
const SHARE: f64 = 0.8;
const N_STEPS: usize = 2;

fn rows_of(shape: &[usize], axis: OutputAxis) -> Rows {
    Rows::of(&Shape(shape.to_vec()), axis)
}

/// Returns a network with these weights, each in its parameter's order.
fn net(weights: &[Vec<f32>]) -> Net {
    let device = Device::flex();
    let data = |i: usize| TensorData::new(weights[i].clone(), WEIGHTS[i].1);
    let mut net = Net {
        conv: Conv2dConfig::new([5, 7], [3, 3]).init(&device),
        first: LinearConfig::new(330, 501).init(&device),
        up: ConvTranspose2dConfig::new([6, 11], [2, 2]).init(&device),
        last: LinearConfig::new(501, 300).init(&device),
    };
    net.conv.weight = Param::from_tensor(Tensor::from_data(data(0), &device));
    net.first.weight = Param::from_tensor(Tensor::from_data(data(1), &device));
    net.up.weight = Param::from_tensor(Tensor::from_data(data(2), &device));
    net.last.weight = Param::from_tensor(Tensor::from_data(data(3), &device));
    net
}

/// Returns the dropped weights of each pool after the schedule's steps, by sorting.
fn expected(pools: &[Vec<f32>]) -> Vec<Vec<bool>> {
    let of_pool = |weights: &Vec<f32>| {
        let mut dropped = vec![false; weights.len()];
        for step in 1..=N_STEPS {
            let n_drop = Ratio::new(SHARE * step as f64 / N_STEPS as f64).unwrap().of(weights.len());
            let mut order: Vec<usize> = (0..weights.len()).collect();
            order.sort_by(|&a, &b| {
                let key = |i: usize| (!dropped[i], weights[i].abs());
                key(a).partial_cmp(&key(b)).unwrap().then(a.cmp(&b))
            });
            order[..n_drop].iter().for_each(|&i| dropped[i] = true);
        }
        dropped
    };
    pools.iter().map(of_pool).collect()
}

/// Returns the weights that a rule drops, as rows of outputs.
fn dropped(rule: Prune, weights: &[Vec<f32>]) -> Vec<Vec<bool>> {
    let rules = Compression::new().prune(rule.on(Schedule::linear(0..N_STEPS)));
    let mut model = rules.attach(net(weights)).unwrap();
    for step in 1..=N_STEPS {
        model = rules.refresh(model, step).unwrap();
    }
    let decided: BTreeMap<_, _> = decisions(&model).unwrap();
    let of = |(path, shape, axis): (&str, &[usize], OutputAxis)| {
        let (mask, rows) = (decided[path].mask.as_ref().unwrap(), rows_of(shape, axis));
        let places = (0..rows.n_rows).flat_map(|row| (0..rows.n_cols).map(move |col| (row, col)));
        places.map(|(row, col)| !mask.keeps(row, col)).collect()
    };
    WEIGHTS.map(of).into()
}

/// Compares the dropped weights for `of(parameter, index)` with the definition, with several numbers of
/// threads.
fn check(what: &str, of: impl Fn(usize, usize) -> f32) {
    let n_of = |shape: &[usize]| shape.iter().product::<usize>();
    let weights: Vec<Vec<f32>> =
        (0..4).map(|param| (0..n_of(WEIGHTS[param].1)).map(|i| of(param, i)).collect()).collect();
    let by_row: Vec<Vec<f32>> =
        WEIGHTS.iter().zip(&weights).map(|((_, shape, axis), own)| to_rows(own, &rows_of(shape, *axis))).collect();
    let (alone, together) = (expected(&by_row), expected(&[by_row.concat()]));
    let rule = || Prune::new("**.weight", SHARE).unwrap();
    let own_score = |rule: Prune| rule.score_by(|row| row.weights.iter().map(|weight| weight.abs()).collect());
    for n_threads in [1, 2, 5] {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        threads.install(|| {
            assert!(dropped(rule().globally(), &weights).concat() == together[0], "{what}, {n_threads} threads");
            let own = dropped(own_score(rule().globally()), &weights).concat();
            assert!(own == together[0], "{what}, a score of one's own, {n_threads} threads");
            assert!(dropped(rule(), &weights) == alone, "{what}, each alone, {n_threads} threads");
        });
    }
}

/// Returns a pseudorandom number.
fn hash(param: usize, i: usize) -> usize {
    ((i * 4 + param) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        as usize
        >> 40
}

#[test]
fn global_pruning_drops_the_smallest_scores_and_breaks_ties_by_index() {
    let level = |param, i, n: usize| (hash(param, i) % n) as f32 - (n / 2) as f32;
    check("eleven levels", |param, i| level(param, i, 11) * 0.25);
    check("two thousand levels", |param, i| level(param, i, 2001) * 1e-3);
    check("all alike", |_, i| if i % 2 == 0 { 0.5 } else { -0.5 });
    check("zeros", |param, i| if hash(param, i).is_multiple_of(3) { level(param, i, 5) } else { -0.0 });
    check("hardly any alike", |param, i| (hash(param, i) as f32 - 8e6) * 1e-7);
}

#[test]
fn a_misleading_sample_does_not_change_the_threshold() {
    // One in nine of 316,209 weights is sampled, and those at the sampled positions are large.
    check("misled", |param, i| if i % 9 == 0 { 2.0 } else { 1e-3 } + (hash(param, i) % 1000) as f32 * 1e-7);
}
