//! Chooses integer grids for weights: how many bits, which range, who shares a scale. It never reads files and does
//! not know burn.
//!
//! ```
//! use briquette_quant::{Range, Scheme};
//!
//! let scheme: Scheme = "int4-g128".parse().unwrap();
//! assert_eq!((scheme.weights.grid.n_bits(), scheme.weights.range), (4, Range::AbsMax));
//! ```

pub mod range;
mod scheme;

pub use range::Range;
pub use scheme::{Activations, QuantSpec, Scheme, UnknownScheme};

use briquette_core::{Grouping, QuantParams};

/// Scale and zero point for every group of `weights`, `[n_rows, n_cols]` row-major, as `spec` asks.
///
/// # Panics
/// If the group size does not divide `n_cols`, or a weight is not finite.
pub fn quantize(weights: &[f32], n_cols: usize, spec: &QuantSpec) -> QuantParams {
    let per_row = spec.grouping.per_row(n_cols).expect("the group size divides the row");
    let group = match spec.grouping {
        Grouping::Tensor => weights.len(),
        Grouping::Row | Grouping::Group(_) => n_cols.checked_div(per_row).unwrap_or(0),
    };
    let affine = |group| spec.scale.round(range::choose(spec.range, group, spec.grid));
    let affines = if group == 0 {
        vec![affine(&[]); usize::from(spec.grouping == Grouping::Tensor)]
    } else {
        weights.chunks(group).map(affine).collect()
    };
    QuantParams::new(spec.grid, spec.grouping, n_cols, affines)
}
