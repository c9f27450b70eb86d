//! 2-D convolution that runs on floats or codes.

use super::RunsOnCodes;
use crate::module::PatchShape;
use crate::module::show_patches;
use crate::packed::kept_on;
use crate::packed_weights::PackedWeights;
use crate::rounded_input::rounded_input;
use briquette_cpu::{Conv2dShape, OutputBounds};
use briquette_ops::compressed::{self, CodeGrid, Conv2dCall, FixedConv2dCall, ImageCodes};
use briquette_ops::fused::{ActivationFunction, activate, relu};
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{BatchNorm, Initializer, PaddingConfig2d};
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Device, Tensor};

/// The sizes of a [`Conv2d`], with the fields of burn's `Conv2dConfig`.
#[derive(Config, Debug)]
pub struct Conv2dConfig {
    /// Number of input and output channels.
    pub channels: [usize; 2],
    /// Height and width of the kernel.
    pub kernel_size: [usize; 2],
    /// Stride in both dimensions.
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// Dilation in both dimensions.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// Number of channel groups; divides both channel counts.
    #[config(default = "1")]
    pub groups: usize,
    /// Zero padding around an image.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
    /// Initializer of the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/3.0_f64.sqrt(), fan_out_only:false}")]
    pub initializer: Initializer,
}

impl Conv2dConfig {
    /// Creates a convolution with float weights.
    ///
    /// # Panics
    /// If `groups` does not divide the channels.
    pub fn init(&self, device: &Device) -> Conv2d {
        let like = burn::nn::conv::Conv2dConfig::new(self.channels, self.kernel_size).with_groups(self.groups);
        let like = like.with_bias(self.bias).with_initializer(self.initializer.clone()).init(device);
        Conv2d {
            weight: like.weight,
            bias: like.bias,
            stride: self.stride,
            kernel_size: self.kernel_size,
            dilation: self.dilation,
            groups: self.groups,
            padding: self.padding.clone(),
            codes: RunsOnCodes,
        }
    }
}

/// A 2-D convolution with float or int8 weights.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Conv2d {
    /// `[channels_out, channels_in / groups, kernel_height, kernel_width]`.
    pub weight: Param<Tensor<4>>,
    /// `[channels_out]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// Stride in both dimensions.
    pub stride: [usize; 2],
    /// Height and width of the kernel.
    pub kernel_size: [usize; 2],
    /// Dilation in both dimensions.
    pub dilation: [usize; 2],
    /// Number of channel groups.
    pub groups: usize,
    /// Zero padding around an image.
    #[module(skip)]
    pub padding: PaddingConfig2d,
    /// Marks a layer that can run on codes, to distinguish it from burn's.
    pub codes: RunsOnCodes,
}

/// The last operations after a convolution: a sum, then bounds.
#[derive(Debug, Clone, Default)]
pub struct Then {
    /// The shortcut that is added.
    pub shortcut: Option<Tensor<4>>,
    /// The bounds of the outputs.
    pub bounds: OutputBounds,
    /// Whether only convolutions of codes read the outputs, which may then have their channels last in memory.
    pub channels_last: bool,
}

/// The first operation after a convolution.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "passed by value, once a layer")]
pub enum After<'a> {
    /// Nothing.
    Nothing,
    /// Adds a number to each output channel.
    Bias(Tensor<1>),
    /// A batch norm with running statistics.
    Norm(&'a BatchNorm),
}

impl Then {
    /// Returns whether the pass over codes computes it: inputs and shortcut are f32, and the shortcut needs no broadcasting.
    fn fits(&self, input: &Tensor<4>, call: &Conv2dCall) -> bool {
        let [n, _, height, width] = input.dims();
        let [out_height, out_width] = call.shape.out_size([height, width]);
        let is_like =
            |y: &Tensor<4>| y.dims() == [n, call.shape.n_out, out_height, out_width] && y.dtype() == DType::F32;
        input.dtype() == DType::F32 && self.shortcut.as_ref().is_none_or(is_like)
    }

    fn apply(self, output: Tensor<4>) -> Tensor<4> {
        let output = self.shortcut.into_iter().fold(output, |output, shortcut| output + shortcut);
        match self.bounds {
            OutputBounds::None => output,
            OutputBounds::Relu => relu(output),
            OutputBounds::Relu6 => activate(output, ActivationFunction::Relu6),
        }
    }
}

