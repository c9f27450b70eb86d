//! CUDA devices, with kernels for whole rows: norms, softmax of scores, attention, rotary positions.

use crate::cube_tensor::{Like, floats, gpu_of, vector};
use crate::fused::ops::{KeptHeads, RowNorm, ScoreRows};
use briquette_cuda::{DeviceHeads, Gpu, NormWeights, ScoreMask, attended, normed, rotated, softmax_of};
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

    /// Computes attention, hiding keys where `hidden` is 1.
    #[fusion(dtype = q, shape = q)]
    fn attend_rows(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        hidden: FloatTensor<Self>,
        of: ScoreRows,
        heads: KeptHeads,
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
        let mask = mask_of(&of, (1..shape.num_dims() - 1).map(|axis| shape[axis]).product());
        let (scores, hidden) = (floats(scores, n_cols), hides.then(|| floats(hidden, n_cols)));
        like.tensor(softmax_of(&gpu, &scores, hidden.as_ref(), &mask), shape)
    }

    fn attend_rows(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        hidden: FloatTensor<Self>,
        of: ScoreRows,
        heads: KeptHeads,
        hides: bool,
    ) -> FloatTensor<Self> {
        let (gpu, like, shape) = (Gpu::new(q.client.clone()), Like(q.clone()), q.meta.shape().clone());
        let kept = k.meta.shape().clone();
        let by_head = kept.num_dims() == 4;
        let heads = DeviceHeads {
            images: shape[0],
            n: heads.n,
            kept: heads.kept,
            width: shape[2] / heads.n,
            n_keys: heads.n_keys,
            capacity: by_head.then(|| kept[2]),
        };
        let [q, k, v] = [(q, shape[2]), (k, heads.width), (v, heads.width)].map(|(x, n_cols)| floats(x, n_cols));
        let hidden = hides.then(|| floats(hidden, heads.n_keys));
        let y = attended(&gpu, &q, [&k, &v], hidden.as_ref(), &heads, &mask_of(&of, heads.n * of.length));
        like.tensor(y, shape)
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

/// Returns the mask of scores, with `image_rows` queries of all heads of an image.
const fn mask_of(of: &ScoreRows, image_rows: usize) -> ScoreMask {
    ScoreMask {
        scale: of.scale,
        cap: of.rule.soft_cap,
        is_causal: of.is_causal,
        window: of.rule.window,
        first: of.first,
        length: of.length,
        image_rows,
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

/// Returns whether the device of this tensor has a kernel for heads of this width.
pub(super) fn attends<const D: usize>(q: &Tensor<D>, width: usize) -> bool {
    on_gpu(q) && gpu_of(&q.device()).is_some_and(|gpu| DeviceHeads::fit(&gpu, width))
}

pub(super) fn attend<const D: usize>(
    q: Tensor<3>,
    kept: [Tensor<D>; 2],
    hidden: Option<Tensor<2, Bool>>,
    of: ScoreRows,
    heads: KeptHeads,
) -> Tensor<3> {
    let dtype = q.dtype();
    let (hides, q) = (hidden.is_some(), q.into_dispatch());
    let hidden = hidden.map_or_else(|| q.clone(), |hidden| hidden.float().cast(dtype).into_dispatch());
    let [k, v] = kept.map(|kept| kept.cast(dtype).into_dispatch());
    Tensor::from_dispatch(<Dispatch as RowOps>::attend_rows(q, k, v, hidden, of, heads, hides))
}

pub(super) fn rotate(x: Tensor<3>, [sin, cos]: [Tensor<2>; 2], n_heads: usize) -> Tensor<3> {
    let [x, sin, cos] = [x.into_dispatch(), sin.into_dispatch(), cos.into_dispatch()];
    Tensor::from_dispatch(<Dispatch as RowOps>::rotate_rows(x, sin, cos, n_heads))
}
