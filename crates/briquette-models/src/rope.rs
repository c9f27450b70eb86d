//! Rotary positions: each pair of a head's features is turned by an angle that grows with the position.

use burn::tensor::{Device, Tensor, TensorData};

/// The sines and cosines of `length` positions, `[1, length, 1, width]`.
pub(crate) struct Rotation {
    sin: Tensor<4>,
    cos: Tensor<4>,
}

impl Rotation {
    /// Angles are `position * inverse_frequency`, in f32 as the reference computes them.
    pub(crate) fn new(inverse_frequencies: &[f32], length: usize, device: &Device) -> Self {
        let half = inverse_frequencies.len();
        let mut angles = Vec::with_capacity(length * 2 * half);
        for position in 0..length {
            // Features i and i + half are a pair, turned by the same angle: the list of angles is repeated for the second half.
            for _ in 0..2 {
                angles.extend(inverse_frequencies.iter().map(|frequency| position as f32 * frequency));
            }
        }
        let table = |function: fn(f32) -> f32| {
            let values: Vec<f32> = angles.iter().map(|&angle| function(angle)).collect();
            Tensor::from_data(TensorData::new(values, [1, length, 1, 2 * half]), device)
        };
        Self { sin: table(f32::sin), cos: table(f32::cos) }
    }

    /// Turns `[batch, length, heads, width]`, in its own type.
    pub(crate) fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        let half = x.dims()[3] / 2;
        let [sin, cos] = [&self.sin, &self.cos].map(|table| table.clone().cast(x.dtype()));
        let swapped = Tensor::cat(vec![-x.clone().narrow(3, half, half), x.clone().narrow(3, 0, half)], 3);
        x * cos + swapped * sin
    }
}
