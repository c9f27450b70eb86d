//! The data of a training, read once and stored on the host.

use crate::training::learner::{Inputs, TextBatch, text_classes};
use briquette_core::memory::MemoryLimit;
use briquette_core::{Error, Result};
use briquette_distill::{TrainingBatch, TrainingData};
use briquette_methods::prune::score;
use briquette_models::batches::stacked;
use briquette_models::data::{Data, DataSpec, Images, Sentences, Split};
use briquette_models::text::{Tokens, padded, segments};
use briquette_models::{Input, LoadedModel};
use briquette_recipe::raw::RawData;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Separates the random numbers of new labels from those that select labels.
const SECOND_STREAM: u64 = 0x6c61_6265_6c73;

/// The items of a training.
#[derive(Debug)]
pub(crate) enum Examples {
    Texts {
        tokens: Vec<Tokens>,
        labels: Option<Vec<usize>>,
    },
    /// Running text, cut into pieces of equal length.
    Windows(Vec<Vec<u32>>),
    Images {
        pixels: Vec<Vec<f32>>,
        extents: [usize; 3],
        labels: Option<Vec<usize>>,
    },
}

impl Examples {
    /// Reads `data.train` for `model`, within a limit on the memory of the host. With `n_classes`, checks that labels are valid
    /// classes.
    pub(crate) fn open(
        data: &RawData,
        model: &LoadedModel,
        n_classes: Option<usize>,
        seed: u64,
        limit: Option<MemoryLimit>,
    ) -> Result<Self> {
        let train = data.train.clone().unwrap_or_default();
        let mut spec = crate::training::translate::spec_of(data);
        spec.path = train.clone();
        (spec.labels, spec.split) = (None, Split::Train);
        let mut examples =
            Self::read(&spec, model, limit).map_err(|error| match error.message.contains("evaluate") {
                true => Error { message: error.message.replace("evaluate", "train on"), ..error },
                false => error,
            })?;
        examples.cut(data.share.unwrap_or(1.0));
        if let Some(n_classes) = n_classes {
            let checked = examples.check_labels(n_classes);
            checked.map_err(|error| error.at(train.display()))?;
            examples.add_noise(data.label_noise.unwrap_or(0.0), n_classes, seed);
        }
        Ok(examples)
    }

    fn read(spec: &DataSpec, model: &LoadedModel, limit: Option<MemoryLimit>) -> Result<Self> {
        match (spec.open_within(model.arch.task(), limit)?, &model.input) {
            (Data::Sentences(sentences), Input::Text { .. }) => {
                let tokenizer = model.tokenizer()?;
                let items = sentences.items(model.input.reads_pairs());
                let tokens = items.iter().map(|item| tokenizer.encode_item(item)).collect::<Result<_>>()?;
                Ok(Self::Texts { tokens, labels: labels_of(&sentences, model)?.filter(|all| all.len() == items.len()) })
            }
            (Data::Document(text), Input::Text { .. }) => {
                let tokenizer = model.tokenizer()?;
                windows(&tokenizer.encode_all(&text)?.ids, tokenizer.max_length()).map(Self::Windows)
            }
            (Data::Images(images), Input::Images(input)) => {
                let input = spec.image_input(input)?;
                let extents = images.extents(&input)?;
                let all = 0..images.len();
                if let Some(limit) = limit {
                    let n_bytes = all.len() * extents.iter().product::<usize>() * size_of::<f32>();
                    limit.check_before("decode the images", n_bytes as u64)?;
                }
                let pixels = all.clone().map(|index| images.pixels(index, &input)).collect::<Result<_>>()?;
                let labels = all.map(|index| Images::label(&images, index)).collect();
                Ok(Self::Images { pixels, extents, labels })
            }
            _ => Err(Error::config(format!(
                "{} cannot be trained on this kind of data; use data for its task",
                model.arch
            ))),
        }
    }

    /// Keeps the first items only.
    fn cut(&mut self, share: f64) {
        let n = ((self.len() as f64 * share).round() as usize).max(1);
        match self {
            Self::Texts { tokens, labels } => {
                tokens.truncate(n);
                labels.iter_mut().for_each(|labels| labels.truncate(n));
            }
            Self::Windows(tokens) => tokens.truncate(n),
            Self::Images { pixels, labels, .. } => {
                pixels.truncate(n);
                labels.iter_mut().for_each(|labels| labels.truncate(n));
            }
        }
    }

    fn check_labels(&self, n_classes: usize) -> Result<()> {
        let Self::Images { labels: Some(labels), .. } = self else { return Ok(()) };
        match labels.iter().position(|&label| label >= n_classes) {
            Some(at) => {
                let message =
                    format!("label {} of item {at} is out of range, the student has {n_classes} classes", labels[at]);
                Err(Error::input(message))
            }
            None => Ok(()),
        }
    }

