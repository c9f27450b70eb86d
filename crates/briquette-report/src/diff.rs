//! How far two models are from each other, tensor by tensor.

use briquette_core::stats::ErrorFigures;
use briquette_core::{DType, Error, ErrorStats, OutputAxis, Result, Rows, rows};
use briquette_formats::{Checkpoint, Choice, TensorInfo, TensorSource};
use briquette_writer::context::{RunOptions, Workers};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Elements compared at a time, but for what is left of whole blocks of rows.
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
    /// The figures; `w` is of the first model, `v` of the second. NaN (in JSON null) where a value is NaN or infinite
    /// and not so in the other; none of a tensor that is no weight, whose bytes are compared.
    pub error: Option<ErrorFigures>,
}

/// How two models differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// Tensors that both have, those with NaN first, then those that are no weights and differ, then by relative error.
    pub tensors: Vec<TensorDiff>,
    /// Tensors of the first only.
    pub only_in_first: Vec<String>,
    /// Tensors of the second only.
    pub only_in_second: Vec<String>,
    /// Tensors of both whose shapes differ.
    pub other_shape: Vec<String>,
    /// Tensors of both whose types cannot be compared: weights in one, integers in the other, or other integers.
    pub other_type: Vec<String>,
}

/// Tensors by their places in both models.
type TensorPairs = Vec<(usize, usize)>;

/// Compares every tensor that two models share by name: weights by their values, in whatever types; others of one type
/// by their bytes. `choice` says which of the things in a file is the model, of either; where it says nothing, the first is what the
/// second was made of.
///
/// # Errors
/// Config where `choice` fits none; those of reading, and Input where the two share no tensor.
pub fn diff(first: &Path, second: &Path, choice: &Choice, options: &RunOptions) -> Result<Diff> {
    let choice = Choice { is_for_one_of_two: true, ..choice.clone() };
    let b = Checkpoint::open_as(second, &choice)?;
    let a = Checkpoint::open_as(first, &choice.or_of(&b))?;
    choice.check_used(&[&a, &b])?;
    let places = |checkpoint: &Checkpoint| -> BTreeMap<String, usize> {
        checkpoint.tensors().iter().enumerate().map(|(index, info)| (info.name.clone(), index)).collect()
    };
    let (in_a, in_b) = (places(&a), places(&b));
    let missing = |from: &BTreeMap<String, usize>, to: &BTreeMap<String, usize>| -> Vec<String> {
        from.keys().filter(|name| !to.contains_key(*name)).cloned().collect()
    };
    let pairs: TensorPairs = in_a.iter().filter_map(|(name, &i)| Some((i, *in_b.get(name)?))).collect();
    if pairs.is_empty() {
        let message = format!("has no tensor in common with {}; they are different models", second.display());
        return Err(Error::input(message).at(first.display()));
    }
    let (same_shape, other_shape): (TensorPairs, TensorPairs) =
        pairs.into_iter().partition(|(i, j)| a.tensors()[*i].shape == b.tensors()[*j].shape);
    let (comparable, other_type): (TensorPairs, TensorPairs) = same_shape.into_iter().partition(|(i, j)| {
        let (one, other) = (a.tensors()[*i].dtype, b.tensors()[*j].dtype);
        one == other || one.is_weight() && other.is_weight()
    });
    let mut tensors = compare(&a, &b, &comparable, options)?;
    tensors.sort_by(|x, y| y.rank().total_cmp(&x.rank()).then_with(|| x.name.cmp(&y.name)));
    let names = |pairs: TensorPairs| pairs.into_iter().map(|(i, _)| a.tensors()[i].name.clone()).collect();
    Ok(Diff {
        tensors,
        only_in_first: missing(&in_a, &in_b),
        only_in_second: missing(&in_b, &in_a),
        other_shape: names(other_shape),
        other_type: names(other_type),
    })
}

impl TensorDiff {
    /// What it is sorted by, the largest first.
    fn rank(&self) -> f64 {
        match self.error {
            Some(error) if error.relative.is_nan() => f64::NAN.abs(),
            Some(error) => error.relative,
            None => {
                if self.is_equal {
                    0.0
                } else {
                    f64::INFINITY
                }
            }
        }
    }
}

