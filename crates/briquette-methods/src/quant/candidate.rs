//! The ways to store a tensor.

/// One way to store a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The size in bytes.
    pub bytes: f64,
    /// The loss increase; the losses of tensors are added.
    pub loss: f64,
    /// The kernel that multiplies by the tensor.
    pub kernel: KernelKind,
}

/// The kind of kernel that multiplies by the codes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KernelKind {
    /// Whether the codes have up to four bits, rather than up to eight.
    pub is_narrow: bool,
    /// Whether activations are quantized too.
    pub rounds_inputs: bool,
}
