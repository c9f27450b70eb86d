//! torchvision's ResNets, with its parameter names.
//!
//! Widths, groups and classes are read from the weights, so wide, narrow and other variants run too.

use crate::Input;
use crate::architecture::Architecture;
use crate::config::has_tensor;
use crate::data::ImageInput;
use crate::fresh::before_relu;
use crate::layers::{BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Linear, LinearConfig, Then};
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, TensorSource, WeightLayout};
use briquette_nn::NameMap;
use briquette_ops::compressed::max_pool2d;
use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::tensor::module::adaptive_avg_pool2d;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

/// Sizes of one of the four stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSizes {
    /// Number of blocks.
    pub n_blocks: usize,
    /// Channels of the 3x3 convolutions.
    pub width: usize,
    /// Output channels of a block.
    pub n_out: usize,
    /// Groups of the 3x3 convolutions.
    pub groups: usize,
}

/// Sizes of a [`ResNet`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResNetConfig {
    /// Channels of an image.
    pub in_channels: usize,
    /// Channels after the first convolution.
    pub stem: usize,
    /// Whether blocks are bottlenecks (1x1, 3x3, 1x1) and not two 3x3.
    pub bottleneck: bool,
    /// The stages, in order.
    pub stages: [StageSizes; 4],
    /// Number of classes.
    pub num_classes: usize,
}

/// Returns the blocks of each stage of torchvision's networks, and whether they are bottlenecks.
///
/// # Panics
/// If torchvision has no network of this depth.
fn blocks_of(depth: usize) -> ([usize; 4], bool) {
    match depth {
        18 => ([2, 2, 2, 2], false),
        34 => ([3, 4, 6, 3], false),
        50 => ([3, 4, 6, 3], true),
        101 => ([3, 4, 23, 3], true),
        152 => ([3, 8, 36, 3], true),
        _ => panic!("torchvision has no ResNet-{depth}"),
    }
}

/// Returns whether the tensor names have exactly the blocks of this depth.
pub(crate) fn has_names<const DEPTH: usize>(checkpoint: &Checkpoint) -> bool {
    let has = |name: &str| has_tensor(checkpoint, name);
    if !has("layer1.0.conv1.weight") {
        return false;
    }
    let n_blocks = |stage| (0..64).take_while(|block| has(&format!("layer{stage}.{block}.conv1.weight"))).count();
    let found = [n_blocks(1), n_blocks(2), n_blocks(3), n_blocks(4)];
    blocks_of(DEPTH) == (found, has("layer1.0.conv3.weight"))
}

/// Creates the unfilled network of a checkpoint, and its name map.
pub(crate) fn blank<const DEPTH: usize>(checkpoint: &Checkpoint, device: &Device) -> Result<(ResNet, NameMap)> {
    let config = ResNetConfig::read(checkpoint, DEPTH)?;
    Ok((config.init(device), NameMap::torch().rename("^ResNet", "")))
}

/// Returns the input of a checkpoint's network.
pub(crate) fn input<const DEPTH: usize>(checkpoint: &Checkpoint) -> Result<Input> {
    Ok(Input::Images(ImageInput::of_imagenet(ResNetConfig::read(checkpoint, DEPTH)?.in_channels)))
}

impl ResNetConfig {
    /// Returns torchvision's sizes for depth 18, 34, 50, 101 or 152.
    ///
    /// # Panics
    /// If the depth is another number.
    pub fn of(depth: usize, num_classes: usize) -> Self {
        let (n_blocks, bottleneck) = blocks_of(depth);
        let stage = |index: usize| {
            let width = 64 << index;
            StageSizes {
                n_blocks: n_blocks[index],
                width,
                n_out: if bottleneck { 4 * width } else { width },
                groups: 1,
            }
        };
        Self { in_channels: 3, stem: 64, bottleneck, stages: [0, 1, 2, 3].map(stage), num_classes }
    }

    /// Reads the widths from the weights; for missing weights, returns torchvision's, and loading reports the
    /// error.
    fn read(checkpoint: &Checkpoint, depth: usize) -> Result<Self> {
        let shape = |name: &str, rank: usize| {
            let found = checkpoint.tensors().iter().find(|info| info.name == name);
            found.map(|info| info.shape.0.clone()).filter(|shape| shape.len() == rank && !shape.contains(&0))
        };
        let outputs = usize::from(checkpoint.layout() == Some(WeightLayout::Burn));
        let mut config = Self::of(depth, shape("fc.weight", 2).map_or(1000, |shape| shape[outputs]));
        if let Some(conv) = shape("conv1.weight", 4) {
            (config.stem, config.in_channels) = (conv[0], conv[1]);
        }
        for (index, stage) in config.stages.iter_mut().enumerate() {
            let conv = |number| shape(&format!("layer{}.0.conv{number}.weight", index + 1), 4);
            let (three, last) = if config.bottleneck { (conv(2), conv(3)) } else { (conv(1), conv(2)) };
            let (Some(three), Some(last)) = (three, last) else { continue };
            (stage.width, stage.n_out) = (three[0], last[0]);
            if config.bottleneck {
                stage.groups = three[0] / three[1];
            }
            if !stage.width.is_multiple_of(stage.groups.max(1)) || stage.groups == 0 {
                let message = format!("layer{}.0.conv2.weight is {three:?}: its groups do not divide it", index + 1);
                return Err(Error::input(message).at(checkpoint.path().display()));
            }
        }
        Ok(config)
    }

