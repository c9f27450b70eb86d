//! What linear and convolution need of weights, however those are kept.

use crate::path::Path;
use crate::simd::{Block, Columns, RowBlock};

/// int8 weights `[n_out, n_in]` in panels of 32 outputs: [`PackedInt8`](crate::PackedInt8) or
/// [`SparseInt8`](crate::SparseInt8).
pub trait Int8Weights: sealed::Panels {
    /// Outputs.
    fn n_out(&self) -> usize;
    /// Inputs.
    fn n_in(&self) -> usize;
    /// Bytes held.
    fn n_bytes(&self) -> usize;
}

pub(crate) mod sealed {
    use super::*;

    pub trait Panels: Sync {
        /// What panel `index` is finished with.
        #[expect(private_interfaces, reason = "the trait is sealed")]
        fn columns(&self, index: usize, bias: Option<&[f32]>) -> Columns;

        /// Multiplies rows by panel `index`; `is_last` says that the one after it will not be next.
        #[expect(private_interfaces, reason = "the trait is sealed")]
        fn multiply(&self, path: Path, rows: RowBlock, index: usize, is_last: bool, columns: &Columns, out: Block);

        /// Writes the codes of panel `index` out, zeros too.
        fn unpack(&self, index: usize, codes: &mut [i8]);

        /// The scale of an output.
        fn scale(&self, row: usize) -> f32;
    }
}
