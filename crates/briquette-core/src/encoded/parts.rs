//! The bytes of the parts of a tensor.

use super::Part;

/// The bytes of each part, while encoding or when decoding from memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts([Vec<u8>; Part::ALL.len()]);

impl Parts {
    /// Empties every part, keeping the memory.
    pub fn clear(&mut self) {
        self.0.iter_mut().for_each(Vec::clear);
    }
}

impl std::ops::Index<Part> for Parts {
    type Output = Vec<u8>;

    fn index(&self, part: Part) -> &Vec<u8> {
        &self.0[part as usize]
    }
}

impl std::ops::IndexMut<Part> for Parts {
    fn index_mut(&mut self, part: Part) -> &mut Vec<u8> {
        &mut self.0[part as usize]
    }
}
