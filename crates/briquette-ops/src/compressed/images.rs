//! f32 convolution and max pooling on the CPU, and their gradients.

use super::device::is_cpu;
use briquette_cpu::Conv2dShape;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{DType, Tensor, module};

/// Operations of a backend on f32 images `[n, channels, height, width]`.
#[backend_extension(Flex: cfg(feature = "flex"), Autodiff)]
pub trait ImageOps: Backend {
    /// Computes a convolution.
    fn float_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: Conv2dShape,
    ) -> FloatTensor<Self>;

    /// Computes max pooling of each channel with the kernel, stride and padding of `shape`.
    fn float_max_pool2d(x: FloatTensor<Self>, shape: Conv2dShape) -> FloatTensor<Self>;
}

/// The gradients of [`ImageOps`].
pub trait ImageGrads: Backend {
    /// Computes the gradient of the input of a convolution.
    fn conv2d_input_grad(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        shape: Conv2dShape,
    ) -> FloatTensor<Self>;

    /// Computes the gradient of the weights of a convolution.
    fn conv2d_weight_grad(x: FloatTensor<Self>, dy: FloatTensor<Self>, shape: Conv2dShape) -> FloatTensor<Self>;

    /// Computes the gradient of the input of max pooling.
    fn max_pool2d_grad(x: FloatTensor<Self>, dy: FloatTensor<Self>, shape: Conv2dShape) -> FloatTensor<Self>;
}

impl<B: ImageOps + ImageGrads, C: CheckpointStrategy> ImageOps for Autodiff<B, C> {
    fn float_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: Conv2dShape,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        match ConvStep.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let state = (step.checkpoint(&x), step.checkpoint(&weight), shape);
                let [x, weight, bias] = [x, weight, bias].map(|tensor| tensor.into_primitive());
                step.finish(state, B::float_conv2d(x, weight, bias, shape))
            }
            OpsKind::UnTracked(step) => {
                let [x, weight, bias] = [x, weight, bias].map(|tensor| tensor.into_primitive());
                step.finish(B::float_conv2d(x, weight, bias, shape))
            }
        }
    }

    fn float_max_pool2d(x: FloatTensor<Self>, shape: Conv2dShape) -> FloatTensor<Self> {
        match PoolStep.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let state = (step.checkpoint(&x), shape);
                step.finish(state, B::float_max_pool2d(x.into_primitive(), shape))
            }
            OpsKind::UnTracked(step) => step.finish(B::float_max_pool2d(x.into_primitive(), shape)),
        }
    }
}

#[derive(Debug)]
struct ConvStep;

impl<B: ImageGrads> Backward<B, 3> for ConvStep {
    type State = (NodeId, NodeId, Conv2dShape);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let ([x_node, weight_node, bias_node], (x, weight, shape)) = (ops.parents, ops.state);
        let dy = grads.consume::<B>(&ops.node);
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::conv2d_input_grad(x.clone(), weight, dy.clone(), shape));
        }
        if let Some(node) = weight_node {
            grads.register::<B>(node.id, B::conv2d_weight_grad(x, dy.clone(), shape));
        }
        if let Some(node) = bias_node {
            let by_channel = [3, 2, 0].into_iter().fold(dy, B::float_sum_dim);
            grads.register::<B>(node.id, B::float_reshape(by_channel, [shape.n_out].into()));
        }
    }
}

#[derive(Debug)]
struct PoolStep;

impl<B: ImageGrads> Backward<B, 1> for PoolStep {
    type State = (NodeId, Conv2dShape);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let ([x_node], (x, shape)) = (ops.parents, ops.state);
        let dy = grads.consume::<B>(&ops.node);
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::max_pool2d_grad(x, dy, shape));
        }
    }
}

/// Returns whether these operations support `x`: f32 on the CPU, with or without autodiff.
fn takes(x: &Tensor<4>) -> bool {
    is_cpu(&x.device().inner()) && x.dtype() == DType::F32
}

/// Returns whether [`float_conv2d`] supports this convolution.
///
/// `x` must be f32 and on the CPU, the kernel larger than 1x1, and the number of groups 1. burn's own
/// convolution handles other cases.
pub fn convolves(x: &Tensor<4>, shape: &Conv2dShape) -> bool {
    takes(x) && shape.groups == 1 && shape.kernel != [1, 1]
}

/// Computes a convolution of `x` `[n, in, height, width]` with weights `[out, in, ky, kx]`, with gradients.
///
/// See [`FloatConv2d::forward`](briquette_cpu::FloatConv2d::forward).
///
/// # Panics
/// If the shapes disagree, or [`convolves`] returns false.
pub fn float_conv2d(x: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>, shape: Conv2dShape) -> Tensor<4> {
    let bias = bias.unwrap_or_else(|| Tensor::zeros([shape.n_out], (&x.device(), DType::F32)));
    let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    Tensor::from_dispatch(<Dispatch as ImageOps>::float_conv2d(x, weight, bias, shape))
}

/// Computes max pooling of `[n, channels, height, width]`, with gradients.
///
/// See [`max_pool2d`](briquette_cpu::float::max_pool2d()). Uses burn's own operation for other types and
/// devices.
pub fn max_pool2d(x: Tensor<4>, kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Tensor<4> {
    if !takes(&x) {
        let padding = padding.map(|n| (n, n));
        return module::max_pool2d(x, MaxPoolOptions { stride, padding, ..MaxPoolOptions::new(kernel) });
    }
    let shape = Conv2dShape { stride, padding: padding.map(|n| [n, n]), ..Conv2dShape::new(1, 1, kernel) };
    Tensor::from_dispatch(<Dispatch as ImageOps>::float_max_pool2d(x.into_dispatch(), shape))
}
