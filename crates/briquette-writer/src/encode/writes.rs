//! Writes parts to files. Consecutive bytes of small tensors are written together.

use briquette_core::encoded::{Part, Parts};
use briquette_core::{Error, Result};
use briquette_formats::foreign::{BlockLayout, ForeignLayout, weave};
use std::borrow::Cow;

/// More bytes are written immediately.
const MAX_SMALL: usize = 64 << 10;
/// Ranges that are buffered at a time. Parts of one element size follow each other, and there are few sizes.
const N_STRETCHES: usize = 8;

/// The destination of the parts of tensors.
pub trait Sink: Sync {
    /// Returns the location and layout of a part; `None` if it is not stored.
    ///
    /// # Errors
    /// Bug: the layout has no place for the part.
    fn place(&self, tensor: usize, part: Part) -> Result<Option<FilePlace>>;

    /// Writes bytes to a file at an offset.
    ///
    /// # Errors
    /// Io: the file cannot be written.
    fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Reads written bytes back.
    ///
    /// # Errors
    /// Io: the file cannot be read.
    fn read(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<()>;
}

/// The location of a part in a file.
#[derive(Debug, Clone, Copy)]
pub struct FilePlace {
    /// Index of the file.
    pub file: usize,
    /// The offset at which the part starts in the file.
    pub start: u64,
    /// The layout of the part, if another program defines it.
    pub layout: Option<ForeignLayout>,
}

/// The offset of the next bytes of each part, from the start of the part.
pub(super) type PartOffsets = [u64; Part::ALL.len()];

/// A sink that discards parts, to compute hashes only.
#[derive(Debug, Clone, Copy)]
pub struct Nowhere;

impl Sink for Nowhere {
    fn place(&self, _tensor: usize, _part: Part) -> Result<Option<FilePlace>> {
        Ok(None)
    }

    fn write(&self, _file: usize, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read(&self, _file: usize, _offset: u64, _out: &mut [u8]) -> Result<()> {
        Err(Error::bug("nothing was written"))
    }
}

/// Buffered ranges of files that were not written yet.
pub(super) struct Writes<'a> {
    sink: &'a dyn Sink,
    pending: Vec<(usize, u64, Vec<u8>)>,
    spare: SpareBuffers,
}

/// Buffers for reuse, because a range grows by hundreds of parts.
pub(super) type SpareBuffers = Vec<Vec<u8>>;

impl<'a> Writes<'a> {
    /// Creates an empty buffer.
    pub(super) fn new(sink: &'a dyn Sink, spare: SpareBuffers) -> Self {
        Self { sink, pending: Vec::new(), spare }
    }

    /// Moves all bytes of a part, and of parts interleaved with it, out of `parts`, and advances their offsets
    /// `next`.
    pub(super) fn take(&mut self, tensor: usize, part: Part, next: &mut PartOffsets, parts: &mut Parts) -> Result<()> {
        let place = self.sink.place(tensor, part)?;
        if let Some(place @ FilePlace { layout: Some(ForeignLayout::BlockLayout(blocks)), .. }) = place {
            let start = place.start + blocks.start_of(next[part as usize]);
            let woven = self.woven_at(tensor, place, parts)?;
            let bytes: Vec<(BlockLayout, &[u8])> =
                woven.iter().map(|(part, blocks)| (*blocks, &*parts[*part])).collect();
            self.write(place.file, start, weave(&bytes)?.into())?;
            woven.into_iter().for_each(|(part, _)| pass(part, next, parts));
        } else {
            if let Some(place) = place {
                self.write_part(part, place, next[part as usize], &parts[part])?;
            }
            pass(part, next, parts);
        }
        Ok(())
    }

    /// Returns the nonempty parts that are interleaved at this location.
    fn woven_at(&self, tensor: usize, place: FilePlace, parts: &Parts) -> Result<Vec<(Part, BlockLayout)>> {
        let mut woven = Vec::new();
        for part in Part::ALL.into_iter().filter(|part| !parts[*part].is_empty()) {
            match self.sink.place(tensor, part)? {
                Some(FilePlace { file, start, layout: Some(ForeignLayout::BlockLayout(blocks)) })
                    if (file, start) == (place.file, place.start) =>
                {
                    woven.push((part, blocks));
                }
                _ => {}
            }
        }
        Ok(woven)
    }

    /// Writes bytes of a part without interleaving, at `offset` in the part.
    pub(super) fn put(&mut self, tensor: usize, part: Part, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.sink.place(tensor, part)? {
            Some(place) => self.write_part(part, place, offset, bytes),
            None => Ok(()),
        }
    }

    /// Writes bytes of a part at a known location.
    fn write_part(&mut self, part: Part, place: FilePlace, offset: u64, bytes: &[u8]) -> Result<()> {
        let (offset, bytes) = match place.layout {
            Some(layout) => {
                let (offset, bytes) = layout
                    .write(offset, bytes)
                    .ok_or_else(|| Error::bug(format!("part {part:?} cannot be written alone as {layout:?}")))?;
                (offset, bytes.into())
            }
            None => (offset, bytes.into()),
        };
        self.write(place.file, place.start + offset, bytes)
    }

