//! A linear layer.

use crate::packed::{Kept, kept_on};
use briquette_kernels::ops;
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::module::linear;
use burn::tensor::{Device, Tensor};

/// The sizes of a [`Linear`]; those of burn's `LinearConfig`.
#[derive(Config, Debug)]
pub struct LinearConfig {
    /// Inputs.
    pub d_input: usize,
    /// Outputs.
    pub d_output: usize,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
    /// What fills the parameters at first.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/3.0_f64.sqrt(), fan_out_only:false}")]
    pub initializer: Initializer,
    /// How the weights lie in memory while they are floats.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

impl LinearConfig {
    /// A layer with weights that are floats.
    pub fn init(&self, device: &Device) -> Linear {
        let like = burn::nn::LinearConfig::new(self.d_input, self.d_output).with_bias(self.bias);
        let like = like.with_initializer(self.initializer.clone()).with_layout(self.layout).init(device);
        Linear { weight: like.weight, bias: like.bias }
    }
}

/// `y = x · weight + bias`, over the last dimension.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Linear {
    /// `[d_input, d_output]`.
    pub weight: Param<Tensor<2>>,
    /// `[d_output]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// `[.., d_input]` to `[.., d_output]`.
    ///
    /// # Panics
    /// If the last dimension is not `d_input`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let bias = self.bias.as_ref().map(Param::val);
        match kept_on(&self.weight, &input.device()) {
            Some(Kept::Linear(weights)) => ops::linear(input, weights, bias),
            _ => linear(input, self.weight.val(), bias),
        }
    }
}

impl ModuleDisplay for Linear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_input, d_output] = self.weight.lazy_shape().dims();
        content.add("d_input", &d_input).add("d_output", &d_output).add("bias", &self.bias.is_some()).optional()
    }
}
