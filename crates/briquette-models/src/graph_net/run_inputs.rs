//! The inputs of a run: tokens with their padding, images, or sounds; and the target of an encoder-decoder.

use super::attend::RunTokens;
use super::value::AnyTensor;
use crate::cache::KeyValues;
use briquette_graph::computed_inputs::{bucket_of, relative_bucket, window_distances, window_mask};
use briquette_graph::{Graph, InputSource, Node, ValueId};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

/// Inputs of a graph.
#[derive(Debug, Clone)]
pub struct RunInputs {
    kind: InputKind,
    /// The segment of each token, `[batch, length]`; the first segment where absent.
    types: Option<Tensor<2, Int>>,
    /// The token ids of the target of an encoder-decoder, `[batch, targets]`.
    target: Option<Tensor<2, Int>>,
    /// The position of each sequence's first token; one for all, unless keys and values are cached.
    first: Vec<usize>,
}

#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one a run")]
enum InputKind {
    /// Token ids and their padding mask `[batch, length]`, true at padding tokens.
    Text(Tensor<2, Int>, Option<Tensor<2, Bool>>),
    Images(Tensor<4>),
    /// Features of sounds `[batch, features, frames]`.
    Sounds(Tensor<3>),
    /// Images, sounds or a source that earlier parts have turned into other values.
    Read,
}

impl RunInputs {
    /// Text without padding: token ids `[batch, length]`.
    pub fn tokens(ids: Tensor<2, Int>) -> Self {
        Self { first: vec![0], ..Self::of(InputKind::Text(ids, None)) }
    }

