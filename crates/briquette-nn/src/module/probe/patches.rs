//! Inputs of convolutions: patches of images.

use super::seen::BatchSums;
use super::{Probe, RecordedGram, RecordedInputs};
use crate::module::gram::group_grams;
use briquette_core::{Error, Result};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::module::unfold4d;
use burn::tensor::ops::UnfoldOptions;
use burn::tensor::{FloatDType, Tensor};

/// The maximum number of elements of patches of grouped convolutions that are in memory at a time, in each thread.
pub const GROUP_PATCHES: usize = 1 << 19;

/// Geometry of a convolution over an image, as extents of height and width.
#[derive(Debug, Clone, Copy)]
pub struct PatchShape {
    /// Extents of the kernel.
    pub kernel: [usize; 2],
    /// Stride.
    pub stride: [usize; 2],
    /// Zeros before and after the image, for height and width.
    pub padding: [[usize; 2]; 2],
    /// Dilation.
    pub dilation: [usize; 2],
    /// Number of channel groups.
    pub groups: usize,
}

impl Probe {
    /// Adds a batch of inputs `[n, channels, height, width]` of a convolution. Each position is one vector of
    /// `channels · kernel height · kernel width`, in the order of the weight's columns.
    ///
    /// Channel groups have statistics of their own: see [`InputStats`](briquette_core::InputStats).
    ///
    /// # Errors
    /// Config: the convolution has `Same` padding with strides. See [`observe`](Self::observe) for other errors.
    pub fn observe_conv(&self, path: &str, inputs: &Tensor<4>, conv: &Conv2d) -> Result<()> {
        let kernel = conv.kernel_size;
        let padding = match conv.padding {
            PaddingConfig2d::Valid => Some([[0; 2]; 2]),
            PaddingConfig2d::Same => {
                let both = [0, 1].map(|axis| conv.dilation[axis].saturating_mul(kernel[axis].saturating_sub(1)));
                (conv.stride == [1, 1]).then(|| both.map(|n| [n / 2, n - n / 2]))
            }
            PaddingConfig2d::Explicit(top, left, bottom, right) => Some([[top, bottom], [left, right]]),
        };
        let Some(padding) = padding else {
            return Err(Error::config("cannot probe Same padding with strides").at(path));
        };
        let (stride, dilation, groups) = (conv.stride, conv.dilation, conv.groups);
        self.observe_patches(path, inputs, PatchShape { kernel, stride, padding, dilation, groups })
    }

    /// Adds a batch of inputs of a convolution with this geometry.
    ///
    /// # Errors
    /// Config: groups do not divide the channels, or no patch fits the images. See [`observe`](Self::observe) for
    /// other errors.
    pub fn observe_patches(&self, path: &str, inputs: &Tensor<4>, patches: PatchShape) -> Result<()> {
        let PatchShape { kernel, stride, padding: [height, width], dilation, groups } = patches;
        let [_, channels, rows, columns] = inputs.dims();
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(
                Error::config(format!("found {channels} channels, expected a multiple of {groups} groups")).at(path)
            );
        }
        if channels == 0 || !patches.fit([rows, columns]) {
            let message = format!("found images of shape {:?}, expected at least a patch of {kernel:?}", inputs.dims());
            return Err(Error::config(message).at(path));
        }
        if inputs.dims()[0] == 0 {
            return Ok(());
        }
        let options = UnfoldOptions::new(stride, [0, 0], dilation);
        let padded = inputs.clone().without_autodiff().pad((width[0], width[1], height[0], height[1]), 0.0);
        if groups > 1 {
            return self.add_groups(path, &padded, |some| unfold4d(some, kernel, options.clone()), patches);
        }
        let columns: Tensor<3> = unfold4d(padded, kernel, options);
        let n_inputs = columns.dims()[1];
        self.add(path, columns.swap_dims(1, 2).reshape([-1, n_inputs as i32]))
    }

    /// Adds the patches of padded images by channel group. `unfold` maps `[n, channels, height, width]` to patches
    /// `[n, inputs, positions]`.
    ///
    /// Some groups of one image are unfolded at a time: patches of all groups are many times the images.
    fn add_groups(
        &self,
        path: &str,
        images: &Tensor<4>,
        unfold: impl Fn(Tensor<4>) -> Tensor<3>,
        PatchShape { kernel, groups, .. }: PatchShape,
    ) -> Result<()> {
        let [n_images, channels, height, width] = images.dims();
        let n_channels = channels / groups;
        let n_at_once = (GROUP_PATCHES / (n_channels * kernel[0] * kernel[1] * height * width).max(1)).clamp(1, groups);
        for image in 0..n_images {
            let image = images.clone().narrow(0, image, 1);
            let (mut sums, mut gram) = (BatchSums::of_groups(groups), Vec::new());
            for first in (0..groups).step_by(n_at_once) {
                let n = n_at_once.min(groups - first);
                let some = image.clone().narrow(1, first * n_channels, n * n_channels);
                let columns = unfold(some.reshape([n, n_channels, height, width])).cast(FloatDType::F32);
                let [_, n_inputs, n_positions] = columns.dims();
                let samples = columns.clone().reshape([n * n_inputs, n_positions]).transpose();
                sums.push(BatchSums::of(&samples, path)?);
                if self.has_gram {
                    gram.extend(group_grams(columns, path)?);
                }
            }
            let gram = if self.has_gram { RecordedGram::Groups(gram) } else { RecordedGram::None };
            self.record(RecordedInputs { layer: path.to_string(), gram, sums })?;
        }
        Ok(())
    }
}

impl PatchShape {
    /// Returns whether a patch fits an image of these extents, with stride and dilation above 0.
    fn fit(&self, image: [usize; 2]) -> bool {
        (0..2).all(|axis| {
            let padded = self.padding[axis].iter().try_fold(image[axis], |sum, zeros| sum.checked_add(*zeros));
            let reach = self.kernel[axis].checked_sub(1).and_then(|last| last.checked_mul(self.dilation[axis]));
            let is_inside = padded.zip(reach).is_some_and(|(padded, reach)| reach < padded);
            is_inside && self.stride[axis] > 0 && self.dilation[axis] > 0
        })
    }
}