    /// Writes bytes to a file, or buffers them until more follow.
    fn write(&mut self, file: usize, offset: u64, bytes: Cow<[u8]>) -> Result<()> {
        if bytes.len() > MAX_SMALL {
            return self.sink.write(file, offset, &bytes);
        }
        let continues =
            |(its, start, buffered): &(usize, u64, Vec<u8>)| *its == file && start + buffered.len() as u64 == offset;
        match self.pending.iter().position(continues) {
            Some(place) => {
                let (_, _, buffered) = &mut self.pending[place];
                buffered.extend_from_slice(&bytes);
                if buffered.len() > MAX_SMALL {
                    self.write_out(place)?;
                }
            }
            None => {
                if self.pending.len() == N_STRETCHES {
                    self.write_out(0)?;
                }
                let mut buffered = self.spare.pop().unwrap_or_default();
                buffered.extend_from_slice(&bytes);
                self.pending.push((file, offset, buffered));
            }
        }
        Ok(())
    }

    /// Writes the buffered range with this index.
    fn write_out(&mut self, place: usize) -> Result<()> {
        let (file, start, mut buffered) = self.pending.remove(place);
        self.sink.write(file, start, &buffered)?;
        buffered.clear();
        self.spare.push(buffered);
        Ok(())
    }

    /// Writes all buffered bytes, and returns the buffers.
    pub(super) fn finish(mut self) -> Result<SpareBuffers> {
        while !self.pending.is_empty() {
            self.write_out(0)?;
        }
        Ok(self.spare)
    }
}

/// Advances the offset of a written part, and clears it.
fn pass(part: Part, next: &mut PartOffsets, parts: &mut Parts) {
    next[part as usize] += parts[part].len() as u64;
    parts[part].clear();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// One file, in which the parts of a tensor are 1,000,000 bytes apart.
    #[derive(Default)]
    struct InMemory(Mutex<(usize, Vec<u8>)>);

    impl Sink for InMemory {
        fn place(&self, tensor: usize, part: Part) -> Result<Option<FilePlace>> {
            let start = part as u64 * 1_000_000 + tensor as u64 * 100;
            Ok(Some(FilePlace { file: 0, start, layout: None }))
        }

        fn write(&self, _file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
            let mut written = self.0.lock().unwrap();
            written.0 += 1;
            let end = offset as usize + bytes.len();
            let n = written.1.len().max(end);
            written.1.resize(n, 0);
            written.1[offset as usize..end].copy_from_slice(bytes);
            Ok(())
        }

        fn read(&self, _file: usize, offset: u64, out: &mut [u8]) -> Result<()> {
            out.copy_from_slice(&self.0.lock().unwrap().1[offset as usize..offset as usize + out.len()]);
            Ok(())
        }
    }

    #[test]
    fn consecutive_parts_are_written_together() {
        let sink = InMemory::default();
        let mut writes = Writes::new(&sink, Vec::new());
        let byte = |tensor: usize, part: Part| (tensor * 7 + part as usize) as u8 | 1;
        for tensor in 0..5000 {
            for part in [Part::Values, Part::Bitmask, Part::Scale] {
                writes.put(tensor, part, 0, &[byte(tensor, part); 60]).unwrap();
                writes.put(tensor, part, 60, &[byte(tensor, part); 40]).unwrap();
            }
        }
        writes.put(0, Part::Zero, 0, &[9; 100_000]).unwrap();
        writes.finish().unwrap();
        let (n_writes, bytes) = sink.0.into_inner().unwrap();
        assert!(n_writes < 40, "{n_writes}");
        for part in [Part::Values, Part::Bitmask, Part::Scale] {
            let start = part as usize * 1_000_000;
            let of = |tensor: usize| &bytes[start + tensor * 100..start + tensor * 100 + 100];
            assert!((0..5000).all(|tensor| of(tensor).iter().all(|found| *found == byte(tensor, part))), "{part:?}");
        }
        assert_eq!(bytes[Part::Zero as usize * 1_000_000 + 99_999], 9);
    }

    #[test]
    fn scattered_parts_are_written() {
        let sink = InMemory::default();
        let mut writes = Writes::new(&sink, Vec::new());
        (0..100).rev().for_each(|tensor| writes.put(tensor, Part::Weight, 0, &[tensor as u8; 100]).unwrap());
        writes.finish().unwrap();
        let (n_writes, bytes) = sink.0.into_inner().unwrap();
        assert_eq!(n_writes, 100);
        assert!((0..100).all(|tensor| bytes[tensor * 100..tensor * 100 + 100] == [tensor as u8; 100]));
    }
}
