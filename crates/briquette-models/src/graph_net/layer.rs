//! Layers of a graph: burn modules that hold its weights.

use crate::fresh::Initial;
use crate::layers::{BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Embedding};
use crate::layers::{LayerNorm, LayerNormConfig, Linear, RmsNorm, RmsNormConfig};
use briquette_graph::op::ConvSettings;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::{PaddingConfig1d, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use super::value::AnyTensor;

/// A layer with weights, or a single parameter.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)]
pub(super) enum GraphLayer {
    Linear(Linear),
    Embedding(Embedding),
    Conv1d(Conv1d),
    Conv2d(Conv2d),
    LayerNorm(LayerNorm),
    RmsNorm(RmsNorm),
    BatchNorm(BatchNorm),
    Rank1(Param<Tensor<1>>),
    Rank2(Param<Tensor<2>>),
    Rank3(Param<Tensor<3>>),
    Rank4(Param<Tensor<4>>),
}

/// Evaluates an expression with the module of a layer, which visitors see as if the layer were that module.
macro_rules! with_module {
    ($layer:expr, $module:ident => $body:expr) => {
        match $layer {
            GraphLayer::Linear($module) => $body,
            GraphLayer::Embedding($module) => $body,
            GraphLayer::Conv1d($module) => $body,
            GraphLayer::Conv2d($module) => $body,
            GraphLayer::LayerNorm($module) => $body,
            GraphLayer::RmsNorm($module) => $body,
            GraphLayer::BatchNorm($module) => $body,
            GraphLayer::Rank1($module) => $body,
            GraphLayer::Rank2($module) => $body,
            GraphLayer::Rank3($module) => $body,
            GraphLayer::Rank4($module) => $body,
        }
    };
}

/// Like [`with_module`], and wraps the result in the same variant.
macro_rules! map_module {
    ($layer:expr, $module:ident => $body:expr) => {
        match $layer {
            GraphLayer::Linear($module) => GraphLayer::Linear($body),
            GraphLayer::Embedding($module) => GraphLayer::Embedding($body),
            GraphLayer::Conv1d($module) => GraphLayer::Conv1d($body),
            GraphLayer::Conv2d($module) => GraphLayer::Conv2d($body),
            GraphLayer::LayerNorm($module) => GraphLayer::LayerNorm($body),
            GraphLayer::RmsNorm($module) => GraphLayer::RmsNorm($body),
            GraphLayer::BatchNorm($module) => GraphLayer::BatchNorm($body),
            GraphLayer::Rank1($module) => GraphLayer::Rank1($body),
            GraphLayer::Rank2($module) => GraphLayer::Rank2($body),
            GraphLayer::Rank3($module) => GraphLayer::Rank3($body),
            GraphLayer::Rank4($module) => GraphLayer::Rank4($body),
        }
    };
}

impl Module for GraphLayer {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        with_module!(self, module => module.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        map_module!(self, module => module.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        map_module!(self, module => module.to_device(device))
    }

    fn train(self) -> Self {
        map_module!(self, module => module.train())
    }

    fn valid(&self) -> Self {
        map_module!(self, module => module.valid())
    }

    fn materialize(self) -> Self {
        map_module!(self, module => module.materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        with_module!(self, module => module.visit(visitor));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        map_module!(self, module => Module::map(module, mapper))
    }
}

impl GraphLayer {
    /// Creates a convolution of a weight `[out, in / groups, height, width]`.
    pub(super) fn conv(
        shape: [usize; 4],
        settings: &ConvShape,
        has_bias: bool,
        initial: &Initial,
        device: &Device,
    ) -> Self {
        let [n_out, n_in, height, width] = shape;
        let [top, left] = settings.padding;
        let config = Conv2dConfig::new([n_in * settings.groups, n_out], [height, width])
            .with_stride(settings.stride)
            .with_dilation(settings.dilation)
            .with_padding(PaddingConfig2d::Explicit(top, left, top, left))
            .with_groups(settings.groups)
            .with_bias(has_bias);
        Self::Conv2d(initial.conv(config, device))
    }

    /// Creates a convolution of a weight `[out, in / groups, frames]`.
    pub(super) fn conv1d(
        [n_out, n_in, size]: [usize; 3],
        settings: &ConvSettings,
        has_bias: bool,
        device: &Device,
    ) -> Self {
        let padding = settings.padding[0];
        let config = Conv1dConfig::new(n_in * settings.groups, n_out, size)
            .with_stride(settings.stride[0])
            .with_dilation(settings.dilation[0])
            .with_padding(PaddingConfig1d::Explicit(padding, padding))
            .with_groups(settings.groups)
            .with_bias(has_bias);
        Self::Conv1d(config.init(device))
    }

    pub(super) fn layer_norm(width: usize, eps: f64, has_bias: bool, device: &Device) -> Self {
        Self::LayerNorm(LayerNormConfig::new(width).with_epsilon(eps).with_bias(has_bias).init(device))
    }

    pub(super) fn rms_norm(width: usize, eps: f64, device: &Device) -> Self {
        Self::RmsNorm(RmsNormConfig::new(width).with_epsilon(eps).init(device))
    }

    pub(super) fn batch_norm(width: usize, eps: f64, device: &Device) -> Self {
        Self::BatchNorm(BatchNormConfig::new(width).with_epsilon(eps).init(device))
    }

    /// Creates a parameter that belongs to no layer, such as position embeddings of images.
    ///
    /// `None` for ranks other than 1 to 4.
    pub(super) fn parameter(shape: &[usize], initial: &Initial, device: &Device) -> Option<Self> {
        let normal = initial.parameter();
        Some(match *shape {
            [a] => Self::Rank1(normal.init([a], device)),
            [a, b] => Self::Rank2(normal.init([a, b], device)),
            [a, b, c] => Self::Rank3(normal.init([a, b, c], device)),
            [a, b, c, d] => Self::Rank4(normal.init([a, b, c, d], device)),
            _ => return None,
        })
    }

    /// Returns a parameter, or the weight of a layer, as a value.
    pub(super) fn weight(&self) -> AnyTensor {
        match self {
            Self::Linear(layer) => layer.weight.val().transpose().into(),
            Self::Embedding(layer) => layer.weight.val().into(),
            Self::Conv1d(layer) => layer.weight.val().into(),
            Self::Conv2d(layer) => layer.weight.val().into(),
            Self::LayerNorm(layer) => layer.gamma.val().into(),
            Self::RmsNorm(layer) => layer.gamma.val().into(),
            Self::BatchNorm(layer) => layer.gamma.val().into(),
            Self::Rank1(parameter) => parameter.val().into(),
            Self::Rank2(parameter) => parameter.val().into(),
            Self::Rank3(parameter) => parameter.val().into(),
            Self::Rank4(parameter) => parameter.val().into(),
        }
    }
}

/// The settings of a two-dimensional convolution, by height and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConvShape {
    pub(super) stride: [usize; 2],
    pub(super) padding: [usize; 2],
    pub(super) dilation: [usize; 2],
    pub(super) groups: usize,
}
