//! The head inputs of a decoder, stored until another decoder has run on the same text.

use briquette_core::Result;
use briquette_formats::draft::ScratchFile;
use burn::tensor::{Device, Tensor, TensorData};
use std::path::Path;

/// The maximum size of stored head inputs in bytes; tokens beyond it are not compared.
const MAX_BYTES: u64 = 1 << 30;

/// The head inputs of a decoder by window, in an unnamed file.
///
/// They may not fit in memory beside a model.
pub struct StateFile {
    file: ScratchFile,
    /// The offset, number of values and number of tokens of each window.
    places: Vec<(u64, usize, usize)>,
}

impl StateFile {
    /// Creates an empty file in `directory`.
    ///
    /// # Errors
    /// Io: the file cannot be created.
    pub fn create_in(directory: &Path) -> Result<Self> {
        Ok(Self { file: ScratchFile::create_in(directory)?, places: Vec::new() })
    }

    fn n_bytes(&self) -> u64 {
        self.places.last().map_or(0, |&(start, n, _)| start + 4 * n as u64)
    }

    /// Returns whether the file accepts more windows.
    pub(crate) fn has_room(&self) -> bool {
        self.n_bytes() < MAX_BYTES
    }

    /// Appends the head inputs of windows with `n_tokens` tokens each.
    ///
    /// # Errors
    /// Io: the disk is full.
    pub(crate) fn push(&mut self, windows: &[Vec<f32>], n_tokens: usize) -> Result<()> {
        for values in windows {
            let start = self.n_bytes();
            self.file.write_at(bytemuck::cast_slice(values), start)?;
            self.places.push((start, values.len(), n_tokens));
        }
        Ok(())
    }

    /// Returns the number of windows that both files have. `None` if there are none or their numbers of tokens
    /// differ.
    pub(crate) fn n_shared(&self, other: &Self) -> Option<usize> {
        let n = self.places.len().min(other.places.len());
        let is_same = (0..n).all(|window| self.places[window].2 == other.places[window].2);
        (n > 0 && is_same).then_some(n)
    }

    /// Returns the head inputs of a window, `[1, tokens, width]`.
    pub(crate) fn get(&self, window: usize, device: &Device) -> Result<Tensor<3>> {
        let (start, n, n_tokens) = self.places[window];
        let mut values = vec![0.0_f32; n];
        self.file.read_at(bytemuck::cast_slice_mut(&mut values), start)?;
        Ok(Tensor::from_data(TensorData::new(values, [1, n_tokens, n / n_tokens.max(1)]), device))
    }
}