impl Conv2d {
    /// Maps `[batch, channels_in, height, width]` to `[batch, channels_out, height', width']`.
    ///
    /// # Panics
    /// If the number of input channels differs.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        self.forward_biased(input, self.bias.as_ref().map(Param::val))
    }

    fn forward_biased(&self, input: Tensor<4>, bias: Option<Tensor<1>>) -> Tensor<4> {
        match self.call(&input) {
            Some(call) => compressed::conv2d(input, None, [None, bias], call),
            None => self.convolve(self.rounded(input), self.weight.val(), bias),
        }
    }

    /// Returns whether the layer multiplies codes on this device.
    pub fn multiplies_codes(&self, device: &Device) -> bool {
        matches!(kept_on(&self.weight, device), Some(PackedWeights::Conv(_)))
    }

    /// Maps codes to codes on fixed grids, with more zeros around the images; `None` if the layer has no codes for it on the CPU.
    ///
    /// `more` is added to the layer's own bias, or is the batch norm of the outputs. Outputs are codes of `grid` within `bounds`.
    ///
    /// # Panics
    /// If the number of input channels or of summands differs.
    pub fn forward_codes(
        &self,
        x: &ImageCodes,
        zeros: [[usize; 2]; 2],
        more: After<'_>,
        (grid, bounds): (CodeGrid, [u8; 2]),
    ) -> Option<ImageCodes> {
        let PackedWeights::Fixed(weights) = kept_on(&self.weight, &self.weight.lazy_device())? else { return None };
        let [.., height, width] = x.dims;
        let mut shape = self.shape([height, width], weights.dims());
        for (padding, zeros) in shape.padding.iter_mut().flatten().zip(zeros.into_iter().flatten()) {
            *padding += zeros;
        }
        let [factors, bias] = self.scale_and_shift(more).map(|vector| vector.map(numbers));
        let (factors, bias) = (factors.as_deref(), bias.as_deref());
        compressed::fixed_conv2d(x, &weights, FixedConv2dCall { shape, factors, bias, grid, bounds })
    }

    /// Fake-quantizes each image to 8 bits, or each pixel of a pointwise convolution, if the layer is trained for int8
    /// activations.
    fn rounded(&self, input: Tensor<4>) -> Tensor<4> {
        let [_, channels, height, width] = input.dims();
        if self.shape([height, width], self.weight.lazy_shape().dims()).is_pointwise() {
            return rounded_input(input.permute([0, 2, 3, 1]), &self.weight, channels).permute([0, 3, 1, 2]);
        }
        rounded_input(input, &self.weight, channels * height * width)
    }

    /// Computes the convolution with float weights.
    fn convolve(&self, input: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>) -> Tensor<4> {
        let shape = self.shape(size_of(&input), weight.dims());
        let Conv2dShape { kernel, stride, padding, dilation, groups, .. } = shape;
        show_patches(&self.weight, &input, PatchShape { kernel, stride, padding, dilation, groups });
        if compressed::convolves(&input, &shape) && weight.dtype() == DType::F32 {
            return compressed::float_conv2d(input, weight, bias, shape);
        }
        let padding = shape.padding.map(|[before, after]| (before, after));
        let options = ConvOptions::new_with_padding(self.stride, padding, self.dilation, self.groups);
        conv2d(input, weight, bias, options)
    }

    /// Computes the convolution, the operation `after` it, and `then`.
    ///
    /// With codes, this is one fused pass. With floats, a norm is folded into the weights if no gradients are
    /// recorded and the layer has at least as many outputs as weights.
    ///
    /// # Panics
    /// See [`Conv2d::forward`]. Also if the shortcut cannot be added to the output.
    pub fn forward_then(&self, input: Tensor<4>, after: After<'_>, then: Then) -> Tensor<4> {
        if let Some(call) = self.call(&input).filter(|call| then.fits(&input, call)) {
            let call = Conv2dCall { bounds: then.bounds, channels_last: then.channels_last, ..call };
            return compressed::conv2d(input, then.shortcut, self.scale_and_shift(after), call);
        }
        then.apply(match after {
            After::Norm(norm) if self.takes_norm(&input) => {
                let (scale, shift) = self.folded(norm);
                let weight = self.weight.val() * scale.reshape([-1, 1, 1, 1]);
                self.convolve(self.rounded(input), weight, Some(shift))
            }
            After::Norm(norm) => norm.forward(self.forward(input)),
            after => {
                let [_, bias] = self.scale_and_shift(after);
                self.forward_biased(input, bias)
            }
        })
    }

    /// Returns the factor and the summand of each output channel.
    fn scale_and_shift(&self, after: After<'_>) -> [Option<Tensor<1>>; 2] {
        let own = self.bias.as_ref().map(Param::val);
        match after {
            After::Nothing => [None, own],
            After::Bias(more) => [None, Some(own.into_iter().fold(more, |more, own| more + own))],
            After::Norm(norm) => {
                let (scale, shift) = self.folded(norm);
                [Some(scale), Some(shift)]
            }
        }
    }

    /// Returns the convolution as an operation on codes; `None` for float weights.
    fn call(&self, input: &Tensor<4>) -> Option<Conv2dCall> {
        let Some(PackedWeights::Conv(weights)) = kept_on(&self.weight, &input.device()) else { return None };
        let shape = self.shape(size_of(input), weights.dims());
        let (has_scale, has_shift, bounds) = (false, false, OutputBounds::None);
        Some(Conv2dCall { weights, shape, has_scale, has_shift, bounds, channels_last: false })
    }

    /// Returns the shape of the convolution, from the extents of its weights.
    fn shape(&self, size: [usize; 2], [n_out, n_in, ..]: [usize; 4]) -> Conv2dShape {
        Conv2dShape {
            n_in: n_in * self.groups,
            n_out,
            groups: self.groups,
            kernel: self.kernel_size,
            stride: self.stride,
            padding: self.pads(size),
            dilation: self.dilation,
        }
    }

    /// Returns whether to fold a batch norm into the weights: float weights, no training, and at least as many
    /// outputs as weights.
    fn takes_norm(&self, input: &Tensor<4>) -> bool {
        // If the weights are trained, gradients are recorded even for a constant input.
        let learns = [input.device(), self.weight.lazy_device()].iter().any(Device::is_autodiff);
        if learns || input.dtype() != DType::F32 || self.call(input).is_some() {
            return false;
        }
        let ([n_images, _, height, width], weights) = (input.dims(), self.weight.lazy_shape());
        let shape = self.shape([height, width], weights.dims());
        let n_outputs = n_images * shape.n_out * shape.out_size([height, width]).iter().product::<usize>();
        weights.num_elements() <= n_outputs
    }

    /// Returns the zeros before and after the image, for height and width.
    fn pads(&self, [height, width]: [usize; 2]) -> [[usize; 2]; 2] {
        match self.padding {
            PaddingConfig2d::Valid => [[0; 2]; 2],
            PaddingConfig2d::Explicit(top, left, bottom, right) => [[top, bottom], [left, right]],
            // Gives `ceil(size / stride)` outputs; if the number of zeros is odd, the extra one goes to the
            // end.
            PaddingConfig2d::Same => [(0, height), (1, width)].map(|(i, size)| {
                let needed = size.div_ceil(self.stride[i]).saturating_sub(1) * self.stride[i] + self.kernel_size[i];
                let total = if size == 0 { 0 } else { needed.saturating_sub(size) };
                [total / 2, total - total / 2]
            }),
        }
    }

    /// Returns the scale `gamma / sqrt(var + epsilon)` and the offset that replace the norm and the
    /// convolution's bias.
    fn folded(&self, norm: &BatchNorm) -> (Tensor<1>, Tensor<1>) {
        let gamma = norm.gamma.val();
        // Copies of a module share running statistics, which may be on another copy's device.
        let [mean, var] = [&norm.running_mean, &norm.running_var].map(|state| state.value().to_device(&gamma.device()));
        let scale = gamma / (var + norm.epsilon as f32).sqrt();
        let offset = match &self.bias {
            Some(bias) => bias.val() - mean,
            None => -mean,
        };
        let shift = norm.beta.val() + offset * scale.clone();
        (scale, shift)
    }
}

fn numbers(vector: Tensor<1>) -> Vec<f32> {
    vector.into_data().iter::<f32>().collect()
}

/// Returns height and width.
fn size_of(x: &Tensor<4>) -> [usize; 2] {
    let [.., height, width] = x.dims();
    [height, width]
}

impl ModuleDisplay for Conv2d {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [channels_out, channels_in, _, _] = self.weight.lazy_shape().dims();
        content
            .add("ch_in", &format!("{:?}", channels_in * self.groups))
            .add("ch_out", &format!("{channels_out:?}"))
            .add("stride", &format!("{:?}", self.stride))
            .add("kernel_size", &format!("{:?}", self.kernel_size))
            .add("dilation", &format!("{:?}", self.dilation))
            .add("groups", &self.groups)
            .add_debug_attribute("padding", &self.padding)
            .optional()
    }
}
