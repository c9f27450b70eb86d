//! The geometry of a convolution on images of one size.

/// The geometry of a convolution on images of one size; pairs are height and width.
#[derive(Debug, Clone, Copy)]
pub struct Conv2dSteps {
    /// Channels of an image.
    pub channels: usize,
    /// Height and width of an image.
    pub size: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Distance between patches.
    pub stride: [usize; 2],
    /// Zeros added before and after.
    pub padding: [[usize; 2]; 2],
    /// Distance between taps.
    pub dilation: [usize; 2],
}

impl Conv2dSteps {
    /// Returns height and width of the output; 0 if the kernel does not fit.
    pub fn out_size(&self) -> [usize; 2] {
        std::array::from_fn(|i| {
            let extent = self.dilation[i] * (self.kernel[i].max(1) - 1) + 1;
            let padded = self.size[i] + self.padding[i].iter().sum::<usize>();
            padded.checked_sub(extent).map_or(0, |room| room / self.stride[i] + 1)
        })
    }
}
