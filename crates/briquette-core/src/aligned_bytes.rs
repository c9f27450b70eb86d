//! Bytes that begin on a cache line.

/// What a cache line has.
const LINE: usize = 64;

/// An array of bytes aligned to 64, which are used again where there is room.
///
/// It starts at the first line of a longer one without alignment: of that the system hands out zeros as they are first touched, by whichever thread,
/// where aligned memory would be zeroed at once by the one that asks.
#[derive(Default)]
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `n` zeros, rounded up to whole lines.
    pub fn zeroed(n: usize) -> Self {
        let len = n.next_multiple_of(LINE);
        let bytes = vec![0; len + LINE];
        Self { start: bytes.as_ptr().align_offset(LINE), bytes, len }
    }

    /// Makes room for `n` bytes, of any values.
    pub fn make_room(&mut self, n: usize) {
        let len = n.next_multiple_of(LINE);
        // One that never had any is not aligned.
        if self.start + len < self.bytes.len() {
            self.len = len;
        } else {
            *self = Self::zeroed(n);
        }
    }

    /// All of them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    /// All of them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }

    /// All of them, as codes.
    pub fn codes(&self) -> &[i8] {
        bytemuck::cast_slice(self.bytes())
    }

    /// All of them, as codes.
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
    fn bytes_begin_on_a_line_however_often_they_are_made_room_for() {
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
