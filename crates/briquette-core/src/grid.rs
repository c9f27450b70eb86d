//! Integer grids: which integers a code may be.

use serde::{Deserialize, Serialize};

/// How a grid uses its codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GridKind {
    /// Zero point 0, codes `-(2^(b-1) - 1) ..= 2^(b-1) - 1`, `scale = absmax / (2^(b-1) - 1)`.
    Symmetric,
    /// Zero point 0, all codes `-2^(b-1) ..= 2^(b-1) - 1`, `scale = absmax / (2^(b-1) - 0.5)`, as in
    /// compressed-tensors.
    SymmetricFull,
    /// An integer zero point, all codes, `scale = (max - min) / (2^b - 1)` over a range that includes 0.
    Asymmetric,
}

/// A grid of `2^bits` integers, 2 to 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    n_bits: u8,
    kind: GridKind,
}

impl Grid {
    /// Symmetric int8, codes -127 to 127.
    pub const INT8: Self = Self { n_bits: 8, kind: GridKind::Symmetric };

    /// Returns a grid of 2 to 8 bits, or `None` for any other width.
    pub fn new(n_bits: u8, kind: GridKind) -> Option<Self> {
        (2..=8).contains(&n_bits).then_some(Self { n_bits, kind })
    }

    /// Returns the width of a code in bits.
    pub const fn n_bits(self) -> u8 {
        self.n_bits
    }

    /// Returns which codes the grid uses, and whether it has a zero point.
    pub const fn kind(self) -> GridKind {
        self.kind
    }

    /// Returns the smallest code.
    pub const fn min_code(self) -> i8 {
        let half = 1_i16 << (self.n_bits - 1);
        match self.kind {
            GridKind::Symmetric => (1 - half) as i8,
            GridKind::SymmetricFull | GridKind::Asymmetric => (-half) as i8,
        }
    }

    /// Returns the largest code.
    pub const fn max_code(self) -> i8 {
        ((1_i16 << (self.n_bits - 1)) - 1) as i8
    }

    /// Returns the divisor of the largest magnitude that gives the scale of a symmetric grid.
    pub fn symmetric_steps(self) -> f32 {
        match self.kind {
            GridKind::SymmetricFull => f32::from(self.max_code()) + 0.5,
            GridKind::Symmetric | GridKind::Asymmetric => f32::from(self.max_code()),
        }
    }

    /// Returns whether the zero point may differ from 0.
    pub const fn is_asymmetric(self) -> bool {
        matches!(self.kind, GridKind::Asymmetric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrow_grid_is_balanced_and_the_full_grid_is_not() {
        let codes = |n_bits, kind| Grid::new(n_bits, kind).map(|grid| (grid.min_code(), grid.max_code()));
        assert_eq!(codes(8, GridKind::Symmetric), Some((-127, 127)));
        assert_eq!(codes(8, GridKind::SymmetricFull), Some((-128, 127)));
        assert_eq!(codes(4, GridKind::Asymmetric), Some((-8, 7)));
        assert_eq!(codes(2, GridKind::Symmetric), Some((-1, 1)));
        assert_eq!(codes(1, GridKind::Symmetric), None);
        assert_eq!(codes(9, GridKind::Symmetric), None);
    }
}
