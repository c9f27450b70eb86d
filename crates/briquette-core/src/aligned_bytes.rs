//! Byte arrays that are aligned to cache lines.

/// Bytes in a cache line.
const LINE: usize = 64;

/// A reusable array of bytes with an alignment of 64.
///
/// It starts at the first aligned byte of a longer, unaligned allocation. The system zeroes the pages of such
/// an allocation when a thread first touches them. It would zero an aligned allocation at once, in the thread
/// that requests it.
#[derive(Default)]
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// Returns `n` zeros, rounded up to whole cache lines.
    pub fn zeroed(n: usize) -> Self {
        let len = n.next_multiple_of(LINE);
        let bytes = vec![0; len + LINE];
        Self { start: bytes.as_ptr().align_offset(LINE), bytes, len }
    }

    /// Resizes the array to at least `n` bytes, whose values are unspecified.
    pub fn make_room(&mut self, n: usize) {
        let len = n.next_multiple_of(LINE);
        // An array that never had memory is not aligned.
        if self.start + len < self.bytes.len() {
            self.len = len;
        } else {
            *self = Self::zeroed(n);
        }
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    /// Returns all bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }

    /// Returns all bytes as codes.
    pub fn codes(&self) -> &[i8] {
        bytemuck::cast_slice(self.bytes())
    }

    /// Returns all bytes as codes.
    pub fn codes_mut(&mut self) -> &mut [i8] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }
}

impl Clone for AlignedBytes {
    fn clone(&self) -> Self {
        let mut clone = Self::zeroed(self.len);
        clone.bytes_mut().copy_from_slice(self.bytes());
        clone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_aligned_after_resizing() {
        let mut bytes = AlignedBytes::default();
        for n in [0, 1, 64, 65, 10, 1000, 0, 999, 100_000] {
            bytes.make_room(n);
            assert_eq!((bytes.bytes().len(), bytes.bytes().as_ptr().align_offset(LINE)), (n.next_multiple_of(LINE), 0));
            bytes.bytes_mut().fill(7);
            assert_eq!(bytes.clone().bytes(), bytes.bytes());
        }
        assert!(AlignedBytes::zeroed(130).codes().iter().all(|&code| code == 0));
    }
}
