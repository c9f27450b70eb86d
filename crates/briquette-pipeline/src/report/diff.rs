//! Compares two models tensor by tensor.

use briquette_core::stats::ErrorFigures;
use briquette_core::{DType, Error, ErrorStats, OutputAxis, Result, Rows, rows};
use briquette_formats::{Checkpoint, Choice, TensorInfo, TensorSource};
use briquette_writer::context::{RunOptions, Workers};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Number of elements to compare at a time, rounded to whole blocks of rows.
const PIECE: usize = 1 << 20;

/// The difference of one tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorDiff {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// Whether all values are equal.
    pub is_equal: bool,
    /// The error figures; `w` is of the first model, `v` of the second. They are NaN (null in JSON) if a value
    /// is NaN or infinite in one model only. Tensors that are not weights have none; their bytes are compared.
    pub error: Option<ErrorFigures>,
}

/// The differences between two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// Tensors of both models. Tensors with NaN come first, then different tensors that are not weights, then
    /// the others by relative error.
    pub tensors: Vec<TensorDiff>,
    /// Tensors only in the first model.
    pub only_in_first: Vec<String>,
    /// Tensors only in the second model.
    pub only_in_second: Vec<String>,
    /// Tensors with different shapes.
    pub other_shape: Vec<String>,
    /// Weights of both models that are not read.
    pub unread: Vec<String>,
    /// Tensors with types that cannot be compared: weights and integers, or different integers.
    pub other_type: Vec<String>,
}

/// Tensors by their indices in both models.
type TensorPairs = Vec<(usize, usize)>;

/// Compares all tensors that two models share by name.
///
/// Weights are compared by value, regardless of their types; other tensors by their bytes. `choice` selects the
/// entry of a file that is the model, for each model that it fits. Parts that it lacks come from the manifest
/// of the second model, if it has one.
///
/// # Errors
/// - Config: `choice` fits neither model.
/// - Input: a model is invalid, or the models share no tensor.
/// - Io: a model cannot be read.
/// - Interrupted: the run was stopped.
pub fn diff(first: &Path, second: &Path, choice: &Choice, options: &RunOptions) -> Result<Diff> {
    let choice = Choice { is_for_one_of_two: true, ..choice.clone() };
    let b = Checkpoint::open_as(second, &choice)?;
    let a = Checkpoint::open_as(first, &choice.or_of(&b))?;
    choice.check_used(&[&a, &b])?;
    let places = |checkpoint: &Checkpoint| -> BTreeMap<String, usize> {
        checkpoint.tensors().iter().enumerate().map(|(index, info)| (info.name.to_string(), index)).collect()
    };
    let (in_a, in_b) = (places(&a), places(&b));
    let missing = |from: &BTreeMap<String, usize>, to: &BTreeMap<String, usize>| -> Vec<String> {
        from.keys().filter(|name| !to.contains_key(*name)).cloned().collect()
    };
    let pairs: TensorPairs = in_a.iter().filter_map(|(name, &i)| Some((i, *in_b.get(name)?))).collect();
    if pairs.is_empty() {
        let message = format!("shares no tensor name with {}; these are different models", second.display());
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
    let names = |pairs: TensorPairs| pairs.into_iter().map(|(i, _)| a.tensors()[i].name.to_string()).collect();
    Ok(Diff {
        tensors,
        only_in_first: missing(&in_a, &in_b),
        only_in_second: missing(&in_b, &in_a),
        other_shape: names(other_shape),
        unread: unread(&a).intersection(&unread(&b)).cloned().collect(),
        other_type: names(other_type),
    })
}

/// Returns the names of weights that are not read.
fn unread(checkpoint: &Checkpoint) -> BTreeSet<String> {
    checkpoint.left_out().iter().filter(|left| left.is_unread).map(|left| left.key.clone()).collect()
}

impl TensorDiff {
    /// Returns the sort key, largest first.
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
    // A model that changed while it was read would be compared as a mixture of two versions.
    [a, b].into_iter().try_for_each(Checkpoint::check_unchanged)?;
    let mut totals = vec![(ErrorStats::default(), true); pairs.len()];
    for ((place, _), (stats, is_equal)) in tasks.iter().zip(found) {
        totals[*place].0.merge(&stats);
        totals[*place].1 &= is_equal;
    }
    let made = |(&(i, _), (stats, is_equal)): (&(usize, usize), &(ErrorStats, bool))| {
        let TensorInfo { name, shape, dtype } = &a.tensors()[i];
        let error = dtype.is_weight().then(|| stats.figures());
        TensorDiff { name: name.to_string(), shape: shape.0.clone(), is_equal: *is_equal, error }
    };
    Ok(pairs.iter().zip(&totals).map(made).collect())
}

/// Returns the number of elements of a weight, or of bytes of another tensor.
fn length(info: &TensorInfo) -> usize {
    if info.dtype.is_weight() { info.n_elements() } else { info.n_bytes() }
}

/// Returns the number of elements to compare at a time: whole hash blocks, unless one is larger than a piece.
fn piece_of(info: &TensorInfo) -> usize {
    let rows = if info.dtype.is_weight() { Rows::of(&info.shape, OutputAxis::First) } else { Rows::of_bytes(PIECE) };
    let block = (rows.rows_per_block() * rows.n_cols).max(1);
    if block > PIECE { PIECE } else { PIECE / block * block }
}

/// A tensor: its checkpoint, and its index there.
type TensorAt<'a> = (&'a Checkpoint, usize);

