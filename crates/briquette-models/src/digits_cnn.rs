//! A small convolutional network for 8x8 images of digits.

use crate::Input;
use crate::architecture::Architecture;
use crate::config::{Folder, check_sizes, has_tensor};
use crate::data::ImageInput;
use crate::layers::{BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Linear, LinearConfig, Then};
use crate::low_rank::Linears;
use crate::student_config::{Smaller, with_sizes};
use briquette_core::Result;
use briquette_formats::Checkpoint;
use briquette_nn::NameMap;
use briquette_ops::compressed::max_pool2d;
use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Values of `model_type` in config.json.
pub(crate) const MODEL_TYPES: &[&str] = &["digits-cnn"];

/// Configuration of a [`DigitsCnn`], with the keys of config.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DigitsCnnConfig {
    /// Height and width of an image.
    pub image_size: [usize; 2],
    /// Channels of an image.
    pub in_channels: usize,
    /// Divisor of pixels.
    pub pixel_scale: f64,
    /// Channels after each convolution.
    pub conv_channels: [usize; 2],
    /// Height and width of the kernels.
    pub kernel_size: usize,
    /// Zero padding around an image.
    pub padding: usize,
    /// Whether the second convolution is depthwise separable: one kernel per channel, then a 1x1 convolution.
    /// Source: Howard et al., "MobileNets", 2017, section 3.1.
    pub separable: bool,
    /// Height, width and stride of the pooling.
    pub pool_size: usize,
    /// Width of the hidden layer.
    pub hidden_size: usize,
    /// Number of classes.
    pub num_labels: usize,
    /// Epsilon of the batch norms.
    pub batch_norm_eps: f64,
}

impl Default for DigitsCnnConfig {
    fn default() -> Self {
        Self {
            image_size: [8, 8],
            in_channels: 1,
            pixel_scale: 16.0,
            conv_channels: [16, 32],
            kernel_size: 3,
            padding: 1,
            separable: false,
            pool_size: 2,
            hidden_size: 80,
            num_labels: 10,
            batch_norm_eps: 1e-5,
        }
    }
}

/// Returns whether the tensor names are those of the digits network.
pub(crate) fn has_names(checkpoint: &Checkpoint) -> bool {
    ["conv2.weight", "bn2.running_mean", "fc2.weight"].iter().all(|name| has_tensor(checkpoint, name))
}

/// Creates the unfilled network of a checkpoint, and its name map.
pub(crate) fn blank(checkpoint: &Checkpoint, device: &Device) -> Result<(DigitsCnn, NameMap)> {
    Ok((read(checkpoint)?.init(device), NameMap::torch().rename("^DigitsCnn", "")))
}

/// Returns the input of a checkpoint's network.
pub(crate) fn input(checkpoint: &Checkpoint) -> Result<Input> {
    Ok(Input::Images(read(checkpoint)?.image_input()))
}

/// Reads config.json; without it, returns the defaults.
fn read(checkpoint: &Checkpoint) -> Result<DigitsCnnConfig> {
    let folder = Folder::of(checkpoint);
    let config: DigitsCnnConfig = folder.read("config.json")?.unwrap_or_default();
    config.validate().map_err(|message| folder.config_error(message))?;
    Ok(config)
}

impl DigitsCnnConfig {
    fn validate(&self) -> Result<(), String> {
        check_sizes(&[self.kernel_size, self.pool_size, self.hidden_size, self.num_labels, self.in_channels])?;
        check_sizes(&self.conv_channels)?;
        check_sizes(&self.image_size)?;
        let scales = [self.pixel_scale, self.batch_norm_eps];
        if self.padding > self.kernel_size || scales.iter().any(|scale| scale.is_nan() || *scale <= 0.0) {
            return Err("padding, pixel_scale or batch_norm_eps is out of range; correct it".into());
        }
        check_sizes(&[self.n_features()]).map_err(|_| "the image does not fit its convolutions; correct it".into())
    }

    /// Returns the preparation of its images.
    fn image_input(&self) -> ImageInput {
        let channels = self.in_channels;
        let (mean, std) = (vec![0.0; channels], vec![1.0; channels]);
        let (crop, scale) = (self.image_size, self.pixel_scale as f32);
        ImageInput { channels, resize: None, crop, is_fixed: true, least_side: 1, tile: None, scale, mean, std }
    }

    /// Returns the number of inputs of the first linear layer: channels times pooled pixels.
    fn n_features(&self) -> usize {
        let shrunk = |size: usize| {
            let after = |size: usize| (size + 2 * self.padding + 1).saturating_sub(self.kernel_size);
            after(after(size)) / self.pool_size.max(1)
        };
        self.conv_channels[1].saturating_mul(shrunk(self.image_size[0]) * shrunk(self.image_size[1]))
    }

    /// Creates a network with random weights, uniform below `1 / sqrt(fan_in)` as in torch.
    pub fn init(&self, device: &Device) -> DigitsCnn {
        let [first, second] = self.conv_channels;
        let conv = |channels: [usize; 2], groups: usize| {
            let padding = PaddingConfig2d::Explicit(self.padding, self.padding, self.padding, self.padding);
            let config = Conv2dConfig::new(channels, [self.kernel_size; 2]).with_groups(groups);
            config.with_padding(padding).init(device)
        };
        let mixture = || Conv2dConfig::new([first, second], [1, 1]).init(device);
        let norm = |channels| BatchNormConfig::new(channels).with_epsilon(self.batch_norm_eps).init(device);
        DigitsCnn {
            conv1: conv([self.in_channels, first], 1),
            bn1: norm(first),
            depthwise: self.separable.then(|| conv([first, first], first)),
            conv2: if self.separable { mixture() } else { conv([first, second], 1) },
            bn2: norm(second),
            fc1: LinearConfig::new(self.n_features(), self.hidden_size).init(device),
            fc2: LinearConfig::new(self.hidden_size, self.num_labels).init(device),
            pool_size: self.pool_size,
        }
    }
}

/// Two convolutions, each with batch norm and ReLU, a max pool and two linear layers.
#[derive(Module, Debug)]
pub struct DigitsCnn {
    conv1: Conv2d,
    bn1: BatchNorm,
    depthwise: Option<Conv2d>,
    conv2: Conv2d,
    bn2: BatchNorm,
    fc1: Linear,
    fc2: Linear,
    pool_size: usize,
}

impl Linears for DigitsCnn {
    fn linears(&mut self) -> Vec<(String, &mut Linear)> {
        vec![("fc1".into(), &mut self.fc1), ("fc2".into(), &mut self.fc2)]
    }
}

impl Architecture for DigitsCnn {
    fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.forward(images)
    }

    fn smaller(&self, config: &mut Map<String, Value>, how: &Smaller, device: &Device) -> Result<Option<Self>> {
        let Smaller::Sizes(sizes) = how else { return Ok(None) };
        let usual = Some(DigitsCnnConfig::default());
        Ok(Some(with_sizes(config, sizes, usual, DigitsCnnConfig::validate)?.init(device)))
    }
}

impl DigitsCnn {
    /// Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.conv1.forward_norm(images, &self.bn1, Then::Relu);
        let x = self.depthwise.as_ref().map_or(x.clone(), |depthwise| depthwise.forward(x));
        let x = self.conv2.forward_norm(x, &self.bn2, Then::Relu);
        let size = [self.pool_size; 2];
        let x = max_pool2d(x, size, size, [0; 2]);
        self.fc2.forward(relu(self.fc1.forward(x.flatten(1, 3))))
    }
}
