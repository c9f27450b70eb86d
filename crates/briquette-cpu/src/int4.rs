//! Weight-only int4: f32 activations times 4-bit codes.

use crate::activations::ActivationElement;
use crate::float_rows::for_float_rows;
use crate::linear::assert_shapes;
use crate::panels::threads_for;
use crate::simd::{self, Int4Panel, OutputBlock, PANEL};
use briquette_core::simd::SimdLevel;

/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 20;

/// int4 weights `[n_out, n_in]`, with one scale for each `group` inputs of each output.
///
/// Panels have 32 outputs and 16 bytes for each input: output `j` in the low half of byte `j`, output `j + 16`
/// in the high half, as `code + 8`. Scales are `[n_out / 32][n_in / group][32]`.
#[derive(Clone)]
pub struct PackedInt4 {
    n_out: usize,
    n_in: usize,
    group: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl PackedInt4 {
    /// Packs row-major `codes` `[n_out, n_in]` from -8 to 7 with the values `codes[o, i] * scales[o, i /
    /// group]`.
    ///
    /// The last group may be shorter.
    ///
    /// # Panics
    /// If the lengths do not match the shape, a code has more than 4 bits, or `group` is 0.
    pub fn new(codes: &[i8], scales: &[f32], n_out: usize, n_in: usize, group: usize) -> Self {
        assert!(group > 0, "groups of 0 inputs");
        let n_groups = n_in.div_ceil(group);
        assert_eq!(codes.len(), n_out * n_in, "{} codes for weights of [{n_out}, {n_in}]", codes.len());
        assert_eq!(scales.len(), n_out * n_groups, "{} scales for [{n_out}, {n_groups}]", scales.len());
        assert!(codes.iter().all(|code| (-8..8).contains(code)), "codes of 4 bits");
        let n_panels = n_out.div_ceil(PANEL);
        // Padding is the code 0, which is stored as 8.
        let mut packed = vec![0x88; n_panels * n_in * PANEL / 2];
        let mut panel_scales = vec![0.0; n_panels * n_groups * PANEL];
        for row in 0..n_out {
            let (panel, lane) = (row / PANEL, row % PANEL);
            for (col, &code) in codes[row * n_in..(row + 1) * n_in].iter().enumerate() {
                let (byte, shift) = (&mut packed[(panel * n_in + col) * 16 + lane % 16], lane / 16 * 4);
                *byte = *byte & !(15 << shift) | ((code + 8) as u8) << shift;
            }
            for (g, &scale) in scales[row * n_groups..(row + 1) * n_groups].iter().enumerate() {
                panel_scales[(panel * n_groups + g) * PANEL + lane] = scale;
            }
        }
        Self { n_out, n_in, group, codes: packed, scales: panel_scales }
    }

    /// Returns the number of outputs.
    pub const fn n_out(&self) -> usize {
        self.n_out
    }

    /// Returns the number of inputs.
    pub const fn n_in(&self) -> usize {
        self.n_in
    }

    /// Returns the size in memory in bytes: half a byte per weight and 4 per scale.
    pub fn n_bytes(&self) -> usize {
        self.codes.len() + 4 * self.scales.len()
    }

    /// Dequantizes the weights of one output.
    ///
    /// # Panics
    /// If `row` is not an output, or `out` does not have the length `n_in`.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n_out && out.len() == self.n_in, "output {row} of {self:?}");
        let (panel, lane) = (self.panel(row / PANEL), row % PANEL);
        let groups = out.chunks_mut(self.group).zip(panel.codes.chunks(16 * self.group));
        for ((out, codes), scales) in groups.zip(panel.scales.as_chunks::<PANEL>().0) {
            for (out, codes) in out.iter_mut().zip(codes.as_chunks::<16>().0) {
                *out = f32::from((codes[lane % 16] >> (lane / 16 * 4) & 15) as i8 - 8) * scales[lane];
            }
        }
    }

    /// Returns the weights as f32, `[n_out, n_in]`.
    pub fn to_floats(&self) -> Vec<f32> {
        let (codes, scales) = self.codes();
        let (n_in, n_groups) = (self.n_in.max(1), self.n_in.div_ceil(self.group));
        let scale = |i: usize| scales[i / n_in * n_groups + i % n_in / self.group];
        codes.iter().enumerate().map(|(i, &code)| f32::from(code) * scale(i)).collect()
    }

