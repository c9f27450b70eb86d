//! The shape of a 2-D convolution or pooling window.

/// The parameters of a 2-D convolution, as in burn and PyTorch; pairs are height and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2dShape {
    /// Input channels.
    pub n_in: usize,
    /// Output channels.
    pub n_out: usize,
    /// Groups, which divide the input and output channels.
    pub groups: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Distance between patches.
    pub stride: [usize; 2],
    /// Zeros added before and after.
    pub padding: [[usize; 2]; 2],
    /// Distance between the taps of a patch.
    pub dilation: [usize; 2],
}

impl Conv2dShape {
    /// Returns a convolution with stride and dilation 1, no padding and one group.
    pub const fn new(n_in: usize, n_out: usize, kernel: [usize; 2]) -> Self {
        Self { n_in, n_out, groups: 1, kernel, stride: [1; 2], padding: [[0; 2]; 2], dilation: [1; 2] }
    }

    /// Returns height and width of the output for this input size; 0 if the kernel does not fit.
    pub fn out_size(&self, size: [usize; 2]) -> [usize; 2] {
        std::array::from_fn(|i| {
            let extent = self.dilation[i] * (self.kernel[i].max(1) - 1) + 1;
            let padded = size[i] + self.padding[i].iter().sum::<usize>();
            padded.checked_sub(extent).map_or(0, |room| room / self.stride[i] + 1)
        })
    }

    /// Returns the extents of the weights, `[out, in / groups, ky, kx]`.
    ///
    /// # Panics
    /// If the groups do not divide the channels, or a stride or dilation is 0.
    pub fn weight_dims(&self) -> [usize; 4] {
        let divides =
            self.groups > 0 && self.n_in.is_multiple_of(self.groups) && self.n_out.is_multiple_of(self.groups);
        assert!(divides, "{} groups of {} and {} channels", self.groups, self.n_in, self.n_out);
        assert!(
            self.stride.iter().chain(&self.dilation).all(|&step| step > 0),
            "a stride or dilation of 0 in {self:?}"
        );
        [self.n_out, self.n_in / self.groups, self.kernel[0], self.kernel[1]]
    }

    /// Returns the number of inputs of a patch.
    pub fn depth(&self) -> usize {
        self.n_in / self.groups * self.kernel[0] * self.kernel[1]
    }

    /// Returns whether each channel is its own group.
    pub fn is_depthwise(&self) -> bool {
        self.groups == self.n_in && self.n_in == self.n_out && self.groups > 1
    }

    /// Returns whether each output is computed from one pixel: one tap, one group and no padding.
    ///
    /// Integer kernels quantize each pixel of such a convolution by itself, as they quantize each row of a linear layer.
    pub fn is_pointwise(&self) -> bool {
        self.kernel == [1, 1] && self.groups == 1 && self.padding == [[0; 2]; 2]
    }

    /// Returns the input pixel at tap `(ky, kx)` of output pixel `(row, col)`, or `None` for padding.
    #[inline]
    pub fn source(&self, [row, col]: [usize; 2], [ky, kx]: [usize; 2], size: [usize; 2]) -> Option<usize> {
        let [[top, _], [left, _]] = self.padding;
        let y = (row * self.stride[0] + ky * self.dilation[0]).checked_sub(top).filter(|y| *y < size[0])?;
        let x = (col * self.stride[1] + kx * self.dilation[1]).checked_sub(left).filter(|x| *x < size[1])?;
        Some(y * size[1] + x)
    }
}
