//! Gathers statistics of each layer's inputs while a model runs, for methods that use more than weights.

use crate::read_f32;
use briquette_core::{Error, InputStats, Result};
use briquette_formats::Checkpoint;
use briquette_formats::input_stats::{self, StatisticsFile};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::module::unfold4d;
use burn::tensor::ops::UnfoldOptions;
use burn::tensor::{FloatDType, Tensor};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Collects [`InputStats`] by layer. Clones share what they collect, so that a module can keep one in a field marked
/// `#[module(skip)]` and show it the inputs of its layers.
#[derive(Debug, Clone, Default)]
pub struct Probe {
    has_gram: bool,
    stats: Arc<Mutex<BTreeMap<String, InputStats>>>,
    error: Arc<Mutex<Option<Error>>>,
}

/// How a convolution goes over an image: extents of height and width.
#[derive(Debug, Clone, Copy)]
pub struct Patches {
    /// Its extents.
    pub kernel: [usize; 2],
    /// Steps between patches.
    pub stride: [usize; 2],
    /// Zeros before and after the image, of height and of width.
    pub padding: [[usize; 2]; 2],
    /// Steps between the taps of a patch.
    pub dilation: [usize; 2],
    /// Groups of channels.
    pub groups: usize,
}

impl Probe {
    /// A probe that counts input vectors and gathers sums, sums of squares and largest magnitudes.
    pub fn new() -> Self {
        Self::default()
    }

    /// A probe that gathers gram matrices too: `n²` numbers for a layer of `n` inputs.
    pub fn with_gram() -> Self {
        Self { has_gram: true, ..Self::default() }
    }

    /// Adds a batch of inputs of the linear layer at `path`: the last axis counts inputs, the others samples.
    ///
    /// # Errors
    /// Config where the number of inputs changed, Refused where one is not finite, Io where the device fails.
    pub fn observe<const D: usize>(&self, path: &str, inputs: &Tensor<D>) -> Result<()> {
        let n_inputs = inputs.dims()[D - 1];
        self.add(path, inputs.clone().without_autodiff().reshape([-1, n_inputs as i32]))
    }

    /// Adds a batch of inputs `[n, channels, height, width]` of a convolution: each position is one vector of
    /// `channels · kernel height · kernel width`, in the order of the filter's columns.
    ///
    /// # Errors
    /// As [`observe`](Self::observe), and Config where the convolution has groups, or its padding depends on the image's size.
    pub fn observe_conv(&self, path: &str, inputs: &Tensor<4>, conv: &Conv2d) -> Result<()> {
        let kernel = conv.kernel_size;
        let padding = match conv.padding {
            PaddingConfig2d::Valid => Some([[0; 2]; 2]),
            PaddingConfig2d::Same => {
                let both = [0, 1].map(|axis| conv.dilation[axis] * (kernel[axis] - 1));
                (conv.stride == [1, 1]).then(|| both.map(|n| [n / 2, n - n / 2]))
            }
            PaddingConfig2d::Explicit(top, left, bottom, right) => Some([[top, bottom], [left, right]]),
        };
        let Some(padding) = padding else {
            return Err(Error::config("same padding with strides cannot be probed").at(path));
        };
        let (stride, dilation, groups) = (conv.stride, conv.dilation, conv.groups);
        self.observe_patches(path, inputs, Patches { kernel, stride, padding, dilation, groups })
    }

    /// Adds a batch of inputs of a convolution of one group that goes over them in this way.
    ///
    /// # Errors
    /// As [`observe`](Self::observe), and Config where it has groups.
    pub fn observe_patches(&self, path: &str, inputs: &Tensor<4>, patches: Patches) -> Result<()> {
        let Patches { kernel, stride, padding: [height, width], dilation, groups } = patches;
        if groups != 1 {
            return Err(
                Error::config("the groups of a convolution see different inputs, and cannot be probed").at(path)
            );
        }
        let options = UnfoldOptions::new(stride, [0, 0], dilation);
        let padded = inputs.clone().without_autodiff().pad((width[0], width[1], height[0], height[1]), 0.0);
        let columns: Tensor<3> = unfold4d(padded, kernel, options);
        let n_inputs = columns.dims()[1];
        self.add(path, columns.swap_dims(1, 2).reshape([-1, n_inputs as i32]))
    }

    fn add(&self, path: &str, samples: Tensor<2>) -> Result<()> {
        let samples = samples.cast(FloatDType::F32);
        let [count, n_inputs] = samples.dims();
        let sums = read_f32(samples.clone().sum_dim(0), path)?;
        let squares = read_f32(samples.clone().powi_scalar(2).sum_dim(0), path)?;
        let largest = read_f32(samples.clone().abs().max_dim(0), path)?;
        if squares.iter().any(|square| !square.is_finite()) {
            return Err(Error::refused("an input is not finite; look at what comes before").at(path));
        }
        let gram = self.has_gram.then(|| read_f32(samples.clone().transpose().matmul(samples), path)).transpose()?;
        let mut all = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = all.entry(path.to_string()).or_insert_with(|| InputStats::empty(n_inputs, gram.is_some()));
        if stats.n_inputs() != n_inputs {
            let message = format!("found {n_inputs} inputs, expected {} as before", stats.n_inputs());
            return Err(Error::config(message).at(path));
        }
        stats.count += count as u64;
        add_to(&mut stats.sum, &sums);
        add_to(&mut stats.sum_squares, &squares);
        stats.max.iter_mut().zip(largest).for_each(|(max, value)| *max = max.max(value));
        if let (Some(sum), Some(gram)) = (&mut stats.gram, &gram) {
            add_to(sum, gram);
        }
        Ok(())
    }

    /// Keeps the first error of a layer that has no way to return one.
    pub fn keep_error(&self, found: Result<()>) {
        if let Err(error) = found {
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    /// The first error of the layers that show their inputs by `observe` of `briquette-nn`: an input that is not finite, a device that
    /// fails.
    pub fn take_error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The statistics gathered so far, by path.
    pub fn stats(&self) -> BTreeMap<String, InputStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The statistics gathered so far, by path; from here on it gathers anew.
    pub fn take_stats(&self) -> BTreeMap<String, InputStats> {
        std::mem::take(&mut *self.stats.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes the statistics to a file: see docs/format.md. An older file is replaced in one step. Where the model is given, the file
    /// has its fingerprint, and the statistics are refused for any other model.
    ///
    /// # Errors
    /// Io.
    pub fn write(&self, path: &Path, model: Option<&Checkpoint>) -> Result<()> {
        let model = model.map(|model| input_stats::fingerprint(model)).transpose()?;
        StatisticsFile { model, layers: self.stats() }.write(path)
    }

    /// Reads a file that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// Input where the file does not hold statistics, Io where it cannot be read.
    pub fn read(path: &Path) -> Result<BTreeMap<String, InputStats>> {
        StatisticsFile::read(path).map(|file| file.layers)
    }
}

fn add_to(sum: &mut [f64], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
}
