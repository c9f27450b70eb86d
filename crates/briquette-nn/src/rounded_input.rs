//! Fake-quantized layer inputs for training with int8 activations.

use crate::{Attached, TrainedScales};
use briquette_core::Grouping;
use briquette_cpu::{ActivationGrid, MAX_DEPTH};
use briquette_methods::quant::Activations;
use briquette_ops::compressed;
use briquette_ops::fused::masked::ops::{fake_quantizes, with_floats};
use burn::module::Param;
use burn::tensor::Tensor;

/// Fake-quantizes the input of a layer as integer kernels will quantize it.
///
/// Each row of `n_cols` values gets 256 codes of its own scale, as in [`briquette_cpu::quantize_rows`].
/// Gradients pass straight through. Returns `x` unchanged if the weight has no rule with quantized activations,
/// or the rule has not begun.
pub(crate) fn rounded_input<const D: usize, const W: usize>(
    x: Tensor<D>,
    weight: &Param<Tensor<W>>,
    n_cols: usize,
) -> Tensor<D> {
    if let Some(scales) = weight.reparameterization::<TrainedScales>() {
        return scales.rounded(x, n_cols);
    }
    let Some(attached) = weight.reparameterization::<Attached>() else { return x };
    // Layers that are too deep for integer kernels run with float activations: see `DynamicSpec`.
    // So do convolutions with several scales per output: their codes are decoded.
    let is_decoded = W > 2 && matches!(attached.form().map(|form| form.grouping), Some(Grouping::Group(_)));
    let is_served = attached.rows().n_cols <= MAX_DEPTH && !is_decoded;
    let Some(grid) = grid_of(attached).filter(|_| is_served && x.shape().num_elements() > 0) else { return x };
    if !fake_quantizes(&x) {
        return by_tensors(x, attached, n_cols, grid);
    }
    match with_floats(&attached.scales(), |scales| scales.iter().any(|scale| *scale != 0.0)) {
        Some(false) => x,
        _ => compressed::fake_quantize_activations(x, n_cols, grid),
    }
}

/// Returns the grid of activations.
fn grid_of(attached: &Attached) -> Option<ActivationGrid> {
    match attached.form()?.activations {
        Activations::Float | Activations::Static => None,
        Activations::DynamicSymmetric => Some(ActivationGrid::Symmetric),
        Activations::DynamicAsymmetric => Some(ActivationGrid::Asymmetric),
    }
}

/// Computes the fused CPU pass with burn's operations, in f32.
fn by_tensors<const D: usize>(x: Tensor<D>, attached: &Attached, n_cols: usize, grid: ActivationGrid) -> Tensor<D> {
    let dims = x.dims();
    let is_unset = attached.scales().abs().max().equal_elem(0.0).reshape([1; D]).expand(dims);
    let rounded = compressed::round_activations(x.clone(), n_cols, grid).mask_where(is_unset, x.clone().detach());
    (x.clone() - x.detach()) + rounded
}

#[cfg(all(test, feature = "flex"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Compression, Quantize, Schedule};
    use burn::nn::LinearConfig;
    use burn::tensor::{Device, Distribution};

    #[test]
    fn burn_operations_quantize_activations_like_the_kernel() {
        let device = Device::flex();
        for (scheme, has_begun) in [
            ("int8-dynamic", true),
            ("int8-dynamic-sym", true),
            ("int8-dynamic", false),
            ("int4-g8-dynamic", true),
            ("int4-dynamic-sym", true),
        ] {
            let rule = Quantize::new("weight", scheme).unwrap();
            let rule = if has_begun { rule } else { rule.on(Schedule::constant(3..9)) };
            let layer = Compression::new().quantize(rule).attach(LinearConfig::new(40, 3).init(&device)).unwrap();
            let attached = layer.weight.reparameterization::<Attached>().unwrap();
            let x = Tensor::<2>::random([9, 40], Distribution::Normal(0.5, 1.0), &device);
            let rows = [x.clone(), Tensor::zeros([1, 40], &device), Tensor::full([1, 40], 3.0, &device)];
            let x = Tensor::cat(rows.to_vec(), 0);
            let one = rounded_input(x.clone(), &layer.weight, 40);
            let other = by_tensors(x.clone(), attached, 40, grid_of(attached).unwrap());
            let apart = |a: Tensor<2>, b: Tensor<2>| (a - b).abs().max().into_scalar::<f32>();
            assert!(apart(one.clone(), other) < 1e-5, "{scheme}");
            assert_eq!(apart(one, x) > 1e-3, has_begun, "{scheme}");
        }
    }
}
