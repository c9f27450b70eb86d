//! The kernels for products of codes.

use crate::bitmask::BLOCK_ROWS;
use crate::launch::{self, Floats, Product};
use crate::mma::MmaTile;
use crate::stored::DeviceCodes;
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
    let begins_block = product.place.first_col.is_multiple_of(BLOCK_ROWS);
    match (way, &weights.kept) {
        (Way::Mma(tile), kept) => {
            // Small tiles read sparse weights as they are stored. For larger ones, expanding each block once is faster than
            // once for each tile.
            let is_expanded = kept.is_sparse() && !(tile == MmaTile::SMALL && begins_block);
            launch::product_mma(gpu, product, is_expanded.then(words).as_ref(), tile, y);
        }
        (Way::Warpgroups, _) => return launch::product_wgmma(gpu, product, &words(), y),
        (Way::FewRows, DeviceCodes::Bitmask(blocks)) if begins_block => {
            launch::few_rows_sparse(gpu, product, blocks, y);
        }
        (Way::FewRows, _) => launch::few_rows_codes(gpu, product, &words(), y),
        (Way::Dp4a, _) => launch::product_dp4a(gpu, product, &words(), y),
    }
    Ok(())
}