    /// Creates a network with random weights, initialized as in torchvision and transformers.
    pub fn init(&self, device: &Device) -> ResNet {
        let [s1, s2, s3, s4] = self.stages;
        let stage = |n_in, stage, stride| self.stage(n_in, stage, stride, device);
        ResNet {
            conv1: conv(self.in_channels, self.stem, 7, 2, 1, device),
            bn1: norm(self.stem, device),
            layer1: stage(self.stem, s1, 1),
            layer2: stage(s1.n_out, s2, 2),
            layer3: stage(s2.n_out, s3, 2),
            layer4: stage(s3.n_out, s4, 2),
            fc: LinearConfig::new(s4.n_out, self.num_classes).init(device),
        }
    }

    fn stage(&self, n_in: usize, stage: StageSizes, stride: usize, device: &Device) -> Vec<ResidualBlock> {
        let block = |index: usize| {
            let (n_in, stride) = if index == 0 { (n_in, stride) } else { (stage.n_out, 1) };
            self.block(n_in, stage, stride, device)
        };
        (0..stage.n_blocks).map(block).collect()
    }

    fn block(
        &self,
        n_in: usize,
        StageSizes { width, n_out, groups, .. }: StageSizes,
        stride: usize,
        device: &Device,
    ) -> ResidualBlock {
        let (first, second) = if self.bottleneck {
            (conv(n_in, width, 1, 1, 1, device), conv(width, width, 3, stride, groups, device))
        } else {
            (conv(n_in, width, 3, stride, 1, device), conv(width, n_out, 3, 1, 1, device))
        };
        let shortcut = || (conv(n_in, n_out, 1, stride, 1, device), norm(n_out, device));
        ResidualBlock {
            conv1: first,
            bn1: norm(width, device),
            conv2: second,
            bn2: norm(if self.bottleneck { width } else { n_out }, device),
            conv3: self.bottleneck.then(|| conv(width, n_out, 1, 1, 1, device)),
            bn3: self.bottleneck.then(|| norm(n_out, device)),
            downsample: (stride != 1 || n_in != n_out).then(shortcut),
        }
    }
}

/// Creates a convolution without bias that changes the image size only by its stride.
fn conv(n_in: usize, n_out: usize, kernel: usize, stride: usize, groups: usize, device: &Device) -> Conv2d {
    let pad = kernel / 2;
    let config = Conv2dConfig::new([n_in, n_out], [kernel; 2])
        .with_stride([stride; 2])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_groups(groups)
        .with_bias(false);
    before_relu(config).init(device)
}

fn norm(channels: usize, device: &Device) -> BatchNorm {
    BatchNormConfig::new(channels).init(device)
}

/// Two 3x3 convolutions, or a bottleneck of three, with a shortcut.
#[derive(Module, Debug)]
struct ResidualBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm>,
    downsample: Option<(Conv2d, BatchNorm)>,
}

impl ResidualBlock {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let inner = self.conv1.forward_norm(x.clone(), &self.bn1, Then::Relu);
        let (inner, last, norm) = match (&self.conv3, &self.bn3) {
            (Some(conv3), Some(bn3)) => (self.conv2.forward_norm(inner, &self.bn2, Then::Relu), conv3, bn3),
            _ => (inner, &self.conv2, &self.bn2),
        };
        let shortcut = match &self.downsample {
            Some((conv, norm)) => conv.forward_norm(x, norm, Then::Nothing),
            None => x,
        };
        last.forward_norm(inner, norm, Then::AddRelu(shortcut))
    }
}

/// A residual network.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm,
    layer1: Vec<ResidualBlock>,
    layer2: Vec<ResidualBlock>,
    layer3: Vec<ResidualBlock>,
    layer4: Vec<ResidualBlock>,
    fc: Linear,
}

impl crate::low_rank::Linears for ResNet {
    fn linears(&mut self) -> Vec<(String, &mut Linear)> {
        vec![("fc".into(), &mut self.fc)]
    }
}

impl Architecture for ResNet {
    fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.forward(images)
    }
}

impl ResNet {
    /// Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.conv1.forward_norm(images, &self.bn1, Then::Relu);
        let stages = [&self.layer1, &self.layer2, &self.layer3, &self.layer4];
        let x = stages.into_iter().flatten().fold(max_pool2d(x, [3; 2], [2; 2], [1; 2]), |x, block| block.forward(x));
        self.fc.forward(adaptive_avg_pool2d(x, [1, 1]).flatten(1, 3))
    }
}
