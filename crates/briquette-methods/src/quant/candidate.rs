//! The ways a tensor may be kept.

/// One way of keeping a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// What it takes.
    pub bytes: f64,
    /// What is lost by it; losses of tensors add up.
    pub loss: f64,
    /// What multiplies by it.
    pub kernel: KernelKind,
}

/// What multiplies by the codes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KernelKind {
    /// Whether they have four bits or fewer, rather than up to eight.
    pub is_narrow: bool,
    /// Whether inputs are rounded to codes too.
    pub rounds_inputs: bool,
}
