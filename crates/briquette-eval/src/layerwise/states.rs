//! Hidden states between two blocks: in memory up to a bound, beyond it in a file.

use briquette_core::Result;
use briquette_core::memory::MemoryLimit;
use briquette_formats::draft::ScratchFile;
use briquette_nn::module::read_f32;
use burn::tensor::{FloatDType, Tensor};
use std::path::{Path, PathBuf};

/// The memory of a layerwise run, and the directory for hidden states beyond it.
#[derive(Debug, Clone, Copy)]
pub struct Room<'a> {
    /// The maximum bytes of hidden states in memory; `None` for no bound.
    pub max_bytes: Option<u64>,
    /// The limit on total memory; `None` for no limit.
    pub limit: Option<MemoryLimit<'a>>,
    /// The directory of a file for the remaining hidden states.
    pub directory: &'a Path,
}

impl<'a> Room<'a> {
    /// Creates room without a limit.
    pub fn new(directory: &'a Path) -> Self {
        Self { max_bytes: None, limit: None, directory }
    }

    /// Creates room within a limit; hidden states take at most a quarter of it.
    pub fn within(limit: Option<MemoryLimit<'a>>, directory: &'a Path) -> Self {
        Self { max_bytes: limit.map(|limit| limit.n_bytes / 4), limit, directory }
    }

    /// Returns the room that remains beside weights of `n_bytes`.
    ///
    /// Hidden states take at most half of it: computation needs the rest.
    ///
    /// # Errors
    /// Refused: the weights alone exceed the limit.
    pub(super) fn beside_weights(self, what: &str, n_bytes: u64) -> Result<Self> {
        let Some(limit) = self.limit else { return Ok(self) };
        limit.check_before(what, n_bytes)?;
        let most = limit.left().saturating_sub(n_bytes) / 2;
        Ok(Self { max_bytes: Some(self.max_bytes.map_or(most, |max_bytes| max_bytes.min(most))), ..self })
    }
}

/// The hidden states of each batch.
pub(super) struct States {
    max_bytes: u64,
    directory: PathBuf,
    in_memory: Vec<Vec<f32>>,
    n_bytes: u64,
    on_disk: Option<OnDisk>,
}

/// Hidden states in a file, from batch `first` on.
struct OnDisk {
    file: ScratchFile,
    first: usize,
    /// The offset of each batch in the file, and its number of values.
    places: Vec<(u64, usize)>,
}

impl States {
    pub(super) fn with_room(room: Room) -> Self {
        let (max_bytes, directory) = (room.max_bytes.unwrap_or(u64::MAX), room.directory.to_path_buf());
        Self { max_bytes, directory, in_memory: Vec::new(), n_bytes: 0, on_disk: None }
    }

    /// Sets the hidden states of the next batch, or replaces those of an earlier batch with the same size.
    pub(super) fn set(&mut self, batch: usize, state: Tensor<3>) -> Result<()> {
        let values = read_f32(state.cast(FloatDType::F32), "hidden states")?;
        if let Some(held) = self.in_memory.get_mut(batch) {
            *held = values;
            return Ok(());
        }
        let n_bytes = 4 * values.len() as u64;
        if self.on_disk.is_none() && self.n_bytes + n_bytes <= self.max_bytes {
            self.n_bytes += n_bytes;
            self.in_memory.push(values);
            return Ok(());
        }
        if self.on_disk.is_none() {
            let (file, first) = (ScratchFile::create_in(&self.directory)?, self.in_memory.len());
            self.on_disk = Some(OnDisk { file, first, places: Vec::new() });
        }
        self.on_disk.as_mut().map_or(Ok(()), |on_disk| on_disk.set(batch, &values))
    }

    /// Returns the hidden states of a batch.
    pub(super) fn get(&self, batch: usize) -> Result<Vec<f32>> {
        match (self.in_memory.get(batch), &self.on_disk) {
            (Some(values), _) => Ok(values.clone()),
            (None, Some(on_disk)) => on_disk.get(batch),
            (None, None) => Ok(Vec::new()),
        }
    }
}

impl OnDisk {
    fn set(&mut self, batch: usize, values: &[f32]) -> Result<()> {
        let place = batch - self.first;
        if place == self.places.len() {
            let start = self.places.last().map_or(0, |&(start, n)| start + 4 * n as u64);
            self.places.push((start, values.len()));
        }
        self.file.write_at(bytemuck::cast_slice(values), self.places[place].0)
    }

    fn get(&self, batch: usize) -> Result<Vec<f32>> {
        let (start, n) = self.places[batch - self.first];
        let mut values = vec![0.0; n];
        self.file.read_at(bytemuck::cast_slice_mut(&mut values), start)?;
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn hidden_states_beyond_the_bound_are_read_back_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let device = Device::flex();
        let state = |seed: usize, n: usize| {
            let values: Vec<f32> = (0..n * 6).map(|i| (seed * 100 + i) as f32).collect();
            (Tensor::<3>::from_data(TensorData::new(values.clone(), [n, 2, 3]), &device), values)
        };
        for (max_bytes, n_in_memory) in [(None, 4), (Some(0), 0), (Some(60), 1), (Some(100), 2)] {
            let mut states = States::with_room(Room { max_bytes, ..Room::new(directory.path()) });
            for round in 0..2 {
                for batch in 0..4 {
                    states.set(batch, state(10 * round + batch, batch + 1).0).unwrap();
                }
                for batch in [3, 0, 2, 1] {
                    assert_eq!(states.get(batch).unwrap(), state(10 * round + batch, batch + 1).1);
                }
            }
            assert_eq!(states.in_memory.len(), n_in_memory, "24, 48, 72 and 96 bytes within {max_bytes:?}");
        }
    }
}
