//! Layer norm with a fused residual sum.

use briquette_ops::fused::{add_norm, layer_norm};
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::tensor::{Device, Tensor};

/// The sizes of a [`LayerNorm`], with the fields of burn's `LayerNormConfig`.
#[derive(Config, Debug)]
pub struct LayerNormConfig {
    /// Size of the normalized dimension.
    pub d_model: usize,
    /// Added to the variance to avoid division by zero.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
}

impl LayerNormConfig {
    /// Creates a norm with weight 1 and bias 0.
    pub fn init(&self, device: &Device) -> LayerNorm {
        let like = burn::nn::LayerNormConfig::new(self.d_model).with_bias(self.bias).init(device);
        LayerNorm { gamma: like.gamma, beta: like.beta, epsilon: self.epsilon }
    }
}

/// `y = (x - mean) / sqrt(var + epsilon) * gamma + beta`, over the last dimension.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct LayerNorm {
    /// `[d_model]`.
    pub gamma: Param<Tensor<1>>,
    /// `[d_model]`.
    pub beta: Option<Param<Tensor<1>>>,
    epsilon: f64,
}

impl LayerNorm {
    /// Normalizes `input`; the output has the same type.
    ///
    /// # Panics
    /// If the last dimension is not `d_model`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        layer_norm(input, self.gamma.val(), self.beta.as_ref().map(Param::val), self.epsilon)
    }

    /// Normalizes `input + shortcut`, in one pass where the device supports it.
    ///
    /// # Panics
    /// If the last dimension is not `d_model`, or the shapes differ.
    pub fn forward_sum<const D: usize>(&self, input: Tensor<D>, shortcut: Tensor<D>) -> Tensor<D> {
        add_norm(input, shortcut, self.gamma.val(), self.beta.as_ref().map(Param::val), self.epsilon)
    }
}

impl ModuleDisplay for LayerNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model] = self.gamma.lazy_shape().dims();
        content.add("d_model", &d_model).add("epsilon", &self.epsilon).add("bias", &self.beta.is_some()).optional()
    }
}
