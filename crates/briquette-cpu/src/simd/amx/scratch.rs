//! Memory beside the tile registers: partial sums, and expanded sparse weights.

use crate::simd::operands::PANEL;

/// Groups of 4 inputs in a tile.
const GROUPS: usize = 16;

/// Bytes of weights in a step: 64 inputs of 32 outputs.
pub(super) const STEP_BYTES: usize = 4 * PANEL * GROUPS;
pub(super) type Step = [i8; STEP_BYTES];

/// A step in aligned memory, padded with zeros.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Padded(pub(super) Step);

/// Sums of up to 32 rows and 32 outputs.
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[i32; PANEL]; 32]);

/// Memory for a panel, reused for the next panel.
#[derive(Default)]
pub(super) struct TileScratch {
    pub(super) sums: Vec<Sums>,
    /// Expanded sparse weights of a chunk.
    pub(super) steps: Vec<Padded>,
}
