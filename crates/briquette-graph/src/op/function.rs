//! Functions of elements.

use serde::Serialize;

/// A function of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementFunction {
    /// Sum of the inputs.
    Add,
    /// Difference of two inputs.
    Sub,
    /// Product of the inputs.
    Mul,
    /// Product with a constant tensor that is no weight, such as a cosine.
    Constant,
    /// Sum with a mask that is no weight.
    Mask,
    /// `-x`.
    Neg,
    /// `x²`.
    Square,
    /// `1 / sqrt(x + eps)`.
    Rsqrt,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x · Φ(x)`.
    Gelu,
    /// `x · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³))) / 2`: GELU by tanh.
    GeluTanh,
    /// `x · sigmoid(x)`.
    Silu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `x · min(max(x + 3, 0), 6) / 6`.
    HardSwish,
    /// `min(max(x + 3, 0), 6) / 6`.
    HardSigmoid,
    /// `x · sigmoid(1.702 x)`.
    QuickGelu,
    /// A function that no family uses, by its name in another format. It is not executed.
    Foreign(&'static str),
}

impl ElementFunction {
    /// The function's name, as reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "subtract",
            Self::Mul => "multiply",
            Self::Constant => "multiply by constant",
            Self::Mask => "mask",
            Self::Neg => "negate",
            Self::Square => "square",
            Self::Rsqrt => "reciprocal square root",
            Self::Relu => "relu",
            Self::Relu6 => "relu6",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu-tanh",
            Self::Silu => "silu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::HardSwish => "hard-swish",
            Self::HardSigmoid => "hard-sigmoid",
            Self::QuickGelu => "quick-gelu",
            Self::Foreign(name) => name,
        }
    }
}
