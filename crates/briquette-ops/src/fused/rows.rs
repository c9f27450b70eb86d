//! CUDA devices, with kernels for whole rows: norms, softmax of scores, rotary positions.

use crate::cube_tensor::{Like, floats, vector};
use crate::fused::ops::{RowNorm, ScoreRows};
use briquette_cuda::{Gpu, NormWeights, ScoreMask, normed, rotated, softmax_of};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, CubeDevice, Dispatch, DispatchDevice, backend_extension};
use burn::tensor::{Bool, DType, Tensor};
use burn_cubecl::CubeBackend;

/// Operations on rows of floats. A missing tensor is passed as any tensor, which is not read.
#[backend_extension(Cube, Fusion)]
pub trait RowOps: Backend {
    /// Computes the norm of `x + shortcut` over the last dimension.
    #[fusion(dtype = x, shape = x)]
    fn norm_rows(
        x: FloatTensor<Self>,
        shortcut: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        norm: RowNorm,
    ) -> FloatTensor<Self>;

    /// Computes softmax of scores over the last dimension, hiding keys where `hidden` is 1.
    #[fusion(dtype = scores, shape = scores)]
    fn softmax_rows(
        scores: FloatTensor<Self>,
        hidden: FloatTensor<Self>,
        of: ScoreRows,
        hides: bool,
    ) -> FloatTensor<Self>;

    /// Rotates the heads of rows by the angles of their tokens.
    #[fusion(dtype = x, shape = x)]
    fn rotate_rows(
        x: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        n_heads: usize,
    ) -> FloatTensor<Self>;
}

impl RowOps for CubeBackend {
    fn norm_rows(
        x: FloatTensor<Self>,
        shortcut: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        norm: RowNorm,
    ) -> FloatTensor<Self> {
        let (gpu, like, shape) = (Gpu::new(x.client.clone()), Like(x.clone()), x.meta.shape().clone());
        let n_cols = shape[shape.num_dims() - 1];
        let (x, shortcut) = (floats(x, n_cols), norm.adds.then(|| floats(shortcut, n_cols)));
        let gamma = vector(gamma, true).expect("a weight is given");
        let weights =
            NormWeights { gamma, beta: vector(beta, norm.shifts), centers: norm.centers, epsilon: norm.epsilon as f32 };
        like.tensor(normed(&gpu, &x, shortcut.as_ref(), &weights), shape)
    }

    fn softmax_rows(
        scores: FloatTensor<Self>,
        hidden: FloatTensor<Self>,
        of: ScoreRows,
        hides: bool,
    ) -> FloatTensor<Self> {
        let (gpu, like, shape) = (Gpu::new(scores.client.clone()), Like(scores.clone()), scores.meta.shape().clone());
        let n_cols = shape[shape.num_dims() - 1];
        let image_rows = (1..shape.num_dims() - 1).map(|axis| shape[axis]).product();
        let mask = ScoreMask {
            scale: of.scale,
            cap: of.rule.soft_cap,
            is_causal: of.is_causal,
            window: of.rule.window,
            first: of.first,
            length: of.length,
            image_rows,
        };
        let (scores, hidden) = (floats(scores, n_cols), hides.then(|| floats(hidden, n_cols)));
        like.tensor(softmax_of(&gpu, &scores, hidden.as_ref(), &mask), shape)
    }

    fn rotate_rows(
        x: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        n_heads: usize,
    ) -> FloatTensor<Self> {
        let (gpu, like, shape) = (Gpu::new(x.client.clone()), Like(x.clone()), x.meta.shape().clone());
        let x = floats(x, shape[shape.num_dims() - 1]);
        let [sin, cos] = [sin, cos].map(|table| vector(table, true).expect("a table is given"));
        like.tensor(rotated(&gpu, &x, [&sin, &cos], n_heads), shape)
    }
}

/// Returns whether this tensor is on a CUDA device, without autodiff.
pub(super) fn on_gpu<const D: usize>(x: &Tensor<D>) -> bool {
    let device = x.device();
    let is_cuda = matches!(device.as_dispatch(), DispatchDevice::Cube(CubeDevice::Cuda(_)));
    is_cuda && !device.is_autodiff() && matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16)
}

pub(super) fn norm<const D: usize>(
    x: Tensor<D>,
    shortcut: Option<Tensor<D>>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    norm: RowNorm,
) -> Tensor<D> {
    let norm = RowNorm { adds: shortcut.is_some(), shifts: beta.is_some(), ..norm };
    let (x, gamma) = (x.into_dispatch(), gamma.into_dispatch());
    let shortcut = shortcut.map_or_else(|| x.clone(), Tensor::into_dispatch);
    let beta = beta.map_or_else(|| gamma.clone(), Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as RowOps>::norm_rows(x, shortcut, gamma, beta, norm))
}

pub(super) fn softmax(scores: Tensor<4>, hidden: Option<Tensor<2, Bool>>, of: ScoreRows) -> Tensor<4> {
    let dtype = scores.dtype();
    let (hides, scores) = (hidden.is_some(), scores.into_dispatch());
    let hidden = hidden.map_or_else(|| scores.clone(), |hidden| hidden.float().cast(dtype).into_dispatch());
    Tensor::from_dispatch(<Dispatch as RowOps>::softmax_rows(scores, hidden, of, hides))
}

pub(super) fn rotate(x: Tensor<3>, [sin, cos]: [Tensor<2>; 2], n_heads: usize) -> Tensor<3> {
    let [x, sin, cos] = [x.into_dispatch(), sin.into_dispatch(), cos.into_dispatch()];
    Tensor::from_dispatch(<Dispatch as RowOps>::rotate_rows(x, sin, cos, n_heads))
}
