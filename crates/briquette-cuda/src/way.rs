//! The kernels for products of codes.

use crate::bitmask::BLOCK_ROWS;
use crate::launch::{self, Floats, Product};
use crate::mma::MmaTile;
use crate::wgmma;
use std::fmt;

/// A kernel for products of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Matrix instructions.
    Mma(MmaTile),
    /// Matrix instructions of Hopper.
    Warpgroups,
    /// Dot products, several outputs per warp.
    FewRows,
    /// Dot products, one output per unit.
    Dp4a,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mma(tile) => write!(f, "{}x{} tiles", tile.extents()[0], tile.extents()[1]),
            Self::Warpgroups => write!(f, "{}x{} tiles of warpgroups", wgmma::ROWS, wgmma::COLS),
            Self::FewRows => f.write_str("few rows"),
            Self::Dp4a => f.write_str("dot products"),
        }
    }
}

/// Computes a product with the given kernel.
///
/// # Errors
/// The kernel does not support the device or the extents.
pub(crate) fn multiply_by(way: Way, product: &Product, y: &Floats) -> Result<(), String> {
    if product.place.is_empty(product.codes.n_rows) {
        return Ok(());
    }
    let weights = product.weights;
    let (gpu, words) = (weights.gpu(), || launch::dense_words(weights));
    match way {
        Way::Mma(tile) => {
            // Small tiles read sparse weights as they are stored, unless the product begins inside a block of the bitmask.
            // For larger ones, expanding each block once is faster than once for each tile.
            let is_expanded = tile != MmaTile::SMALL || !product.place.first_col.is_multiple_of(BLOCK_ROWS);
            launch::product_mma(gpu, product, (weights.is_sparse() && is_expanded).then(words).as_ref(), tile, y);
        }
        Way::Warpgroups => return launch::product_wgmma(gpu, product, &words(), y),
        Way::FewRows => launch::few_rows_codes(gpu, product, &words(), y),
        Way::Dp4a => launch::product_dp4a(gpu, product, &words(), y),
    }
    Ok(())
}
