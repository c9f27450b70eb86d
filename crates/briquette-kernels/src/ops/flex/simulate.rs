//! Masks, grids and rounded activations.

use super::tensor::{change, elements};
use crate::activations::ActivationGrid;
use crate::ops::simulate::{SimulateGrads, SimulateOps, Simulation};
use crate::path::active_path;
use crate::quantize_rows::round_rows;
use crate::simulate::{keep_grads, learned_grads, simulate};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::tensor::TensorData;

/// The bytes of a mask; none where there is no mask.
fn bytes(dropped: &FlexTensor, has_mask: bool) -> &[u8] {
    if has_mask { elements(dropped) } else { &[] }
}

impl SimulateOps for Flex {
    fn simulate_weights(
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        zeros: FloatTensor<Self>,
        how: Simulation,
    ) -> FloatTensor<Self> {
        let [weights, dropped, scales, zeros] = [weights, dropped, scales, zeros].map(|tensor| tensor.to_contiguous());
        let grid = how.grid.as_ref().map(|grid| {
            let zeros: &[f32] = if grid.grid.is_asymmetric() { elements(&zeros) } else { &[] };
            (grid, elements::<f32>(&scales), zeros)
        });
        let shape = weights.layout().shape().clone();
        let out = simulate(elements(&weights), bytes(&dropped, how.has_mask), grid);
        FlexTensor::from_data(TensorData::new(out, shape))
    }

    fn simulate_activations(x: FloatTensor<Self>, n_cols: usize, grid: ActivationGrid) -> FloatTensor<Self> {
        change(x, |x| round_rows(active_path(), x, n_cols, grid))
    }
}

impl SimulateGrads for Flex {
    fn kept_grad(dy: FloatTensor<Self>, dropped: BoolTensor<Self>) -> FloatTensor<Self> {
        let dropped = dropped.to_contiguous();
        change(dy, |dy| keep_grads(dy, elements(&dropped)))
    }

    fn learned_grads(
        dy: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        how: Simulation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [weights, dropped, scales] = [weights, dropped, scales].map(|tensor| tensor.to_contiguous());
        let shape = scales.layout().shape().clone();
        let form = how.grid.expect("scales that are learned have a grid");
        let (dropped, mut of_scales) = (bytes(&dropped, how.has_mask), Vec::new());
        let dy = change(dy, |dy| {
            of_scales = learned_grads(&form, elements(&weights), dropped, elements(&scales), dy);
        });
        (dy, FlexTensor::from_data(TensorData::new(of_scales, shape)))
    }
}
