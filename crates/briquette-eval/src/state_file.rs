//! What the head of a decoder took, kept until another decoder has read the same text.

use briquette_core::Result;
use briquette_formats::draft::ScratchFile;
use burn::tensor::{Device, Tensor, TensorData};
use std::path::Path;

/// The most bytes that are kept of what heads take: the tokens beyond are not compared.
const MAX_BYTES: u64 = 1 << 30;

/// What the head of a decoder took, window by window, in a file without a name: a text has more than fits beside a model.
pub struct StateFile {
    file: ScratchFile,
    /// Where each window begins, its values, and its tokens.
    places: Vec<(u64, usize, usize)>,
}

impl StateFile {
    /// None yet; the file is in `directory`.
    ///
    /// # Errors
    /// Io.
    pub fn create_in(directory: &Path) -> Result<Self> {
        Ok(Self { file: ScratchFile::create_in(directory)?, places: Vec::new() })
    }

    fn n_bytes(&self) -> u64 {
        self.places.last().map_or(0, |&(start, n, _)| start + 4 * n as u64)
    }

    /// Whether more are kept.
    pub(crate) fn has_room(&self) -> bool {
        self.n_bytes() < MAX_BYTES
    }

    /// Keeps those of the next windows, of so many tokens each.
    ///
    /// # Errors
    /// Io, where the disk is full.
    pub(crate) fn push(&mut self, windows: &[Vec<f32>], n_tokens: usize) -> Result<()> {
        for values in windows {
            let start = self.n_bytes();
            self.file.write_at(bytemuck::cast_slice(values), start)?;
            self.places.push((start, values.len(), n_tokens));
        }
        Ok(())
    }

    /// Whether both have kept as many tokens of the windows that both have, of which there are so many.
    pub(crate) fn n_shared(&self, other: &Self) -> Option<usize> {
        let n = self.places.len().min(other.places.len());
        let is_same = (0..n).all(|window| self.places[window].2 == other.places[window].2);
        (n > 0 && is_same).then_some(n)
    }

    /// Those of a window, `[1, tokens, width]`.
    pub(crate) fn get(&self, window: usize, device: &Device) -> Result<Tensor<3>> {
        let (start, n, n_tokens) = self.places[window];
        let mut values = vec![0.0_f32; n];
        self.file.read_at(bytemuck::cast_slice_mut(&mut values), start)?;
        Ok(Tensor::from_data(TensorData::new(values, [1, n_tokens, n / n_tokens.max(1)]), device))
    }
}
