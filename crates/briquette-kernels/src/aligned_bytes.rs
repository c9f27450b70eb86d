//! Bytes that begin on a cache line.

/// What a cache line has.
const LINE: usize = 64;

/// A growable array of bytes aligned to 64.
///
/// It starts at the first line of a longer one without alignment: of that the system hands out zeros as they are first touched, by whichever thread,
/// where aligned memory would be zeroed at once by the one that asks.
#[derive(Default)]
pub(crate) struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `n` zeros, rounded up to whole lines.
    pub(crate) fn zeroed(n: usize) -> Self {
        let len = n.next_multiple_of(LINE);
        let bytes = vec![0; len + LINE];
        Self { start: bytes.as_ptr().align_offset(LINE), bytes, len }
    }

    /// Makes room for `n` bytes; those that were there keep their values, new ones are 0.
    pub(crate) fn resize(&mut self, n: usize) {
        let (kept, len) = (self.len, n.next_multiple_of(LINE));
        // One that never had any is not aligned.
        if self.start + len < self.bytes.len() {
            self.len = len;
            self.bytes_mut()[kept.min(len)..].fill(0);
        } else {
            let mut grown = Self::zeroed(n);
            grown.bytes_mut()[..kept].copy_from_slice(self.bytes());
            *self = grown;
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }

    pub(crate) fn codes(&self) -> &[i8] {
        bytemuck::cast_slice(self.bytes())
    }

    pub(crate) fn codes_mut(&mut self) -> &mut [i8] {
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
