//! The range of a group, which its grid covers.

mod absmax;
mod hqq;
mod minmax;
mod mse;
mod percentile;
mod step;
mod weighted;

pub use absmax::absmax;
pub use hqq::hqq;
pub use minmax::minmax;
pub use mse::mse;
pub use percentile::percentile;
pub use step::{row_steps, step};
pub use weighted::weighted;

use briquette_core::{Affine, Grid};
use std::convert::Infallible;

/// The number of weights after which a search calls `check_stop`: 71 candidate ranges for these take tens of
/// milliseconds.
const CHECKED: usize = 1 << 19;

/// How the range of a group is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScaleSearch {
    /// From minus the largest magnitude to plus the largest magnitude.
    AbsMax,
    /// From the smallest weight to the largest.
    MinMax,
    /// The range that contains this share of the weights, from 0.5 to 1.
    Percentile(f64),
    /// The shrunken range with the least squared error.
    Mse,
    /// Half-quadratic quantization: the scale with the least robust error; [`MinMax`](Self::MinMax) on an
    /// asymmetric grid.
    Hqq,
    /// The shrunken range with the least squared output error, weighted by the mean squares of the inputs.
    Weighted,
    /// The same step size everywhere, or a power-of-two multiple for large weights. `None` until a budget sets
    /// it.
    Step(Option<f32>),
    /// For token embeddings: this step size times a factor for each row, which is small for frequent tokens.
    ///
    /// The factors come from a tokenizer and data, so that the scales are always given: see [`row_steps`].
    StepByFrequency(f32),
}

impl ScaleSearch {
    /// Returns all ranges with their names in recipes; `share` is that of `percentile`.
    pub fn named(share: f64) -> [(&'static str, Self); 6] {
        [
            ("absmax", Self::AbsMax),
            ("minmax", Self::MinMax),
            ("percentile", Self::Percentile(share)),
            ("mse", Self::Mse),
            ("hqq", Self::Hqq),
            ("weighted", Self::Weighted),
        ]
    }

    /// Returns whether the range needs input statistics.
    pub fn needs_inputs(self) -> bool {
        self == Self::Weighted
    }

    /// Returns whether the zeros of dropped weights leave the range unchanged.
    pub fn sees_through_zeros(self) -> bool {
        matches!(self, Self::AbsMax | Self::MinMax) || self.is_step()
    }

    /// Returns whether the range is a step size.
    pub fn is_step(self) -> bool {
        matches!(self, Self::Step(_) | Self::StepByFrequency(_))
    }
}

/// The finite weights that share a scale.
#[derive(Debug, Clone, Copy)]
pub struct WeightGroup<'a> {
    /// The weights.
    pub values: &'a [f32],
    /// The mean square of the input of each weight, if known.
    pub mean_square: Option<&'a [f32]>,
}

/// Computes the scale and zero point of a group of finite weights, without input statistics.
pub fn choose(range: ScaleSearch, values: &[f32], grid: Grid) -> Affine {
    let Ok(affine) = try_choose(range, WeightGroup { values, mean_square: None }, grid, &|| Ok::<(), Infallible>(()));
    affine
}

