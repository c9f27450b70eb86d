//! Replaces the operations on rows of CUDA devices in builds without CUDA: no tensor is on one.

use crate::fused::ops::{KeptHeads, RowNorm, ScoreRows};
use burn::tensor::{Bool, Tensor};

pub(super) const fn on_gpu<const D: usize>(_: &Tensor<D>) -> bool {
    false
}

pub(super) fn norm<const D: usize>(
    _: Tensor<D>,
    _: Option<Tensor<D>>,
    _: Tensor<1>,
    _: Option<Tensor<1>>,
    _: RowNorm,
) -> Tensor<D> {
    unreachable!("no tensor is on a GPU")
}

pub(super) fn softmax(_: Tensor<4>, _: Option<Tensor<2, Bool>>, _: ScoreRows) -> Tensor<4> {
    unreachable!("no tensor is on a GPU")
}

pub(super) const fn attends<const D: usize>(_: &Tensor<D>, _: usize) -> bool {
    false
}

pub(super) fn attend<const D: usize>(
    _: Tensor<3>,
    _: [Tensor<D>; 2],
    _: Option<Tensor<2, Bool>>,
    _: ScoreRows,
    _: KeptHeads,
) -> Tensor<3> {
    unreachable!("no tensor is on a GPU")
}

pub(super) fn rotate(_: Tensor<3>, _: [Tensor<2>; 2], _: usize) -> Tensor<3> {
    unreachable!("no tensor is on a GPU")
}
