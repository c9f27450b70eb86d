//! Tensors of PyTorch files that are not contiguous: strided views, and compressed storages.

use crate::io::InputFile;
use crate::pytorch::pickle::View;
use crate::pytorch::stored::{Stored, unpack};
use briquette_core::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest ratio of the span of a strided view to its own bytes at which the span is read in one call.
const MAX_AROUND: u64 = 8;

/// A tensor that is gathered on each read. Its view is known to lie within its storage.
#[derive(Debug)]
pub struct Gathered {
    view: View,
    stored: Stored,
    /// Whether the checksum of its storage was verified.
    is_sound: AtomicBool,
}

impl Gathered {
    /// Creates a tensor from a checked view of a storage.
    pub(crate) fn new(view: View, stored: Stored) -> Self {
        Self { view, stored, is_sound: AtomicBool::new(false) }
    }

    /// Reads the whole storage once if it has a CRC-32. The bytes of the view are not enough to verify it.
    fn check_sum(&self, file: &InputFile) -> Result<()> {
        if !self.is_sound.load(Ordering::Acquire) {
            file.sum_at(self.stored.start).map_or(Ok(()), |sum| file.read_rest(sum))?;
            self.is_sound.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Reads the bytes of the tensor.
    ///
    /// # Errors
    /// - Input: the contents differ from what the file declares.
    /// - Io: the file cannot be read.
    pub fn read(&self, file: &InputFile) -> Result<Vec<u8>> {
        let width = self.view.dtype.n_bits() / 8;
        let mut out = vec![0; self.view.shape.iter().product::<usize>() * width];
        let first = first_byte(&self.view);
        if out.is_empty() {
            return Ok(out);
        }
        if self.stored.is_plain {
            self.check_sum(file)?;
        }
        let reach = (reach(&self.view).unwrap_or(0) - self.view.offset) * width as u64;
        if !self.stored.is_plain {
            let all = unpack(file, self.stored)?;
            stretches(&self.view, width, &mut out, |at, out| copy(&all, first + at, out))?;
        } else if reach <= MAX_AROUND.saturating_mul(out.len() as u64) {
            let mut around = vec![0; reach as usize];
            file.read_at(self.stored.start + first, &mut around)?;
            stretches(&self.view, width, &mut out, |at, out| copy(&around, at, out))?;
        } else {
            let start = self.stored.start + first;
            stretches(&self.view, width, &mut out, |at, out| file.read_at(start + at, out))?;
        }
        Ok(out)
    }
}

/// Returns the byte of a storage's entry at which a view begins.
pub(crate) fn first_byte(view: &View) -> u64 {
    view.storage.first * view.storage.width() + view.offset * (view.dtype.n_bits() / 8) as u64
}

/// Returns the index after the last element of a view.
pub(crate) fn reach(view: &View) -> Option<u64> {
    if view.shape.contains(&0) {
        return Some(0);
    }
    let mut last = view.offset;
    for (&extent, &stride) in view.shape.iter().zip(&view.strides) {
        last = last.checked_add(u64::try_from((extent - 1).checked_mul(stride)?).ok()?)?;
    }
    last.checked_add(1)
}

/// Returns the first axis from which on the elements are contiguous and row-major; 0 for a contiguous view.
pub(crate) fn first_dense_axis(view: &View) -> usize {
    let mut step = 1;
    for (axis, (&extent, &stride)) in view.shape.iter().zip(&view.strides).enumerate().rev() {
        if extent != 1 && stride != step {
            return axis + 1;
        }
        step *= extent;
    }
    0
}

/// Calls `read` for each contiguous run of a view, with its byte offset from the view's first element and the
/// part of `out` to fill.
fn stretches(
    view: &View,
    width: usize,
    out: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let n_axes = first_dense_axis(view);
    let n_together = view.shape[n_axes..].iter().product::<usize>() * width;
    let mut index = vec![0; n_axes];
    let mut at = 0;
    for stretch in out.chunks_exact_mut(n_together) {
        read((at * width) as u64, stretch)?;
        for axis in (0..n_axes).rev() {
            index[axis] += 1;
            at += view.strides[axis];
            if index[axis] < view.shape[axis] {
                break;
            }
            at -= index[axis] * view.strides[axis];
            index[axis] = 0;
        }
    }
    Ok(())
}

fn copy(bytes: &[u8], at: u64, out: &mut [u8]) -> Result<()> {
    let found = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.get(..out.len()));
    out.copy_from_slice(found.ok_or_else(|| Error::bug("a checked view reaches beyond its storage"))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pytorch::pickle::TorchStorage;
    use briquette_core::DType;

    /// Reads a view of a storage of `n` numbers of 16 bits, in a file that begins with three other bytes.
    fn gathered(n: u16, offset: u64, shape: &[usize], strides: &[usize]) -> Vec<u16> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let bytes: Vec<u8> = [9; 3].into_iter().chain((0..n).flat_map(u16::to_le_bytes)).collect();
        std::fs::write(&path, bytes).unwrap();
        let n = u64::from(n);
        let storage = TorchStorage { key: "0".into(), dtype: Some(DType::I16), n_stored: n, first: 0, n_elements: n };
        let view = View { storage, dtype: DType::I16, offset, shape: shape.into(), strides: strides.into() };
        let found = Gathered::new(view, Stored::plain(3, 2 * n)).read(&InputFile::open(&path).unwrap()).unwrap();
        found.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
    }

    #[test]
    fn views_are_gathered_in_row_major_order() {
        assert_eq!(gathered(6, 0, &[2, 3], &[1, 2]), [0, 2, 4, 1, 3, 5]);
        assert_eq!(gathered(8, 1, &[2, 2], &[4, 1]), [1, 2, 5, 6]);
        assert_eq!(gathered(3, 2, &[3], &[0]), [2, 2, 2]);
        assert_eq!(gathered(24, 0, &[2, 1, 3, 2], &[12, 99, 4, 1]), [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21]);
        assert_eq!(gathered(4, 3, &[], &[]), [3]);
        assert_eq!(gathered(4, 0, &[0, 2], &[1, 1]), [0_u16; 0]);
        // Far apart, so read run by run.
        assert_eq!(gathered(1000, 1, &[2, 3], &[900, 1]), [1, 2, 3, 901, 902, 903]);
    }
}