fn compare(a: &Checkpoint, b: &Checkpoint, pairs: &[(usize, usize)], options: &RunOptions) -> Result<Vec<TensorDiff>> {
    let workers = Workers::new(options)?;
    let mut tasks: Vec<(usize, Range<usize>)> = Vec::new();
    for (place, &(i, j)) in pairs.iter().enumerate() {
        let n = length(&a.tensors()[i]);
        let piece = if a.reads_ranges(i) && b.reads_ranges(j) { piece_of(&a.tensors()[i]) } else { n.max(1) };
        tasks.extend((0..n).step_by(piece).map(|start| (place, start..(start + piece).min(n))));
    }
    workers.begin("compare", tasks.iter().map(|(_, range)| range.len()).sum());
    let found = workers.map(&tasks, PairBuffers::default, |buffers, (place, range)| {
        let (i, j) = pairs[*place];
        let compared = if a.tensors()[i].dtype.is_weight() {
            buffers.values((a, i), (b, j), range)
        } else {
            buffers.bytes((a, i), (b, j), range)
        };
        workers.advance(range.len());
        compared
    })?;
    // A model that was changed while it was read was compared as a mixture of two.
    [a, b].into_iter().try_for_each(Checkpoint::check_unchanged)?;
    let mut totals = vec![(ErrorStats::default(), true); pairs.len()];
    for ((place, _), (stats, is_equal)) in tasks.iter().zip(found) {
        totals[*place].0.merge(&stats);
        totals[*place].1 &= is_equal;
    }
    let made = |(&(i, _), (stats, is_equal)): (&(usize, usize), &(ErrorStats, bool))| {
        let TensorInfo { name, shape, dtype } = &a.tensors()[i];
        let error = dtype.is_weight().then(|| stats.figures());
        TensorDiff { name: name.clone(), shape: shape.0.clone(), is_equal: *is_equal, error }
    };
    Ok(pairs.iter().zip(&totals).map(made).collect())
}

/// Elements of a weight, bytes of anything else.
fn length(info: &TensorInfo) -> usize {
    if info.dtype.is_weight() { info.n_elements() } else { info.n_bytes() }
}

/// What is compared at a time: whole blocks, which have hashes of their own, where a few of them are no more than that.
fn piece_of(info: &TensorInfo) -> usize {
    let rows = if info.dtype.is_weight() { Rows::of(&info.shape, OutputAxis::First) } else { Rows::of_bytes(PIECE) };
    let block = (rows.rows_per_block() * rows.n_cols).max(1);
    if block > PIECE { PIECE } else { PIECE / block * block }
}

/// A tensor: the checkpoint that has it, and its index there.
type TensorAt<'a> = (&'a Checkpoint, usize);

#[derive(Default)]
struct PairBuffers {
    one: Vec<u8>,
    other: Vec<u8>,
    w: Vec<f32>,
    v: Vec<f32>,
}

impl PairBuffers {
    /// Compares some values of two weights. NaN and infinity that both have at a place count as equal.
    fn values(&mut self, a: TensorAt, b: TensorAt, range: &Range<usize>) -> Result<(ErrorStats, bool)> {
        read_values(a, range, &mut self.one, &mut self.w)?;
        read_values(b, range, &mut self.one, &mut self.v)?;
        for (w, v) in self.w.iter_mut().zip(&mut self.v) {
            if !w.is_finite() && w.to_bits() == v.to_bits() {
                (*w, *v) = (0.0, 0.0);
            }
        }
        let mut stats = ErrorStats::default();
        stats.push_with_max(&self.w, &self.v);
        Ok((stats, self.w == self.v))
    }

    /// Compares some bytes of two tensors that are no weights.
    fn bytes(&mut self, a: TensorAt, b: TensorAt, range: &Range<usize>) -> Result<(ErrorStats, bool)> {
        for ((source, index), bytes) in [(a, &mut self.one), (b, &mut self.other)] {
            bytes.resize(range.len(), 0);
            source.read(index, range.start, bytes)?;
        }
        Ok((ErrorStats::default(), self.one == self.other))
    }
}

fn read_values(
    (source, index): TensorAt,
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
