//! A batch of items of one kind, without padding.

use crate::image_items::pixels_of;
use briquette_core::{Error, Result};
use briquette_graph::Extents;
use briquette_models::batches::stacked;
use briquette_models::data::{ImageInput, Images, SoundInput};
use briquette_models::graph_net::RunInputs;
use briquette_models::text::{Tokens, segments};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Returns the extents of a text.
pub(crate) fn text_extents(tokens: usize) -> Extents {
    Extents { batch: 1, tokens, ..Extents::default() }
}

/// Returns the extents of an image of these channels, height and width.
pub(crate) fn image_extents([_, height, width]: [usize; 3]) -> Extents {
    Extents { batch: 1, image: [height, width], ..Extents::default() }
}

/// Texts of equal length, pairs with sources and targets of equal lengths, or images.
#[derive(Debug, Clone)]
pub struct RunBatch {
    /// The indices of the items in the data.
    pub(crate) places: Vec<usize>,
    kind: BatchKind,
}

#[derive(Debug, Clone)]
enum BatchKind {
    /// The tokens of all texts, concatenated, and the number of tokens in each text's first segment.
    Texts(Vec<u32>, Vec<usize>),
    /// Images are read when they are needed.
    Images(Arc<ImageSource>),
    /// The tokens of all targets, concatenated, after their sources.
    Pairs(BatchSources, Vec<u32>),
}

/// The sources of pairs.
#[derive(Debug, Clone)]
enum BatchSources {
    /// The tokens of all texts, concatenated.
    Texts(Vec<u32>),
    /// Sounds are read when they are needed.
    Sounds(Vec<PathBuf>, SoundInput),
}

/// A pair as tokens: the length of its source orders batches.
pub(crate) struct TokenPair {
    pub(crate) place: usize,
    pub(crate) source: TokenSource,
    pub(crate) target: Vec<u32>,
}

pub(crate) enum TokenSource {
    Text(Vec<u32>),
    Sound(PathBuf, SoundInput),
}

impl TokenPair {
    /// Returns the tokens of source and target. Sounds have one length.
    pub(crate) fn lengths(&self) -> [usize; 2] {
        let n = match &self.source {
            TokenSource::Text(tokens) => tokens.len(),
            TokenSource::Sound(_, input) => input.n_frames,
        };
        [n, self.target.len()]
    }
}

/// Images and how a model takes them.
#[derive(Debug)]
pub(crate) struct ImageSource {
    pub(crate) images: Arc<Images>,
    pub(crate) input: ImageInput,
    pub(crate) is_strict: bool,
}

impl RunBatch {
    pub(crate) fn of_texts(texts: &[(usize, Tokens)]) -> Self {
        let ids = texts.iter().flat_map(|(_, tokens)| tokens.ids.iter().copied()).collect();
        let n_first = texts.iter().map(|(_, tokens)| tokens.n_first).collect();
        Self { places: texts.iter().map(|(place, _)| *place).collect(), kind: BatchKind::Texts(ids, n_first) }
    }

    pub(crate) fn of_images(places: &[usize], source: &Arc<ImageSource>) -> Self {
        Self { places: places.to_vec(), kind: BatchKind::Images(source.clone()) }
    }

    pub(crate) fn of_pairs(pairs: &[TokenPair]) -> Self {
        let targets = pairs.iter().flat_map(|pair| pair.target.iter().copied()).collect();
        let (mut texts, mut sounds) = (Vec::new(), None);
        for pair in pairs {
            match &pair.source {
                TokenSource::Text(tokens) => texts.extend(tokens),
                TokenSource::Sound(path, input) => sounds.get_or_insert((Vec::new(), *input)).0.push(path.clone()),
            }
        }
        let sources = match sounds {
            Some((paths, input)) => BatchSources::Sounds(paths, input),
            None => BatchSources::Texts(texts),
        };
        Self { places: pairs.iter().map(|pair| pair.place).collect(), kind: BatchKind::Pairs(sources, targets) }
    }