    /// Returns the codes `[n_out, n_in]` and the scales `[n_out, n_in / group]`.
    pub fn codes(&self) -> (Vec<i8>, Vec<f32>) {
        let n_groups = self.n_in.div_ceil(self.group);
        let code = |row: usize, col: usize| {
            let (panel, lane) = (row / PANEL, row % PANEL);
            let byte = self.codes[(panel * self.n_in + col) * 16 + lane % 16];
            (byte >> (lane / 16 * 4) & 15) as i8 - 8
        };
        let scale = |row: usize, group: usize| self.scales[(row / PANEL * n_groups + group) * PANEL + row % PANEL];
        let codes = (0..self.n_out * self.n_in).map(|i| code(i / self.n_in, i % self.n_in)).collect();
        (codes, (0..self.n_out * n_groups).map(|i| scale(i / n_groups, i % n_groups)).collect())
    }

    fn panel(&self, index: usize) -> Int4Panel<'_> {
        let (n_codes, n_scales) = (self.n_in * PANEL / 2, self.n_in.div_ceil(self.group) * PANEL);
        Int4Panel {
            codes: &self.codes[index * n_codes..(index + 1) * n_codes],
            scales: &self.scales[index * n_scales..(index + 1) * n_scales],
            group: self.group,
        }
    }
}

impl std::fmt::Debug for PackedInt4 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedInt4 [{}, {}] by {}", self.n_out, self.n_in, self.group)
    }
}

/// Computes `y[m, o] = Σ_g scale[o, g] * Σ_{i in g} x[m, i] * code[o, i] + bias[o]` in f32, inputs in order.
///
/// A NaN or infinity in a row of `x` gives outputs that are not finite, as in f32.
///
/// # Panics
/// If `x` is not `[n_rows, n_in]`, `bias` not `[n_out]` or `y` not `[n_rows, n_out]`.
pub fn int4_linear<T: ActivationElement>(
    level: SimdLevel,
    x: &[T],
    n_rows: usize,
    weights: &PackedInt4,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    assert_shapes(x.len(), n_rows, [weights.n_out, weights.n_in], bias, y.len());
    let n_threads = threads_for(n_rows * weights.n_in * weights.n_out, PAYS);
    for_float_rows(x, weights.n_in, OutputBlock::new(y, n_rows, weights.n_out), n_threads, &|rows, index, out| {
        let bias = bias.map_or(&[][..], |bias| &bias[index * PANEL..][..out.n_cols()]);
        simd::multiply_int4_panel(level, rows, weights.panel(index), bias, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn agrees(m: usize, k: usize, n: usize, group: usize, seed: u64) {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let codes: Vec<i8> = (0..n * k).map(|_| (next() % 16) as i8 - 8).collect();
        let n_groups = k.div_ceil(group);
        let mut floats = |n: usize| (0..n).map(|_| next() as f32 / (1_u64 << 30) as f32 - 1.0).collect::<Vec<f32>>();
        let (scales, x, bias) = (floats(n * n_groups), floats(m * k), floats(n));
        let packed = PackedInt4::new(&codes, &scales, n, k, group);
        let mut row = vec![f32::NAN; k];
        for (o, floats) in packed.to_floats().chunks(k.max(1)).enumerate() {
            packed.read_row(o, &mut row);
            assert_eq!(row, floats, "output {o} of K {k} N {n} by {group}");
        }
        let mut slow = vec![0.0; m * n];
        int4_linear(SimdLevel::SCALAR, &x, m, &packed, Some(&bias), &mut slow);
        for (i, &value) in slow.iter().enumerate() {
            let (row, o) = (i / n, i % n);
            let weight = |col: usize| f64::from(codes[o * k + col]) * f64::from(scales[o * n_groups + col / group]);
            let exact: f64 = (0..k).map(|col| f64::from(x[row * k + col]) * weight(col)).sum();
            assert!((exact + f64::from(bias[o]) - f64::from(value)).abs() < 1e-4 * (1.0 + k as f64), "{value} {exact}");
        }
        for level in SimdLevel::available() {
            let mut fast = vec![f32::NAN; m * n];
            int4_linear(level, &x, m, &packed, Some(&bias), &mut fast);
            assert_eq!(fast, slow, "{level} M {m} K {k} N {n} by {group}");
        }
    }

    #[test]
    fn every_path_gives_the_bits_of_the_reference_at_awkward_shapes() {
        for m in [0, 1, 2, 7, 13, 250] {
            for k in [0, 1, 31, 32, 33, 130] {
                for n in [0, 1, 16, 31, 33, 65] {
                    agrees(m, k, n, 32, (m + k * 3 + n * 7) as u64);
                }
            }
        }
    }

    #[test]
    fn int4_takes_half_a_byte_per_weight_and_four_per_scale() {
        let packed = PackedInt4::new(&vec![-8; 64 * 256], &[1.0; 128], 64, 256, 128);
        assert_eq!(packed.n_bytes(), 64 * 256 / 2 + 4 * 128);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_path_gives_the_bits_of_the_reference(m in 0_usize..20, k in 0_usize..300, n in 0_usize..70, group in 1_usize..260, seed: u64) {
            agrees(m, k, n, group, seed);
        }
    }
}
