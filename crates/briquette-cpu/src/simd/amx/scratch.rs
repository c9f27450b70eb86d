//! Memory beside the tile registers: sums that wait for more inputs, and sparse weights that were expanded.

use crate::simd::operands::PANEL;

/// Groups of 4 inputs in a tile.
const GROUPS: usize = 16;

/// Bytes of weights in a step: 64 inputs of 32 outputs.
pub(super) const STEP_BYTES: usize = 4 * PANEL * GROUPS;
pub(super) type Step = [i8; STEP_BYTES];

/// A step in aligned memory; where inputs do not fill it, zeros follow them.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Padded(pub(super) Step);

/// Sums of up to 32 rows and 32 outputs.
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[i32; PANEL]; 32]);

/// Memory for a panel, used again for the next.
#[derive(Default)]
pub(super) struct TileScratch {
    pub(super) sums: Vec<Sums>,
    /// Sparse weights of a chunk, expanded.
    pub(super) steps: Vec<Padded>,
}
