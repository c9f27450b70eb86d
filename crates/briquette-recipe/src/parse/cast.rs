//! The cast stage: stores floats in another type.

use crate::parse::selection::Selection;
use crate::parse::words::one_of;
use briquette_core::{DType, Error, Result, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of a cast stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawCast {
    /// cast: the type to store floats in: "f16", "bf16" or "f32".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Globs over tensor names; all tensors by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over the names of tensors to skip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Roles of the tensors to process. Default: linear and conv for prune; linear, conv and embedding for
    /// quantize; all for cast. factorize always uses linear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<Vec<Role>>,
}

/// A stage that stores floats in another type: `v = round_to(dtype, w)`, to the nearest, ties to even.
///
/// A tensor that an earlier stage prunes is cast after pruning. A tensor that an earlier stage quantizes is
/// stored as codes and is not cast.
#[derive(Debug, Clone)]
pub struct CastStage {
    /// The tensors to cast.
    pub selection: Selection,
    /// The type to store them in.
    pub dtype: DType,
}

impl RawCast {
    /// Returns the settings of the stage in short words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        self.dtype.iter().cloned().collect()
    }
}

impl CastStage {
    pub(crate) fn from_raw(raw: &RawCast) -> Result<Self> {
        let name = raw.dtype.as_ref().ok_or_else(|| Error::config("dtype: missing; set a type such as \"f16\""))?;
        let known = [("f16", DType::F16), ("bf16", DType::BF16), ("f32", DType::F32)];
        // Any float tensor can be cast, so all roles are the default.
        Ok(Self {
            selection: Selection::new(raw.include.as_ref(), &raw.exclude, raw.roles.as_ref(), &Role::ALL)?,
            dtype: one_of("dtype", name, &known)?,
        })
    }
}