    /// Replaces a share of the labels with random classes, which may be the correct ones.
    fn add_noise(&mut self, share: f64, n_classes: usize, seed: u64) {
        let (Self::Images { labels: Some(labels), .. } | Self::Texts { labels: Some(labels), .. }) = self else {
            return;
        };
        let (mut is_drawn, mut drawn) = (vec![0.0; labels.len()], vec![0.0; labels.len()]);
        score::random(seed, 0, &mut is_drawn);
        score::random(seed ^ SECOND_STREAM, 0, &mut drawn);
        for (label, (is_drawn, drawn)) in labels.iter_mut().zip(is_drawn.iter().zip(drawn)) {
            if f64::from(*is_drawn) < share {
                *label = (drawn * n_classes as f32) as usize;
            }
        }
    }

    /// Returns the first texts, for comparing two tokenizers.
    pub(crate) fn first_texts(data: &RawData, n: usize) -> Result<Vec<String>> {
        let spec = DataSpec { path: data.train.clone().unwrap_or_default(), ..DataSpec::default() };
        match spec.open(briquette_models::ModelTask::Encoder)? {
            Data::Sentences(sentences) => Ok(sentences.texts.iter().take(n).cloned().collect()),
            _ => Ok(Vec::new()),
        }
    }
}

/// Returns the classes of texts, if the data has them and the model classifies whole texts.
fn labels_of(sentences: &Sentences, model: &LoadedModel) -> Result<Option<Vec<usize>>> {
    let Input::Text { label_names, .. } = &model.input else { return Ok(None) };
    match text_classes(&model.network).filter(|_| !model.network.classifies_tokens()) {
        Some(n_classes) => sentences.classes(label_names, n_classes),
        None => Ok(None),
    }
}

/// Returns the labels of these rows.
fn chosen(labels: Option<&[usize]>, rows: &[usize], device: &Device) -> Option<Tensor<1, Int>> {
    let labels: Vec<i64> = rows.iter().map(|&row| Some(labels?[row] as i64)).collect::<Option<_>>()?;
    Some(Tensor::from_data(TensorData::new(labels, [rows.len()]), device))
}

/// Returns running text in pieces of `length` tokens, without the remainder. A shorter text is one piece.
fn windows(tokens: &[u32], length: usize) -> Result<Vec<Vec<u32>>> {
    let length = length.min(tokens.len());
    if length < 2 {
        return Err(Error::input(format!("found windows of {length} tokens, expected at least 2; add more text")));
    }
    Ok(tokens.chunks_exact(length).map(<[u32]>::to_vec).collect())
}

impl TrainingData for Examples {
    type Input = Inputs;

    fn len(&self) -> usize {
        match self {
            Self::Texts { tokens, .. } => tokens.len(),
            Self::Windows(tokens) => tokens.len(),
            Self::Images { pixels, .. } => pixels.len(),
        }
    }

    fn batch(&self, rows: &[usize], device: &Device) -> Result<TrainingBatch<Inputs>> {
        let (input, labels) = match self {
            Self::Texts { tokens, labels } => {
                let texts: Vec<Tokens> = rows.iter().map(|&row| tokens[row].clone()).collect();
                let (tokens, padding) = padded(&texts, device);
                let second: Vec<_> = texts.iter().map(Tokens::second).collect();
                let segments = segments(&second, tokens.dims()[1], device);
                (Inputs::Text(TextBatch { tokens, padding, segments }), chosen(labels.as_deref(), rows, device))
            }
            Self::Windows(tokens) => {
                let length = tokens[0].len();
                let ids: Vec<i32> = rows.iter().flat_map(|&row| &tokens[row]).map(|&id| id as i32).collect();
                let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [rows.len(), length]), device);
                let next = ids.clone().narrow(1, 1, length - 1).flatten(0, 1);
                (Inputs::Windows { tokens: ids, n_given: 1 }, Some(next))
            }
            Self::Images { pixels, extents, labels } => {
                let pixels: Vec<Vec<f32>> = rows.iter().map(|&row| pixels[row].clone()).collect();
                (Inputs::Images(stacked(&pixels, *extents, device)), chosen(labels.as_deref(), rows, device))
            }
        };
        Ok(TrainingBatch { rows: rows.to_vec(), input, labels })
    }

    fn cost(&self, row: usize) -> usize {
        match self {
            Self::Texts { tokens, .. } => tokens[row].len(),
            Self::Windows(_) | Self::Images { .. } => 0,
        }
    }
}
