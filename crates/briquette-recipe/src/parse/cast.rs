//! The stage that stores floats in another type.

use crate::parse::selection::Selection;
use crate::parse::words::one_of;
use briquette_core::{DType, Error, Result, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of a cast stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawCast {
    /// cast: the type that floats are stored in, "f16", "bf16" or "f32".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Globs over tensor names; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over tensor names to leave out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Which roles are chosen: linear and conv for prune; linear, conv and embedding for quantize; all for cast; linear for
    /// factorize, always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<Vec<Role>>,
}

/// Store floats in another type: `v = round_to(dtype, w)`, to the nearest, ties to even.
///
/// A tensor that an earlier stage prunes is cast after its weights are set to zero. One that an earlier stage quantizes is stored as
/// codes, no longer as floats, and is left alone.
#[derive(Debug, Clone)]
pub struct CastStage {
    /// Which tensors.
    pub selection: Selection,
    /// Their type from here on.
    pub dtype: DType,
}

impl RawCast {
    /// What it says, in words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        self.dtype.iter().cloned().collect()
    }
}

impl CastStage {
    pub(crate) fn from_raw(raw: &RawCast) -> Result<Self> {
        let name = raw.dtype.as_ref().ok_or_else(|| Error::config("dtype: missing; name one, such as \"f16\""))?;
        let known = [("f16", DType::F16), ("bf16", DType::BF16), ("f32", DType::F32)];
        // Casting suits any float, so every role is chosen unless the stage names some.
        Ok(Self {
            selection: Selection::new(raw.include.as_ref(), &raw.exclude, raw.roles.as_ref(), &Role::ALL)?,
            dtype: one_of("dtype", name, &known)?,
        })
    }
}
