//! How far two models are from each other, tensor by tensor.

use crate::context::{RunOptions, Workers};
use briquette_core::stats::ErrorFigures;
use briquette_core::{DType, Error, ErrorStats, Result, rows};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Elements compared at a time.
const PIECE: usize = 1 << 20;

/// How one tensor differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorDiff {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Whether every value is the same.
    pub is_equal: bool,
    /// The figures; `w` is of the first model, `v` of the second.
    pub error: ErrorFigures,
}

/// How two models differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// Tensors that both have, largest relative error first.
    pub tensors: Vec<TensorDiff>,
    /// Tensors of the first only.
    pub only_in_first: Vec<String>,
    /// Tensors of the second only.
    pub only_in_second: Vec<String>,
    /// Weights of both whose shapes differ.
    pub other_shape: Vec<String>,
}

/// Compares every weight that two models share by name; integers and the like are left out.
///
/// # Errors
/// Those of reading, and Input where the two share no tensor.
pub fn diff(first: &Path, second: &Path, options: &RunOptions) -> Result<Diff> {
    let (a, b) = (Checkpoint::open(first)?, Checkpoint::open(second)?);
    let places = |checkpoint: &Checkpoint| -> BTreeMap<String, usize> {
        checkpoint.tensors().iter().enumerate().map(|(index, info)| (info.name.clone(), index)).collect()
    };
    let (in_a, in_b) = (places(&a), places(&b));
    let missing = |from: &BTreeMap<String, usize>, to: &BTreeMap<String, usize>| -> Vec<String> {
        from.keys().filter(|name| !to.contains_key(*name)).cloned().collect()
    };
    let pairs: Vec<(usize, usize)> = in_a.iter().filter_map(|(name, &i)| Some((i, *in_b.get(name)?))).collect();
    if pairs.is_empty() {
        let message = format!("has no tensor in common with {}; they are different models", second.display());
        return Err(Error::input(message).at(first.display()));
    }
    let is_comparable = |(i, j): &(usize, usize)| a.tensors()[*i].shape == b.tensors()[*j].shape;
    let (same_shape, other_shape): (Vec<_>, Vec<_>) = pairs.into_iter().partition(is_comparable);
    let is_weight = |(i, j): &(usize, usize)| a.tensors()[*i].dtype.is_weight() && b.tensors()[*j].dtype.is_weight();
    let weights: Vec<(usize, usize)> = same_shape.into_iter().filter(is_weight).collect();
    let mut tensors = compare(&a, &b, &weights, options)?;
    tensors.sort_by(|x, y| y.error.relative.total_cmp(&x.error.relative).then_with(|| x.name.cmp(&y.name)));
    Ok(Diff {
        tensors,
        only_in_first: missing(&in_a, &in_b),
        only_in_second: missing(&in_b, &in_a),
        other_shape: other_shape.into_iter().map(|(i, _)| a.tensors()[i].name.clone()).collect(),
    })
}

fn compare(
    a: &Checkpoint,
    b: &Checkpoint,
    weights: &[(usize, usize)],
    options: &RunOptions,
) -> Result<Vec<TensorDiff>> {
    let workers = Workers::new(options)?;
    let mut tasks: Vec<(usize, Range<usize>)> = Vec::new();
    for (place, &(i, j)) in weights.iter().enumerate() {
        let n = a.tensors()[i].n_elements();
        let piece = if a.reads_ranges(i) && b.reads_ranges(j) { PIECE } else { n.max(1) };
        tasks.extend((0..n).step_by(piece).map(|start| (place, start..(start + piece).min(n))));
    }
    workers.begin("compare", tasks.iter().map(|(_, range)| range.len()).sum());
    let found = workers.map(&tasks, Buffers::default, |buffers, (place, range)| {
        let (i, j) = weights[*place];
        let Buffers { bytes, w, v } = buffers;
        read_values(a, i, range, bytes, w)?;
        read_values(b, j, range, bytes, v)?;
        let mut stats = ErrorStats::default();
        stats.push_with_max(w, v);
        workers.advance(range.len());
        Ok((stats, w == v))
    })?;
    let mut totals = vec![(ErrorStats::default(), true); weights.len()];
    for ((place, _), (stats, is_equal)) in tasks.iter().zip(found) {
        totals[*place].0.merge(&stats);
        totals[*place].1 &= is_equal;
    }
    let made = |(&(i, _), (stats, is_equal)): (&(usize, usize), &(ErrorStats, bool))| {
        let TensorInfo { name, shape, .. } = &a.tensors()[i];
        TensorDiff { name: name.clone(), shape: shape.0.clone(), is_equal: *is_equal, error: stats.figures() }
    };
    Ok(weights.iter().zip(&totals).map(made).collect())
}

#[derive(Default)]
struct Buffers {
    bytes: Vec<u8>,
    w: Vec<f32>,
    v: Vec<f32>,
}

fn read_values(
    source: &Checkpoint,
    index: usize,
    range: &Range<usize>,
    bytes: &mut Vec<u8>,
    values: &mut Vec<f32>,
) -> Result<()> {
    let dtype: DType = source.tensors()[index].dtype;
    let width = dtype.n_bits() / 8;
    bytes.resize(range.len() * width, 0);
    source.read(index, range.start * width, bytes)?;
    values.resize(range.len(), 0.0);
    rows::to_f32(bytes, dtype, values);
    Ok(())
}
