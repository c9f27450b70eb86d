//! Functions of each element and a number.

use serde::Serialize;

/// A function of each element `x` and a number `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberFunction {
    /// `x + n`.
    Add,
    /// `n - x`.
    SubtractFrom,
    /// `n / x`.
    Divide,
    /// `x / n`.
    DivideBy,
    /// `x / n`, rounded toward zero.
    Quotient,
    /// `xⁿ`.
    Power,
    /// `nˣ`.
    PowerOf,
    /// `max(x, n)`.
    AtLeast,
    /// `min(x, n)`.
    AtMost,
    /// `x` if it is above 0, else `n · x`.
    LeakyRelu,
    /// `x` if it is above 0, else `n · (eˣ - 1)`.
    Elu,
}

impl NumberFunction {
    /// The function's name, as reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add a constant",
            Self::SubtractFrom => "subtract from a constant",
            Self::Divide => "divide a constant",
            Self::DivideBy => "divide by a constant",
            Self::Quotient => "divide integers by a constant",
            Self::Power => "power by a constant",
            Self::PowerOf => "power of a constant",
            Self::AtLeast => "maximum with a constant",
            Self::AtMost => "minimum with a constant",
            Self::LeakyRelu => "leaky relu",
            Self::Elu => "elu",
        }
    }
}
