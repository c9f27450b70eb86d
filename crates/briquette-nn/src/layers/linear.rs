//! Linear layer that runs on floats or codes, optionally of low rank.

use crate::module::linear_shape;
use crate::module::show;
use crate::packed::kept_on;
use crate::packed_weights::PackedWeights;
use crate::rounded_input::rounded_input;
use briquette_ops::compressed;
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::module::linear;
use burn::tensor::{Device, Tensor};

/// The sizes of a [`Linear`], with the fields of burn's `LinearConfig`.
#[derive(Config, Debug)]
pub struct LinearConfig {
    /// Number of inputs.
    pub d_input: usize,
    /// Number of outputs.
    pub d_output: usize,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
    /// Initializer of the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/3.0_f64.sqrt(), fan_out_only:false}")]
    pub initializer: Initializer,
    /// Memory layout of float weights.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

impl LinearConfig {
    /// Creates a layer with float weights.
    pub fn init(&self, device: &Device) -> Linear {
        let like = burn::nn::LinearConfig::new(self.d_input, self.d_output).with_bias(self.bias);
        let like = like.with_initializer(self.initializer.clone()).with_layout(self.layout).init(device);
        Linear { weight: like.weight, bias: like.bias, down: None }
    }
}

/// A linear layer: `y = x · weight + bias`, or with low rank `y = (x · down) · weight + bias`.
///
/// In PyTorch's terms, a low-rank layer is two `Linear` layers: `down` with weight `[rank, in]`, then this one
/// with weight `[out, rank]`.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Linear {
    /// `[d_input, d_output]`, or `[rank, d_output]`.
    pub weight: Param<Tensor<2>>,
    /// `[d_output]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// First factor of a low-rank layer: weights `[d_input, rank]`, no bias.
    pub down: Option<burn::nn::Linear>,
}

impl Linear {
    /// Maps `[.., d_input]` to `[.., d_output]`.
    ///
    /// # Panics
    /// If the last dimension is not `d_input`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        product(self.lowered(input), &self.weight, self.bias.as_ref().map(Param::val))
    }

    /// Passes `input` to the probes like [`forward`](Self::forward), without computing the output.
    ///
    /// # Panics
    /// If the layer is of low rank and the last dimension is not `d_input`.
    pub fn show_input<const D: usize>(&self, input: Tensor<D>) {
        show(&self.weight, &self.lowered(input));
    }

    /// Returns the input of `weight`: for a low-rank layer, the output of `down`.
    fn lowered<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match &self.down {
            Some(down) => product(input, &down.weight, None),
            None => input,
        }
    }

    /// Returns a copy with two uninitialized factors of this rank, into which a checkpoint can be loaded.
    #[must_use]
    pub fn of_rank(&self, rank: usize) -> Self {
        let [d_input, d_output] = self.dims();
        let device = self.weight.lazy_device();
        let config = LinearConfig::new(rank, d_output).with_bias(false);
        let down = burn::nn::LinearConfig::new(d_input, rank).with_bias(false).init(&device);
        Self { weight: config.init(&device).weight, bias: self.bias.clone(), down: Some(down) }
    }

    /// Returns the numbers of inputs and outputs.
    pub fn dims(&self) -> [usize; 2] {
        let shape = linear_shape(&self.weight);
        let first = self.down.as_ref().map(|down| down.weight.lazy_shape().dims::<2>()[0]);
        [first.unwrap_or(shape[0]), shape[1]]
    }
}

/// Computes `x · weight + bias`: on codes if the weights are codes, on fake-quantized inputs if the layer is
/// trained for them.
fn product<const D: usize>(input: Tensor<D>, weight: &Param<Tensor<2>>, bias: Option<Tensor<1>>) -> Tensor<D> {
    show(weight, &input);
    match kept_on(weight, &input.device()) {
        Some(PackedWeights::Linear(weights)) => compressed::linear(input, &weights, bias),
        _ => {
            let n_cols = input.dims()[D - 1];
            linear(rounded_input(input, weight, n_cols), weight.val(), bias)
        }
    }
}

impl ModuleDisplay for Linear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_input, d_output] = self.dims();
        let content = match &self.down {
            Some(down) => content.add("rank", &down.weight.lazy_shape().dims::<2>()[1]),
            None => content,
        };
        content.add("d_input", &d_input).add("d_output", &d_output).add("bias", &self.bias.is_some()).optional()
    }
}
