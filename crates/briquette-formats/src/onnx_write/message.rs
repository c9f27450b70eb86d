//! Protobuf messages whose large fields are filled later.

/// Wire types of protobuf.
const VARINT: u64 = 0;
const LENGTH: u64 = 2;
const FIXED_32: u64 = 5;

/// The contents of a part of a message that is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoleContents {
    /// The bytes of a tensor, by its index in the model.
    Tensor(usize),
    /// The hashes of all tensors.
    Hashes,
}

/// A part of a message that is written after its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hole {
    /// The bytes of the message in memory before the hole.
    pub(super) after: usize,
    pub(super) contents: HoleContents,
    pub(super) n_bytes: u64,
}

/// An encoded message. Holes count for its size but are not in `bytes`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WireMessage {
    pub(crate) bytes: Vec<u8>,
    pub(super) holes: Vec<Hole>,
}

impl From<Vec<u8>> for WireMessage {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, holes: Vec::new() }
    }
}

impl WireMessage {
    /// Returns the size of the message, with its holes.
    pub(super) fn n_bytes(&self) -> u64 {
        self.bytes.len() as u64 + self.holes.iter().map(|hole| hole.n_bytes).sum::<u64>()
    }

    /// Appends an integer. Negative numbers take ten bytes, as `int64` does.
    pub(super) fn int(&mut self, field: u64, value: i64) {
        self.varint(field << 3 | VARINT);
        self.varint(value.cast_unsigned());
    }

    /// Appends a 32-bit float.
    pub(super) fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | FIXED_32);
        self.bytes.extend(value.to_le_bytes());
    }

    /// Appends bytes or a string.
    pub(crate) fn text(&mut self, field: u64, value: impl AsRef<[u8]>) {
        self.start(field, value.as_ref().len() as u64);
        self.bytes.extend(value.as_ref());
    }

    /// Appends a message within this one.
    pub(crate) fn message(&mut self, field: u64, inner: &Self) {
        self.start(field, inner.n_bytes());
        let before = self.bytes.len();
        self.bytes.extend(&inner.bytes);
        self.holes.extend(inner.holes.iter().map(|hole| Hole { after: hole.after + before, ..*hole }));
    }

    /// Appends bytes that are written later.
    pub(super) fn hole(&mut self, field: u64, contents: HoleContents, n_bytes: u64) {
        self.start(field, n_bytes);
        self.holes.push(Hole { after: self.bytes.len(), contents, n_bytes });
    }

    fn start(&mut self, field: u64, n_bytes: u64) {
        self.varint(field << 3 | LENGTH);
        self.varint(n_bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_in_the_protobuf_documentation() {
        let mut message = WireMessage::default();
        message.int(1, 150);
        message.text(2, "testing");
        assert_eq!(message.bytes, b"\x08\x96\x01\x12\x07testing");
        let mut negative = WireMessage::default();
        negative.int(1, -1);
        assert_eq!(negative.bytes, [8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        let mut float = WireMessage::default();
        float.float(2, 1.0);
        assert_eq!(float.bytes, [0x15, 0, 0, 0x80, 0x3f]);
    }

    #[test]
    fn a_hole_counts_for_every_message_around_it() {
        let (mut inner, mut outer) = (WireMessage::default(), WireMessage::default());
        inner.int(1, 1);
        inner.hole(9, HoleContents::Tensor(3), 300);
        outer.message(7, &inner);
        outer.int(1, 2);
        // The inner message has 2 + 3 bytes and the hole; its length takes two bytes.
        assert_eq!(outer.bytes, [0x3a, 0xb1, 0x02, 8, 1, 0x4a, 0xac, 0x02, 8, 2]);
        assert_eq!(outer.holes, [Hole { after: 8, contents: HoleContents::Tensor(3), n_bytes: 300 }]);
        assert_eq!(outer.n_bytes(), 310);
    }
}
