//! A scale and zero point: `value = (code - zero) * scale`.

use crate::Grid;

/// `value = (code - zero) * scale`, with `scale` finite and above zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Affine {
    /// The step between neighbouring codes.
    pub scale: f32,
    /// The code that means 0.0; 0 on symmetric grids.
    pub zero: i8,
}

impl Affine {
    /// Returns a scale with zero point 0.
    pub const fn symmetric(scale: f32) -> Self {
        Self { scale, zero: 0 }
    }

    /// Returns the scale and zero point with which `grid` covers `min..=max`, widened to include 0.
    ///
    /// Symmetric: `scale = max(|min|, |max|) / steps`. Asymmetric: `scale = (max - min) / (2^b - 1)`, `zero =
    /// clamp(min_code - round(min / scale))`. The scale is 1 if the range contains only zeros, or if it is so
    /// small that its scale would round to 0; its weights then become 0.
    ///
    /// # Panics
    /// If a bound is not finite.
    pub fn over(min: f32, max: f32, grid: Grid) -> Self {
        assert!(min.is_finite() && max.is_finite(), "a range is finite");
        let (min, max) = (min.min(0.0), max.max(0.0));
        if grid.is_asymmetric() {
            let steps = f32::from(grid.max_code()) - f32::from(grid.min_code());
            // Computed in f32 to give the same bits as PyTorch. The width of the range may overflow f32.
            let width = max - min;
            let scale = if width.is_finite() { width / steps } else { max / steps - min / steps };
            if scale <= 0.0 {
                return Self { scale: 1.0, zero: 0 };
            }
            let zero = f32::from(grid.min_code()) - (min / scale).round_ties_even();
            Self { scale, zero: zero.clamp(f32::from(grid.min_code()), f32::from(grid.max_code())) as i8 }
        } else {
            let scale = max.max(-min) / grid.symmetric_steps();
            Self::symmetric(if scale > 0.0 { scale } else { 1.0 })
        }
    }

    /// Returns `clamp(round(value / scale) + zero)`, with halves rounded to even.
    pub fn quantize(self, value: f32, grid: Grid) -> i8 {
        let (low, high) = self.code_bounds(grid);
        ((value / self.scale).clamp(low, high).round_ties_even() as i32 + i32::from(self.zero)) as i8
    }

    /// Returns `(code - zero) * scale`.
    pub fn dequantize(self, code: i8) -> f32 {
        (i32::from(code) - i32::from(self.zero)) as f32 * self.scale
    }

    /// Returns the smallest and largest code relative to the zero point: the bounds for `value / scale`.
    pub fn code_bounds(self, grid: Grid) -> (f32, f32) {
        let zero = i32::from(self.zero);
        ((i32::from(grid.min_code()) - zero) as f32, (i32::from(grid.max_code()) - zero) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GridKind;

    #[test]
    fn zero_is_exact_on_every_grid() {
        for kind in [GridKind::Symmetric, GridKind::SymmetricFull, GridKind::Asymmetric] {
            for n_bits in 2..=8 {
                let grid = Grid::new(n_bits, kind).unwrap();
                for (min, max) in [(-1.0, 3.0), (0.5, 2.0), (-2.0, -1.0), (0.0, 0.0), (-1e-42, 1e-42), (-3e38, 3e38)] {
                    let affine = Affine::over(min, max, grid);
                    assert!(affine.scale.is_finite() && affine.scale > 0.0);
                    let zero = affine.dequantize(affine.quantize(0.0, grid));
                    assert_eq!(zero.to_bits(), 0, "{kind:?} {n_bits} {min} {max}");
                }
            }
        }
    }

    #[test]
    fn the_error_is_at_most_half_a_step_inside_the_range() {
        let grid = Grid::new(5, GridKind::Asymmetric).unwrap();
        let affine = Affine::over(-1.0, 2.0, grid);
        for i in 0..=300 {
            let value = -1.0 + i as f32 / 100.0;
            let error = (affine.dequantize(affine.quantize(value, grid)) - value).abs();
            assert!(error <= affine.scale * 1.0001, "{value}: {error}");
        }
    }
}