    /// Returns some of the items.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let n = self.places.len().max(1);
        fn rows<T: Clone>(all: &[T], n: usize, range: &Range<usize>) -> Vec<T> {
            let width = all.len() / n;
            all[range.start * width..range.end * width].to_vec()
        }
        let kind = match &self.kind {
            BatchKind::Texts(ids, n_first) => BatchKind::Texts(rows(ids, n, &range), n_first[range.clone()].to_vec()),
            BatchKind::Images(source) => BatchKind::Images(source.clone()),
            BatchKind::Pairs(sources, targets) => {
                let sources = match sources {
                    BatchSources::Texts(ids) => BatchSources::Texts(rows(ids, n, &range)),
                    BatchSources::Sounds(paths, input) => BatchSources::Sounds(paths[range.clone()].to_vec(), *input),
                };
                BatchKind::Pairs(sources, rows(targets, n, &range))
            }
        };
        Self { places: self.places[range].to_vec(), kind }
    }

    /// Returns the number of items.
    pub(crate) fn n_items(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of tokens per text or target; 1 for images.
    pub(crate) fn length(&self) -> usize {
        match &self.kind {
            BatchKind::Texts(ids, _) | BatchKind::Pairs(_, ids) => ids.len() / self.places.len().max(1),
            BatchKind::Images(_) => 1,
        }
    }

    /// Returns the number of tokens, or of images.
    pub(crate) fn n_positions(&self) -> usize {
        self.places.len() * self.length()
    }

    /// Returns the extents of the graph that computes the batch. A source and its target have as many tokens as the longer.
    ///
    /// # Errors
    /// Input: the shape of an array of images does not fit the network.
    pub(crate) fn extents(&self) -> Result<Extents> {
        let n = self.places.len().max(1);
        let of_item = match &self.kind {
            BatchKind::Images(source) => image_extents(source.images.extents(&source.input)?),
            BatchKind::Pairs(BatchSources::Texts(ids), _) => text_extents(self.length().max(ids.len() / n)),
            BatchKind::Texts(..) | BatchKind::Pairs(BatchSources::Sounds(..), _) => text_extents(self.length()),
        };
        Ok(Extents { batch: n, ..of_item })
    }

    /// Predicts the bytes that [`read`](Self::read) takes: all items, and one of them while it is prepared.
    ///
    /// # Errors
    /// - Input: the shape of an array does not fit the network.
    /// - Io: a file cannot be read.
    pub(crate) fn reading_bytes(&self) -> Result<u64> {
        let n = self.places.len() as u64;
        // Items are collected, and stacked.
        let stacked = |values: usize| 2 * 4 * n * values as u64;
        match &self.kind {
            BatchKind::Images(source) => {
                let ImageSource { images, input, .. } = source.as_ref();
                let of_each = self.places.iter().map(|&place| images.reading_bytes(place, input));
                let most = of_each.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
                Ok(stacked(images.extents(input)?.iter().product()) + most)
            }
            BatchKind::Pairs(BatchSources::Sounds(_, input), _) => {
                Ok(stacked(input.n_mels * input.n_frames) + input.features_bytes())
            }
            BatchKind::Texts(..) | BatchKind::Pairs(BatchSources::Texts(_), _) => Ok(0),
        }
    }

    /// Returns the largest number of positions that a layer computes: those of sources may be more than those of targets.
    pub(crate) fn most_positions(&self) -> usize {
        let of_sources = match &self.kind {
            BatchKind::Pairs(BatchSources::Texts(ids), _) => ids.len(),
            BatchKind::Pairs(BatchSources::Sounds(paths, input), _) => paths.len() * input.n_frames,
            _ => 0,
        };
        of_sources.max(self.n_positions())
    }

    /// Returns the tokens of texts or targets, and a padding mask that is all false: `[batch, length]`.
    ///
    /// # Errors
    /// Bug: the batch has images.
    pub(crate) fn to_tensors(&self, device: &Device) -> Result<(Tensor<2, Int>, Tensor<2, Bool>)> {
        match &self.kind {
            BatchKind::Texts(ids, _) | BatchKind::Pairs(_, ids) => Ok(unpadded(ids, self.places.len(), device)),
            BatchKind::Images(_) => Err(Error::bug("found images, expected texts")),
        }
    }

    /// Reads the batch, without images that do not decode. `None` if none is left. Sounds must be readable.
    ///
    /// # Errors
    /// - Input: an image does not decode, and the data is strict.
    /// - Io: a file cannot be read.
    pub(crate) fn read(&mut self, device: &Device) -> Result<Option<RunInputs>> {
        let source = match &self.kind {
            BatchKind::Images(source) => source,
            BatchKind::Pairs(BatchSources::Sounds(paths, input), _) => {
                let features = paths.iter().map(|path| input.features(path)).collect::<Result<Vec<_>>>()?.concat();
                let features = TensorData::new(features, [paths.len(), input.n_mels, input.n_frames]);
                let (targets, _) = self.to_tensors(device)?;
                return Ok(Some(RunInputs::sounds(Tensor::from_data(features, device)).with_target(targets)));
            }
            _ => return self.inputs(device).map(Some),
        };
        let ImageSource { images, input, is_strict } = source.as_ref();
        let (places, pixels) = pixels_of(images, &self.places, input, *is_strict)?;
        self.places = places;
        if pixels.is_empty() {
            return Ok(None);
        }
        Ok(Some(RunInputs::images(stacked(&pixels, images.extents(input)?, device))))
    }

    /// Returns the inputs of blocks, which take no images or sounds.
    ///
    /// # Errors
    /// Bug: never for a batch of [`run_batches`].
    pub(crate) fn inputs(&self, device: &Device) -> Result<RunInputs> {
        match &self.kind {
            BatchKind::Images(_) | BatchKind::Pairs(BatchSources::Sounds(..), _) => Ok(RunInputs::read()),
            BatchKind::Pairs(BatchSources::Texts(ids), _) => {
                let (ids, padding) = unpadded(ids, self.places.len(), device);
                Ok(RunInputs::padded(ids, padding).with_target(self.to_tensors(device)?.0))
            }
            BatchKind::Texts(_, n_first) => {
                let (ids, padding) = self.to_tensors(device)?;
                let second: Vec<_> = n_first.iter().map(|&first| first..self.length()).collect();
                let segments = segments(&second, self.length(), device);
                Ok(segments.into_iter().fold(RunInputs::padded(ids, padding), RunInputs::with_types))
            }
        }
    }
}

/// Returns the tokens of `n` texts of one length, and a padding mask that is all false: `[n, length]`.
fn unpadded(ids: &[u32], n: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Bool>) {
    let shape = [n, ids.len() / n.max(1)];
    let none = vec![false; ids.len()];
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let ids = Tensor::from_data(TensorData::new(ids, shape), device);
    (ids, Tensor::from_data(TensorData::new(none, shape), device))
}
