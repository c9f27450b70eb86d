//! How weights are stored in an ONNX model.

use crate::graph::{Weight, WeightId};
use crate::op::FixedGrid;

/// The type of floats in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnnxFloat {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits. Inputs, outputs and the statistics of norms are f32.
    F16,
}

/// The form of a linear layer's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinearForm {
    /// Floats.
    #[default]
    Float,
    /// int8 codes with a scale for each output, which the model dequantizes.
    Int8,
    /// int8 codes with a scale for each output. The model rounds inputs to 8 bits and multiplies integers.
    Int8Dynamic,
    /// Codes of 4 or 8 bits with a scale for each group of inputs: `com.microsoft.MatMulNBits`.
    Blocks {
        /// Bits of a code, 4 or 8.
        bits: u8,
        /// Inputs in a group: a power of two, 16 or more.
        group: usize,
        /// Whether groups have zero points.
        has_zero_points: bool,
    },
}

/// The form of a table whose rows are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TableForm {
    /// Floats.
    #[default]
    Float,
    /// int8 codes with a scale for each row.
    Int8 {
        /// Whether f16 holds the scales, so that a table of nothing but rows stores them in it.
        has_half_scales: bool,
    },
    /// Codes of 4 or 8 bits with a scale for each group of columns: `com.microsoft.GatherBlockQuantized`.
    Blocks {
        /// Bits of a code, 4 or 8.
        bits: u8,
        /// Columns in a group: a power of two, 16 or more.
        group: usize,
        /// Whether groups have zero points.
        has_zero_points: bool,
    },
}

/// The forms of the weights of a network.
pub trait WeightForms {
    /// Returns the form of a linear layer's weight.
    fn linear(&self, weight: &Weight) -> LinearForm;
    /// Returns the number of the vector that multiplies the inputs of a linear layer in codes; the weight is divided by it.
    ///
    /// Layers of one input with the same number share the product.
    fn input_scale(&self, _weight: &Weight) -> Option<usize> {
        None
    }
    /// Returns the grid of the inputs of a linear layer, after their product with the vector. Codes of the grid have 8 bits.
    fn input_grid(&self, _weight: &Weight) -> Option<FixedGrid> {
        None
    }
    /// Returns whether codes in groups only need ONNX's own operators. Otherwise, they need those of `com.microsoft`.
    fn has_own_operators(&self) -> bool {
        false
    }
    /// Returns the form of a table.
    fn table(&self, weight: &Weight) -> TableForm;
    /// Returns whether a matrix may be transposed in memory. Others get an operator that transposes them.
    fn is_transposed_in_memory(&self, weight: &Weight) -> bool;
}

/// The bytes of a streamed tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightBytes {
    /// The elements of the tensor, in its own type.
    Stored,
    /// The weight's floats, in the model's type.
    Floats,
    /// The weight's floats, in f16.
    HalfFloats,
    /// The floats of a matrix, transposed.
    TransposedFloats,
    /// int8 codes, `[out, in]`, or of a table `[rows, width]`.
    Codes,
    /// int8 codes of a linear layer, `[in, out]`.
    TransposedCodes,
    /// The scale of each output or row, f32.
    RowScales,
    /// The scale of each row, f16.
    HalfRowScales,
    /// The vector that inputs are multiplied by, `[in]`.
    InputScales,
    /// Codes as `MatMulNBits` packs them: `[out, groups, bytes of a group]`, low bits first, 8 or 128 for zero.
    Blocks,
    /// Codes of 4 or 8 bits with a sign, `[in, out]`, 4-bit codes in pairs.
    TransposedBlocks,
    /// The scale of each group, `[groups, out]`.
    TransposedBlockScales,
    /// The zero points of groups, `[groups, out]`, packed as their codes are.
    TransposedBlockZeros,
    /// The scale of each group, `[out, groups]`.
    BlockScales,
    /// The zero points of groups, packed as codes are.
    BlockZeros,
}

impl WeightBytes {
    /// Returns whether the bytes are codes of a weight.
    pub fn is_codes(self) -> bool {
        matches!(self, Self::Codes | Self::TransposedCodes | Self::Blocks | Self::TransposedBlocks)
    }
}

/// How the bytes of a streamed tensor follow from a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OnnxWeight {
    /// The weight in the graph.
    pub weight: WeightId,
    /// The bytes.
    pub bytes: WeightBytes,
}