    /// Text with padding, which is true at padding tokens: both `[batch, length]`.
    pub fn padded(ids: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Self {
        Self { first: vec![0], ..Self::of(InputKind::Text(ids, Some(padding))) }
    }

    /// Images `[batch, channels, height, width]`.
    pub fn images(images: Tensor<4>) -> Self {
        Self::of(InputKind::Images(images))
    }

    /// Features of sounds `[batch, features, frames]`.
    pub fn sounds(features: Tensor<3>) -> Self {
        Self { first: vec![0], ..Self::of(InputKind::Sounds(features)) }
    }

    /// Inputs of the blocks of a network for images or sounds: the values between blocks contain all of them.
    pub fn read() -> Self {
        Self::of(InputKind::Read)
    }

    fn of(kind: InputKind) -> Self {
        Self { kind, types: None, target: None, first: Vec::new() }
    }

    /// Returns the number of tokens, of pixel values, or of features.
    pub fn n_elements(&self) -> usize {
        let dims = match &self.kind {
            InputKind::Text(ids, _) => ids.dims().to_vec(),
            InputKind::Images(images) => images.dims().to_vec(),
            InputKind::Sounds(features) => features.dims().to_vec(),
            InputKind::Read => vec![0],
        };
        dims.iter().product()
    }

    /// Sets the target of an encoder-decoder, `[batch, targets]`. The source is the text or the sounds.
    #[must_use]
    pub fn with_target(self, target: Tensor<2, Int>) -> Self {
        Self { target: Some(target), ..self }
    }

    /// Sets the segment of each token, `[batch, length]`: 0, or 1 for the second text of a pair.
    #[must_use]
    pub fn with_types(self, types: Tensor<2, Int>) -> Self {
        Self { types: Some(types), ..self }
    }

    /// Tokens that continue cached sequences, one cache for each sequence.
    pub(super) fn after(ids: Tensor<2, Int>, caches: &[KeyValues]) -> Self {
        Self { first: first_positions(caches), ..Self::of(InputKind::Text(ids, None)) }
    }

    /// Like [`after`](Self::after), for the targets of an encoder-decoder whose sources are cached.
    pub(super) fn target_after(ids: Tensor<2, Int>, caches: &[KeyValues]) -> Self {
        Self { first: first_positions(caches), target: Some(ids), ..Self::of(InputKind::Read) }
    }

    /// Returns the tokens of the run, for attention.
    pub(super) fn attention<'a>(&self) -> RunTokens<'a> {
        match &self.kind {
            InputKind::Text(ids, padding) => RunTokens::new(padding.clone(), positions(&self.first, ids.dims()[1])),
            InputKind::Images(_) | InputKind::Sounds(_) | InputKind::Read => RunTokens::new(None, Vec::new()),
        }
    }

    /// Returns the value of each input of a graph. A graph of images and texts is given one of them.
    ///
    /// # Panics
    /// If the graph takes text and these are images, or the reverse.
    pub(super) fn values(&self, graph: &Graph) -> Vec<(ValueId, AnyTensor)> {
        let is_text = |source: InputSource| matches!(source, InputSource::TokenIds | InputSource::PositionIds { .. });
        let takes_images = graph.takes_images();
        let inputs = graph.inputs.iter().filter(|input| match self.kind {
            _ if is_of_target(input.source) => self.target.is_some(),
            InputKind::Read => false,
            InputKind::Images(_) => !(takes_images && is_text(input.source)),
            _ => input.source != InputSource::Images || !graph.inputs.iter().any(|input| is_text(input.source)),
        });
        let device = self.device();
        inputs.map(|input| (input.value, self.value(input.source, &device))).collect()
    }

    /// Returns the values of inputs that some nodes use, other than images and sounds, on a device.
    pub(super) fn values_for(&self, graph: &Graph, nodes: &[Node], device: &Device) -> Vec<(ValueId, AnyTensor)> {
        let is_used = |value: ValueId| nodes.iter().flat_map(Node::values).any(|(_, used)| used == value);
        let is_read = |source: InputSource| matches!(source, InputSource::Images | InputSource::SoundFeatures);
        let inputs = graph.inputs.iter().filter(|input| !is_read(input.source) && is_used(input.value));
        inputs.map(|input| (input.value, self.value(input.source, device))).collect()
    }

    fn device(&self) -> Device {
        match &self.kind {
            InputKind::Text(ids, _) => ids.device(),
            InputKind::Images(images) => images.device(),
            InputKind::Sounds(features) => features.device(),
            InputKind::Read => self.target.as_ref().map_or_else(Device::default, Tensor::device),
        }
    }

    fn value(&self, source: InputSource, device: &Device) -> AnyTensor {
        if let Some(target) = self.target.as_ref().filter(|_| is_of_target(source)) {
            return self.target_value(target, source);
        }
        match (&self.kind, source) {
            (InputKind::Images(images), InputSource::Images) => images.clone().into(),
            (InputKind::Sounds(features), InputSource::SoundFeatures) => features.clone().into(),
            (InputKind::Text(ids, _), InputSource::TokenIds) => ids.clone().into(),
            (InputKind::Text(ids, padding), InputSource::PositionIds { offset, skips_padding }) => {
                position_ids(ids, padding.as_ref().filter(|_| skips_padding), &self.first, offset).into()
            }
            (InputKind::Text(ids, padding), InputSource::AttentionMask) => match padding {
                Some(padding) => padding.clone().bool_not().int().into(),
                None => ids.ones_like().into(),
            },
            (InputKind::Text(ids, padding), InputSource::TokenShares) => {
                token_shares(&padding.clone().unwrap_or_else(|| ids.zeros_like().bool())).into()
            }
            (InputKind::Text(ids, _), InputSource::TokenTypeIds) => match &self.types {
                Some(types) => types.clone().into(),
                None => Tensor::<2, Int>::zeros([1, 1], &ids.device()).into(),
            },
            (InputKind::Text(ids, _), InputSource::RelativeBuckets { buckets, longest }) => {
                relative_buckets(ids.dims()[1], [buckets, longest], &ids.device()).into()
            }
            (InputKind::Images(_) | InputKind::Read, InputSource::WindowDistances { window }) => {
                window_distances_on(window, device).into()
            }
            (InputKind::Images(_) | InputKind::Read, InputSource::WindowMask { grid, window, shift }) => {
                window_mask_on(grid, window, shift, device).into()
            }
            (_, source) => panic!("an input {source:?} was not given"),
        }
    }

    fn target_value(&self, target: &Tensor<2, Int>, source: InputSource) -> AnyTensor {
        let (length, device) = (target.dims()[1], target.device());
        match source {
            InputSource::TargetPositionIds { offset } => position_ids(target, None, &self.first, offset).into(),
            InputSource::TargetBuckets { buckets, longest } => {
                let first = self.first.first().copied().unwrap_or_default();
                assert!(self.first.iter().all(|other| *other == first), "targets of one length take a step together");
                target_buckets([first, length], [buckets, longest], &device).into()
            }
            _ => target.clone().into(),
        }
    }
}

/// Returns one over the number of tokens of each text, and 0 at padding: `[batch, tokens, 1]`.
pub(super) fn token_shares(padding: &Tensor<2, Bool>) -> Tensor<3> {
    let is_token = padding.clone().bool_not().float();
    let n_tokens = is_token.clone().sum_dim(1).clamp_min(1.0);
    (is_token / n_tokens).unsqueeze_dim(2)
}

/// Returns whether an input is made from the target of an encoder-decoder.
fn is_of_target(source: InputSource) -> bool {
    use InputSource::{TargetBuckets, TargetIds, TargetPositionIds};
    matches!(source, TargetIds | TargetPositionIds { .. } | TargetBuckets { .. })
}

fn first_positions(caches: &[KeyValues]) -> Vec<usize> {
    caches.iter().map(KeyValues::n_tokens).collect()
}

/// Returns the number of each relative position in a window, `[patches, patches]`.
fn window_distances_on(window: usize, device: &Device) -> Tensor<2, Int> {
    let n = window * window;
    Tensor::from_data(TensorData::new(window_distances(window), [n, n]), device)
}

/// Returns -100 where a query must not see a key, `[windows, 1, patches, patches]` of one image.
fn window_mask_on(grid: [usize; 2], window: usize, shift: [usize; 2], device: &Device) -> Tensor<4> {
    let (n, mask) = (window * window, window_mask(grid, window, shift));
    let n_windows = mask.len() / (n * n);
    Tensor::from_data(TensorData::new(mask, [n_windows, 1, n, n]), device)
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

/// Returns the bucket of the distance from each of `n` queries back to each key, `[n, first + n]`; see [`InputSource`].
fn target_buckets([first, n]: [usize; 2], [buckets, longest]: [usize; 2], device: &Device) -> Tensor<2, Int> {
    let n_keys = first + n;
    let bucket = |query: usize, key: usize| bucket_of(query.saturating_sub(key), buckets, longest) as i64;
    let all: Vec<i64> = (0..n * n_keys).map(|at| bucket(first + at / n_keys, at % n_keys)).collect();
    Tensor::from_data(TensorData::new(all, [n, n_keys]), device)
}

/// Returns the bucket of the distance from each query to each key, `[length, length]`; see [`InputSource`].
fn relative_buckets(length: usize, [buckets, longest]: [usize; 2], device: &Device) -> Tensor<2, Int> {
    let bucket = |at: usize| relative_bucket((at % length) as i64 - (at / length) as i64, buckets, longest);
    let all: Vec<i64> = (0..length * length).map(bucket).collect();
    Tensor::from_data(TensorData::new(all, [length, length]), device)
}
