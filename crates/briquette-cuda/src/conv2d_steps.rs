//! How a convolution steps over images.

/// How a kernel steps over images of one size; pairs are of height and width.
#[derive(Debug, Clone, Copy)]
pub struct Conv2dSteps {
    /// Channels of an image.
    pub channels: usize,
    /// Extent of an image.
    pub size: [usize; 2],
    /// Extent of the kernel.
    pub kernel: [usize; 2],
    /// Steps between patches.
    pub stride: [usize; 2],
    /// Zeros before and after.
    pub padding: [[usize; 2]; 2],
    /// Steps between taps.
    pub dilation: [usize; 2],
}

impl Conv2dSteps {
    /// Extent of the output, 0 where the kernel does not fit.
    pub fn out_size(&self) -> [usize; 2] {
        std::array::from_fn(|i| {
            let extent = self.dilation[i] * (self.kernel[i].max(1) - 1) + 1;
            let padded = self.size[i] + self.padding[i].iter().sum::<usize>();
            padded.checked_sub(extent).map_or(0, |room| room / self.stride[i] + 1)
        })
    }
}