/// Computes the scale and zero point of a group of finite weights, and can be stopped.
///
/// Calls `check_stop` about every half million weights, since the search of a large group takes seconds.
///
/// # Errors
/// The first error of `check_stop`.
pub fn try_choose<E>(
    range: ScaleSearch,
    group: WeightGroup,
    grid: Grid,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<Affine, E> {
    match range {
        ScaleSearch::AbsMax | ScaleSearch::Step(None) => Ok(absmax(group.values, grid)),
        ScaleSearch::Step(Some(size)) | ScaleSearch::StepByFrequency(size) => Ok(step(group.values, size, grid)),
        ScaleSearch::MinMax => Ok(minmax(group.values, grid)),
        ScaleSearch::Percentile(share) => Ok(percentile(group.values, share, grid)),
        ScaleSearch::Mse => mse(group.values, grid, check_stop),
        ScaleSearch::Hqq => hqq(group.values, grid, check_stop),
        ScaleSearch::Weighted => weighted(group, grid, check_stop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::GridKind;
    use proptest::prelude::*;
    use std::cell::Cell;

    fn squared(group: &[f32], affine: Affine, grid: Grid) -> f64 {
        let error = |value: f32| f64::from(value - affine.dequantize(affine.quantize(value, grid)));
        group.iter().map(|&value| error(value).powi(2)).sum()
    }

    const ALL: [ScaleSearch; 6] = [
        ScaleSearch::AbsMax,
        ScaleSearch::MinMax,
        ScaleSearch::Percentile(0.999),
        ScaleSearch::Mse,
        ScaleSearch::Hqq,
        ScaleSearch::Weighted,
    ];

    proptest! {
        #[test]
        fn every_range_keeps_zero_exact_and_the_scale_finite(
            group in prop::collection::vec(-2.0_f32..3.0, 0..70), n_bits in 2_u8..=8,
        ) {
            for kind in [GridKind::Symmetric, GridKind::SymmetricFull, GridKind::Asymmetric] {
                let grid = Grid::new(n_bits, kind).unwrap();
                for range in ALL {
                    let affine = choose(range, &group, grid);
                    prop_assert!(affine.scale.is_finite() && affine.scale > 0.0);
                    prop_assert_eq!(affine.dequantize(affine.quantize(0.0, grid)).to_bits(), 0);
                    prop_assert!(kind == GridKind::Asymmetric || affine.zero == 0);
                }
            }
        }

        #[test]
        fn the_least_squares_range_is_no_worse_than_the_whole_range(group in prop::collection::vec(-2.0_f32..3.0, 1..70)) {
            for (kind, n_bits) in [(GridKind::Symmetric, 3), (GridKind::Asymmetric, 4)] {
                let grid = Grid::new(n_bits, kind).unwrap();
                let whole = squared(&group, minmax(&group, grid), grid);
                prop_assert!(squared(&group, choose(ScaleSearch::Mse, &group, grid), grid) <= whole * (1.0 + 1e-12));
            }
        }

        #[test]
        fn the_least_squares_range_is_the_best_candidate(group in prop::collection::vec(-2.0_f32..3.0, 1..300)) {
            let (min, max) = group.iter().fold((0.0_f32, 0.0_f32), |(min, max), &value| (min.min(value), max.max(value)));
            for (kind, n_bits) in [(GridKind::Symmetric, 4), (GridKind::SymmetricFull, 8), (GridKind::Asymmetric, 4)] {
                let grid = Grid::new(n_bits, kind).unwrap();
                let shrunken = |step: usize| {
                    let share = 1.0 - step as f32 / 100.0;
                    squared(&group, Affine::over(min * share, max * share, grid), grid)
                };
                let least = (0..71).map(shrunken).fold(f64::INFINITY, f64::min);
                prop_assert!(squared(&group, choose(ScaleSearch::Mse, &group, grid), grid) <= least * (1.0 + 1e-12));
            }
        }
    }

    #[test]
    fn a_step_is_doubled_until_the_grid_holds_the_group() {
        let of = |values: &[f32], size| choose(ScaleSearch::Step(Some(size)), values, Grid::INT8).scale;
        assert_eq!(of(&[], 0.25), 0.25);
        assert_eq!(of(&[29.0, -29.7], 0.25), 0.25, "119 steps");
        assert_eq!(of(&[29.0, -29.8], 0.25), 0.5);
        assert_eq!(of(&[1e4, 0.0], 0.25), 128.0);
        let group: Vec<f32> = (0..300).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let affine = choose(ScaleSearch::Step(Some(0.0371)), &group, Grid::INT8);
        assert!((squared(&group, affine, Grid::INT8) / 300.0 / (0.0371_f64.powi(2) / 12.0) - 1.0).abs() < 0.1);
    }

    #[test]
    fn empty_and_zero_groups_have_scale_one() {
        for range in ALL {
            assert_eq!(choose(range, &[], Grid::INT8), Affine::symmetric(1.0));
            assert_eq!(choose(range, &[0.0; 5], Grid::INT8), Affine::symmetric(1.0));
        }
    }

    #[test]
    fn a_search_of_a_large_group_can_be_stopped() {
        let group: Vec<f32> = (0..5 * CHECKED + 3).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        for range in [ScaleSearch::Mse, ScaleSearch::Hqq] {
            let n_asked = Cell::new(0);
            let check_stop = || {
                n_asked.set(n_asked.get() + 1);
                if n_asked.get() < 5 { Ok(()) } else { Err("stop") }
            };
            assert_eq!(
                try_choose(range, WeightGroup { values: &group, mean_square: None }, Grid::INT8, &check_stop),
                Err("stop")
            );
            assert_eq!(n_asked.get(), 5, "the search stops after five calls");
        }
    }

    #[test]
    fn a_percentile_beats_the_whole_range_with_an_outlier() {
        let mut group: Vec<f32> = (0..255).map(|i| ((i * 37) % 101) as f32 / 100.0 - 0.5).collect();
        group.push(20.0);
        let grid = Grid::new(4, GridKind::Asymmetric).unwrap();
        let inliers = |affine| squared(&group[..255], affine, grid);
        let whole = inliers(minmax(&group, grid));
        assert!(inliers(percentile(&group, 0.99, grid)) < 0.1 * whole);
    }
}