#[derive(Default)]
struct PairBuffers {
    one: Vec<u8>,
    other: Vec<u8>,
    w: Vec<f32>,
    v: Vec<f32>,
}

impl PairBuffers {
    /// Compares a range of values of two weights. Equal NaN and infinity at the same position count as equal.
    fn values(&mut self, a: TensorAt, b: TensorAt, range: &Range<usize>) -> Result<(ErrorStats, bool)> {
        read_values(a, range, &mut self.one, &mut self.w)?;
        read_values(b, range, &mut self.other, &mut self.v)?;
        let types = [a, b].map(|(source, index)| source.tensors()[index].dtype);
        // Different f64 values may be one f32.
        let differs = types.contains(&DType::F64) && {
            let [one, other] =
                [(&self.one, types[0]), (&self.other, types[1])].map(|(bytes, dtype)| in_f64(bytes, dtype));
            one.zip(other).any(|(w, v)| w != v && w.to_bits() != v.to_bits())
        };
        for (w, v) in self.w.iter_mut().zip(&mut self.v) {
            if !w.is_finite() && w.to_bits() == v.to_bits() {
                (*w, *v) = (0.0, 0.0);
            }
        }
        let mut stats = ErrorStats::default();
        stats.push_with_max(&self.w, &self.v);
        Ok((stats, self.w == self.v && !differs))
    }

    /// Compares a range of bytes of two tensors that are not weights.
    fn bytes(&mut self, a: TensorAt, b: TensorAt, range: &Range<usize>) -> Result<(ErrorStats, bool)> {
        for ((source, index), bytes) in [(a, &mut self.one), (b, &mut self.other)] {
            bytes.resize(range.len(), 0);
            source.read(index, range.start, bytes)?;
        }
        Ok((ErrorStats::default(), self.one == self.other))
    }
}

/// Returns values in f64; those of other types are exact in f32.
fn in_f64(bytes: &[u8], dtype: DType) -> Box<dyn Iterator<Item = f64> + '_> {
    if dtype == DType::F64 {
        return Box::new(bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)));
    }
    let mut values = vec![0.0; bytes.len() * 8 / dtype.n_bits()];
    rows::to_f32(bytes, dtype, &mut values);
    Box::new(values.into_iter().map(f64::from))
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
