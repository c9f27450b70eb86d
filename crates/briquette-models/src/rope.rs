//! Rotary position embeddings.

use crate::attention::by_head;
use briquette_cpu::float::RotaryTable;
use briquette_ops::fused;
use burn::tensor::{Device, Tensor, TensorData};
use std::sync::{Arc, OnceLock};

/// Rotation angles of some positions.
pub(crate) struct Rotation {
    turns: Arc<RotaryTable>,
    /// Sines and cosines `[tokens, width / 2]`, for devices other than the CPU.
    tables: OnceLock<[Tensor<2>; 2]>,
}

impl Rotation {
    /// Computes the angles `position * inverse_frequency`, in f32 like the reference.
    pub(crate) fn new(inverse_frequencies: &[f32], positions: impl IntoIterator<Item = usize>) -> Self {
        Self { turns: Arc::new(RotaryTable::new(inverse_frequencies, positions)), tables: OnceLock::new() }
    }

    /// Rotates `[batch, length, heads * width]` in its own type.
    ///
    /// There is one position per token, either for all sequences together or for each sequence.
    pub(crate) fn apply(&self, x: Tensor<3>, n_heads: usize) -> Tensor<3> {
        if fused::fuses(&x) {
            return fused::rotate(x, n_heads, Arc::clone(&self.turns));
        }
        if fused::on_gpu(&x) {
            let tables = self.tables_on(x.dims()[2] / n_heads, &x.device());
            return fused::rotate_by_tables(x, tables, n_heads);
        }
        self.apply_by_burn(x, n_heads)
    }

    fn apply_by_burn(&self, x: Tensor<3>, n_heads: usize) -> Tensor<3> {
        let ([batch, length, all], device) = (x.dims(), x.device());
        let width = all / n_heads;
        let [sin, cos] = self.tables_on(width, &device);
        let n = sin.dims()[0] / length;
        let [sin, cos] = [sin, cos].map(|table| table.reshape([n, length, 1, width / 2]).cast(x.dtype()));
        // Features `i` and `i + half` are a pair with one angle.
        let (x, half) = (by_head(x, n_heads), width / 2);
        let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
        let turned = [a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin];
        Tensor::cat(turned.into(), 3).reshape([batch, length, all])
    }

    fn tables_on(&self, width: usize, device: &Device) -> [Tensor<2>; 2] {
        let table = |values: &[f32]| {
            Tensor::from_data(TensorData::new(values.to_vec(), [values.len() / (width / 2), width / 2]), device)
        };
        self.tables.get_or_init(|| [table(self.turns.sin()), table(self.turns.cos())]).clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use burn::tensor::{Distribution, Tolerance};

    #[test]
    fn fused_rotary_equals_burn_operations_forward_and_backward() {
        let device = Device::flex().autodiff();
        for positions in [vec![0, 1, 2], vec![4, 5, 6, 0, 1, 2]] {
            let rotation = Rotation::new(&[1.0, 0.3], positions);
            let x = Tensor::<3>::random([2, 3, 8], Distribution::Normal(0.0, 1.0), &device).require_grad();
            let [one_pass, plain] = [rotation.apply(x.clone(), 2), rotation.apply_by_burn(x.clone(), 2)];
            let [of_one_pass, of_plain] =
                [&one_pass, &plain].map(|y| x.grad(&y.clone().powi_scalar(3).sum().backward()).unwrap().into_data());
            one_pass.into_data().assert_approx_eq::<f32>(&plain.into_data(), Tolerance::absolute(1e-6));
            of_one_pass.assert_approx_eq::<f32>(&of_plain, Tolerance::absolute(1e-4));
        }
    }
}
