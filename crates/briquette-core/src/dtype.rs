//! Element types of tensors, named as in the safetensors format.

use serde::{Deserialize, Serialize};

/// The type of a tensor's elements, named as in the safetensors format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    #[serde(rename = "F8_E4M3")]
    F8E4M3,
    #[serde(rename = "F8_E5M2")]
    F8E5M2,
    #[serde(rename = "F8_E4M3FNUZ")]
    F8E4M3Fnuz,
    #[serde(rename = "F8_E5M2FNUZ")]
    F8E5M2Fnuz,
    #[serde(rename = "F8_E8M0")]
    F8E8M0,
    #[serde(rename = "F6_E2M3")]
    F6E2M3,
    #[serde(rename = "F6_E3M2")]
    F6E3M2,
    F4,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    C64,
}

impl DType {
    /// Every type, for parsing and tests.
    pub const ALL: [DType; 22] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::F8E4M3Fnuz,
        Self::F8E5M2Fnuz,
        Self::F8E8M0,
        Self::F6E2M3,
        Self::F6E3M2,
        Self::F4,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U64,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::Bool,
        Self::C64,
    ];

    /// Returns the width of one element in bits; 4 or 6 for the sub-byte floats.
    pub const fn n_bits(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 | Self::C64 => 64,
            Self::F32 | Self::I32 | Self::U32 => 32,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 16,
            Self::F8E4M3 | Self::F8E5M2 | Self::F8E4M3Fnuz | Self::F8E5M2Fnuz | Self::F8E8M0 => 8,
            Self::I8 | Self::U8 | Self::Bool => 8,
            Self::F6E2M3 | Self::F6E3M2 => 6,
            Self::F4 => 4,
        }
    }

    /// Returns the size of `n` elements in bytes, or `None` on overflow or if they do not fill whole bytes.
    pub fn n_bytes(self, n: usize) -> Option<usize> {
        let n_bits = n.checked_mul(self.n_bits())?;
        n_bits.is_multiple_of(8).then_some(n_bits / 8)
    }

    /// Returns whether weights of this type can be pruned and quantized: F64, F32, F16 and BF16.
    pub const fn is_weight(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16)
    }

    /// Returns the safetensors name, such as `BF16` or `F8_E4M3`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "F64",
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E5M2 => "F8_E5M2",
            Self::F8E4M3Fnuz => "F8_E4M3FNUZ",
            Self::F8E5M2Fnuz => "F8_E5M2FNUZ",
            Self::F8E8M0 => "F8_E8M0",
            Self::F6E2M3 => "F6_E2M3",
            Self::F6E3M2 => "F6_E3M2",
            Self::F4 => "F4",
            Self::I64 => "I64",
            Self::I32 => "I32",
            Self::I16 => "I16",
            Self::I8 => "I8",
            Self::U64 => "U64",
            Self::U32 => "U32",
            Self::U16 => "U16",
            Self::U8 => "U8",
            Self::Bool => "BOOL",
            Self::C64 => "C64",
        }
    }

    /// Returns the type with this safetensors name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_in_text_and_in_json() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert_eq!(serde_json::to_string(&dtype).unwrap(), format!("\"{dtype}\""));
        }
    }

    #[test]
    fn sub_byte_elements_must_fill_whole_bytes() {
        assert_eq!(DType::F4.n_bytes(3), None);
        assert_eq!(DType::F6E2M3.n_bytes(4), Some(3));
        assert_eq!(DType::F64.n_bytes(usize::MAX), None);
    }
}
