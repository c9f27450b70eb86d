//! The inputs of a run: tokens with their padding, or images.

use super::attend::RunTokens;
use super::value::AnyTensor;
use crate::cache::KeyValues;
use briquette_graph::{Graph, InputSource, Node, ValueId};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

/// Inputs of a graph.
#[derive(Debug, Clone)]
pub struct RunInputs {
    kind: InputKind,
    /// The segment of each token, `[batch, length]`; the first segment where absent.
    types: Option<Tensor<2, Int>>,
    /// The position of each sequence's first token; one for all, unless keys and values are cached.
    first: Vec<usize>,
}

#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one a run")]
enum InputKind {
    /// Token ids and their padding mask `[batch, length]`, true at padding tokens.
    Text(Tensor<2, Int>, Option<Tensor<2, Bool>>),
    Images(Tensor<4>),
    /// Images that blocks have turned into other values already.
    ReadImages,
}

impl RunInputs {
    /// Text without padding: token ids `[batch, length]`.
    pub fn tokens(ids: Tensor<2, Int>) -> Self {
        Self { kind: InputKind::Text(ids, None), types: None, first: vec![0] }
    }

    /// Text with padding, which is true at padding tokens: both `[batch, length]`.
    pub fn padded(ids: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Self {
        Self { kind: InputKind::Text(ids, Some(padding)), types: None, first: vec![0] }
    }

    /// Images `[batch, channels, height, width]`.
    pub fn images(images: Tensor<4>) -> Self {
        Self { kind: InputKind::Images(images), types: None, first: Vec::new() }
    }

    /// Inputs of the blocks of an image network: the values between blocks say all.
    pub fn read_images() -> Self {
        Self { kind: InputKind::ReadImages, types: None, first: Vec::new() }
    }

    /// Sets the segment of each token, `[batch, length]`: 0, or 1 for the second text of a pair.
    #[must_use]
    pub fn with_types(self, types: Tensor<2, Int>) -> Self {
        Self { types: Some(types), ..self }
    }

    /// RunTokens that continue cached sequences, one cache for each sequence.
    pub(super) fn after(ids: Tensor<2, Int>, caches: &[KeyValues]) -> Self {
        let first = caches.iter().map(KeyValues::n_tokens).collect();
        Self { kind: InputKind::Text(ids, None), types: None, first }
    }

    /// Returns the tokens of the run, for attention.
    pub(super) fn attention<'a>(&self) -> RunTokens<'a> {
        match &self.kind {
            InputKind::Text(ids, padding) => RunTokens::new(padding.clone(), positions(&self.first, ids.dims()[1])),
            InputKind::Images(_) | InputKind::ReadImages => RunTokens::new(None, Vec::new()),
        }
    }

    /// Returns the value of each input of a graph. A graph of images and texts is given one of them.
    ///
    /// # Panics
    /// If the graph takes text and these are images, or the reverse.
    pub(super) fn values(&self, graph: &Graph) -> Vec<(ValueId, AnyTensor)> {
        let is_text = |source: InputSource| matches!(source, InputSource::TokenIds | InputSource::PositionIds { .. });
        let takes_images = graph.inputs.iter().any(|input| input.source == InputSource::Images);
        let inputs = graph.inputs.iter().filter(|input| match self.kind {
            InputKind::Images(_) => !(takes_images && is_text(input.source)),
            _ => input.source != InputSource::Images || !graph.inputs.iter().any(|input| is_text(input.source)),
        });
        let device = self.device();
        inputs.map(|input| (input.value, self.value(input.source, &device))).collect()
    }

    /// Returns the values of inputs that some nodes use, other than images, on a device.
    pub(super) fn values_for(&self, graph: &Graph, nodes: &[Node], device: &Device) -> Vec<(ValueId, AnyTensor)> {
        let is_used = |value: ValueId| nodes.iter().flat_map(Node::values).any(|(_, used)| used == value);
        let inputs = graph.inputs.iter().filter(|input| input.source != InputSource::Images && is_used(input.value));
        inputs.map(|input| (input.value, self.value(input.source, device))).collect()
    }

    fn device(&self) -> Device {
        match &self.kind {
            InputKind::Text(ids, _) => ids.device(),
            InputKind::Images(images) => images.device(),
            InputKind::ReadImages => Device::default(),
        }
    }

    fn value(&self, source: InputSource, device: &Device) -> AnyTensor {
        match (&self.kind, source) {
            (InputKind::Images(images), InputSource::Images) => images.clone().into(),
            (InputKind::Text(ids, _), InputSource::TokenIds) => ids.clone().into(),
            (InputKind::Text(ids, padding), InputSource::PositionIds { offset, skips_padding }) => {
                position_ids(ids, padding.as_ref().filter(|_| skips_padding), &self.first, offset).into()
            }
            (InputKind::Text(ids, _), InputSource::TokenTypeIds) => match &self.types {
                Some(types) => types.clone().into(),
                None => Tensor::<2, Int>::zeros([1, 1], &ids.device()).into(),
            },
            (InputKind::Text(ids, _), InputSource::RelativeBuckets { buckets, longest }) => {
                relative_buckets(ids.dims()[1], [buckets, longest], &ids.device()).into()
            }
            (InputKind::Images(_) | InputKind::ReadImages, InputSource::WindowDistances { window }) => {
                window_distances(window, device).into()
            }
            (InputKind::Images(_) | InputKind::ReadImages, InputSource::WindowMask { grid, window, shift }) => {
                window_mask(grid, window, shift, device).into()
            }
            (_, source) => panic!("an input {source:?} was not given"),
        }
    }
}

/// Returns the number of each relative position in a window, `[patches, patches]`; see [`InputSource`].
fn window_distances(window: usize, device: &Device) -> Tensor<2, Int> {
    let n = window * window;
    let number = |query: usize, key: usize| {
        let along = |query: usize, key: usize| (query + window - 1 - key) as i64;
        along(query / window, key / window) * (2 * window as i64 - 1) + along(query % window, key % window)
    };
    let all: Vec<i64> = (0..n * n).map(|at| number(at / n, at % n)).collect();
    Tensor::from_data(TensorData::new(all, [n, n]), device)
}

/// Returns -100 where a query must not see a key, `[windows, 1, patches, patches]` of one image; see [`InputSource`].
///
/// A shift moves rows and columns from the beginning of an image to its end. Patches of different parts do not see each other.
fn window_mask(grid: [usize; 2], window: usize, shift: [usize; 2], device: &Device) -> Tensor<4> {
    let n = window * window;
    let columns = grid[1] / window;
    // The part of an axis: before the last window, in it, or moved.
    let part = |axis: usize, at: usize| match grid[axis] {
        extent if shift[axis] > 0 && at >= extent - shift[axis] => 2,
        extent if shift[axis] > 0 && at >= extent - window => 1,
        _ => 0,
    };
    let part_of = |of: usize, patch: usize| {
        let (row, column) = (of / columns * window + patch / window, of % columns * window + patch % window);
        3 * part(0, row) + part(1, column)
    };
    let n_windows = grid[0] / window * columns;
    let score = |at: usize| {
        let (of, query, key) = (at / (n * n), at / n % n, at % n);
        if part_of(of, query) == part_of(of, key) { 0.0_f32 } else { -100.0 }
    };
    let all: Vec<f32> = (0..n_windows * n * n).map(score).collect();
    Tensor::from_data(TensorData::new(all, [n_windows, 1, n, n]), device)
}

fn positions(first: &[usize], length: usize) -> Vec<usize> {
    first.iter().flat_map(|&first| first..first + length).collect()
}

/// Returns the position ids: `offset` and the number of earlier tokens.
///
/// With padding, padding tokens do not count and have the id `offset - 1`, as in RoBERTa.
fn position_ids(
    ids: &Tensor<2, Int>,
    padding: Option<&Tensor<2, Bool>>,
    first: &[usize],
    offset: usize,
) -> Tensor<2, Int> {
    let (device, [_, length]) = (ids.device(), ids.dims());
    match padding {
        Some(padding) => {
            let is_token = padding.clone().bool_not().int();
            is_token.clone().cumsum(1) * is_token + (offset as i64 - 1)
        }
        None => {
            let ids: Vec<i64> = positions(first, length).into_iter().map(|at| (at + offset) as i64).collect();
            Tensor::from_data(TensorData::new(ids, [first.len(), length]), &device)
        }
    }
}

/// Returns the bucket of the distance from each query to each key, `[length, length]`; see [`InputSource`].
fn relative_buckets(length: usize, [buckets, longest]: [usize; 2], device: &Device) -> Tensor<2, Int> {
    let half = buckets / 2;
    let exact = half / 2;
    let bucket = |query: usize, key: usize| {
        let distance = query.abs_diff(key);
        let far = || {
            let log = |x: f64| (x / exact as f64).ln();
            let beyond = log(distance as f64) / log(longest as f64) * (half - exact) as f64;
            (exact + beyond as usize).min(half - 1)
        };
        let of_distance = if distance < exact { distance } else { far() };
        (of_distance + if key > query { half } else { 0 }) as i64
    };
    let all: Vec<i64> = (0..length * length).map(|at| bucket(at / length, at % length)).collect();
    Tensor::from_data(TensorData::new(all, [length, length]), device)
}
