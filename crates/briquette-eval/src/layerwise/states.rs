//! The values between two blocks: in memory up to a bound, beyond it in a file.

use crate::samples::{RunBatch, Samples, run_batches};
use briquette_core::memory::MemoryLimit;
use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_formats::draft::ScratchFile;
use briquette_models::data::{Data, DataSpec};
use briquette_models::{Arch, BlockState, HostValue, Input};
use burn::tensor::Device;
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

    /// Reads the input of a checkpoint's network, such as its tokenizer.
    ///
    /// # Errors
    /// - Refused: reading it could exceed the limit.
    /// - See [`Arch::input`].
    pub(crate) fn input(&self, arch: Arch, checkpoint: &Checkpoint) -> Result<Input> {
        input_within(self.limit, arch, checkpoint)
    }

    /// Divides data into batches; see [`run_batches`].
    ///
    /// # Errors
    /// - Refused: the tokens of a text would exceed the limit.
    /// - See [`run_batches`].
    pub(crate) fn batches(
        &self,
        arch: Arch,
        input: &mut Input,
        (data, spec): (&Data, &DataSpec),
        samples: Samples,
    ) -> Result<Vec<RunBatch>> {
        if let (Some(limit), Data::Document(text)) = (self.limit.filter(MemoryLimit::is_of_host), data) {
            // Windows are copied.
            limit.check_before("encode the text", 2 * input.tokenizer()?.encoding_bytes(text)?)?;
        }
        run_batches(arch, input, data, spec, samples)
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

/// Reads the input of a checkpoint's network within a limit.
///
/// # Errors
/// See [`Room::input`].
pub(crate) fn input_within(limit: Option<MemoryLimit>, arch: Arch, checkpoint: &Checkpoint) -> Result<Input> {
    if let Some(limit) = limit.filter(MemoryLimit::is_of_host) {
        let what = format!("read the tokenizer of {}", checkpoint.path().display());
        limit.check_before(&what, Arch::input_bytes(checkpoint))?;
    }
    arch.input(checkpoint)
}

/// The states of each batch: the values between two blocks.
pub(super) struct States {
    max_bytes: u64,
    directory: PathBuf,
    batches: Vec<StoredState>,
    /// Bytes of the states in memory.
    n_bytes: u64,
    on_disk: Option<OnDisk>,
}

/// The extents of the values of a batch, and the place of their elements.
struct StoredState {
    dims: Vec<Vec<usize>>,
    place: StatePlace,
}

enum StatePlace {
    Memory(Vec<Vec<f32>>),
    /// The offset in the file, and how many bytes there are reserved.
    Disk {
        start: u64,
        reserved: u64,
    },
}

/// States in a file.
struct OnDisk {
    file: ScratchFile,
    end: u64,
}

impl States {
    pub(super) fn with_room(room: Room) -> Self {
        let (max_bytes, directory) = (room.max_bytes.unwrap_or(u64::MAX), room.directory.to_path_buf());
        Self { max_bytes, directory, batches: Vec::new(), n_bytes: 0, on_disk: None }
    }

    /// Sets the state of the next batch, or replaces the state of an earlier batch.
    pub(super) fn set(&mut self, batch: usize, state: &BlockState) -> Result<()> {
        self.put(batch, state.to_host()?)
    }

    /// Copies the state of a batch from other states.
    pub(super) fn copy_from(&mut self, batch: usize, others: &Self) -> Result<()> {
        self.put(batch, others.values(batch)?)
    }

    fn put(&mut self, batch: usize, state: Vec<HostValue>) -> Result<()> {
        let (dims, values): (Vec<Vec<usize>>, Vec<Vec<f32>>) = state.into_iter().unzip();
        let n_bytes = bytes_of(&values);
        let mut freed = None;
        match self.batches.get(batch).map(|stored| &stored.place) {
            Some(StatePlace::Memory(old)) => self.n_bytes -= bytes_of(old),
            Some(&StatePlace::Disk { start, reserved }) => freed = Some((start, reserved)),
            None => {}
        }
        let is_new_on_disk = freed.is_none() && batch >= self.batches.len() && self.on_disk.is_some();
        let place = match freed.is_none() && !is_new_on_disk && self.n_bytes + n_bytes <= self.max_bytes {
            true => {
                self.n_bytes += n_bytes;
                StatePlace::Memory(values)
            }
            false => self.write(&values, freed.filter(|(_, reserved)| *reserved >= n_bytes))?,
        };
        let stored = StoredState { dims, place };
        match self.batches.get_mut(batch) {
            Some(old) => *old = stored,
            None => self.batches.push(stored),
        }
        Ok(())
    }

    /// Writes values at a reserved place of the file, or at its end.
    fn write(&mut self, values: &[Vec<f32>], at: Option<(u64, u64)>) -> Result<StatePlace> {
        if self.on_disk.is_none() {
            self.on_disk = Some(OnDisk { file: ScratchFile::create_in(&self.directory)?, end: 0 });
        }
        let on_disk = self.on_disk.as_mut().ok_or_else(|| Error::bug("a scratch file that was just created"))?;
        let (start, reserved) = at.unwrap_or((on_disk.end, bytes_of(values)));
        let mut next = start;
        for value in values {
            on_disk.file.write_at(bytemuck::cast_slice(value), next)?;
            next += 4 * value.len() as u64;
        }
        on_disk.end = on_disk.end.max(start + reserved);
        Ok(StatePlace::Disk { start, reserved })
    }

    /// Returns the state of a batch.
    ///
    /// # Errors
    /// Io: the file cannot be read. Bug: the batch has no state.
    pub(super) fn get(&self, batch: usize, device: &Device) -> Result<BlockState> {
        Ok(BlockState::from_host(self.values(batch)?, device))
    }

    fn values(&self, batch: usize) -> Result<Vec<HostValue>> {
        let StoredState { dims, place } =
            self.batches.get(batch).ok_or_else(|| Error::bug("a batch without a state"))?;
        let values = match (place, &self.on_disk) {
            (StatePlace::Memory(values), _) => values.clone(),
            (StatePlace::Disk { start, .. }, Some(on_disk)) => on_disk.read(dims, *start)?,
            (StatePlace::Disk { .. }, None) => return Err(Error::bug("a state in a file that is not open")),
        };
        Ok(dims.iter().cloned().zip(values).collect())
    }

    /// Returns the number of elements of the largest state.
    pub(super) fn most_elements(&self) -> u64 {
        let n = |dims: &Vec<usize>| dims.iter().map(|extent| *extent as u64).product::<u64>();
        self.batches.iter().map(|stored| stored.dims.iter().map(n).sum()).max().unwrap_or(0)
    }
}

fn bytes_of(values: &[Vec<f32>]) -> u64 {
    values.iter().map(|value| 4 * value.len() as u64).sum()
}

impl OnDisk {
    /// Reads the values of these extents.
    fn read(&self, dims: &[Vec<usize>], start: u64) -> Result<Vec<Vec<f32>>> {
        let mut next = start;
        let one = |dims: &Vec<usize>| {
            let mut values = vec![0.0; dims.iter().product()];
            self.file.read_at(bytemuck::cast_slice_mut(&mut values), next)?;
            next += 4 * values.len() as u64;
            Ok(values)
        };
        dims.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a state of two values for a batch of `n` items.
    fn state(seed: usize, n: usize) -> Vec<HostValue> {
        let values = |n: usize| (0..n).map(|i| (seed * 100 + i) as f32).collect();
        vec![(vec![n, 2, 2], values(n * 4)), (vec![2 * n], values(2 * n))]
    }

    #[test]
    fn states_beyond_the_bound_are_read_back_from_a_file() {
        let (directory, device) = (tempfile::tempdir().unwrap(), Device::flex());
        for (max_bytes, n_in_memory) in [(None, 4), (Some(0), 0), (Some(60), 1), (Some(100), 2)] {
            let mut states = States::with_room(Room { max_bytes, ..Room::new(directory.path()) });
            for round in 0..2 {
                for batch in 0..4 {
                    let state = BlockState::from_host(state(10 * round + batch, batch + 1), &device);
                    states.set(batch, &state).unwrap();
                }
                for batch in [3, 0, 2, 1] {
                    let found = states.get(batch, &device).unwrap().to_host().unwrap();
                    assert_eq!(found, state(10 * round + batch, batch + 1));
                }
            }
            let in_memory = states.batches.iter().filter(|stored| matches!(stored.place, StatePlace::Memory(_)));
            assert_eq!(in_memory.count(), n_in_memory, "24, 48, 72 and 96 bytes within {max_bytes:?}");
        }
    }

    #[test]
    fn states_may_grow_and_shrink_between_blocks() {
        let directory = tempfile::tempdir().unwrap();
        for max_bytes in [None, Some(0), Some(100)] {
            let mut states = States::with_room(Room { max_bytes, ..Room::new(directory.path()) });
            for sizes in [[1, 2, 3], [4, 4, 1], [2, 1, 6]] {
                for (batch, n) in sizes.into_iter().enumerate() {
                    states.put(batch, state(batch, n)).unwrap();
                }
                for (batch, n) in sizes.into_iter().enumerate() {
                    assert_eq!(states.values(batch).unwrap(), state(batch, n), "{sizes:?} within {max_bytes:?}");
                }
                assert_eq!(states.most_elements(), 6 * *sizes.iter().max().unwrap() as u64);
                assert!(states.n_bytes <= max_bytes.unwrap_or(u64::MAX));
            }
        }
    }
}
