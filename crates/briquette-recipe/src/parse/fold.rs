//! The fold stage: moves norms and scales into other layers, so that the network computes the same.

use crate::parse::words::one_of;
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The keys of a fold stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawFold {
    /// fold: what is moved: "batch-norm" (batch norms into the layer before them) or "equalize" (scales between layers
    /// with a ReLU between them).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Globs over tensor names; all tensors by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over the names of tensors to skip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// A stage that changes weights and keeps the function of the network.
#[derive(Debug, Clone)]
pub struct FoldStage {
    /// What is moved.
    pub method: FoldMethod,
    /// Patterns of names; a place is folded if one of its tensors matches. `None` matches all.
    pub include: Option<Patterns>,
    /// Patterns of names; a place is skipped if one of its tensors matches.
    pub exclude: Patterns,
}

/// What a fold stage moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FoldMethod {
    /// Batch norms, into the convolution or linear layer before them.
    BatchNorm,
    /// Scales of channels between two layers with a ReLU between them, so that their ranges are equal.
    Equalize,
}

impl FoldMethod {
    /// Returns the name in recipes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BatchNorm => "batch-norm",
            Self::Equalize => "equalize",
        }
    }
}

impl RawFold {
    /// Returns the settings of the stage in short words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        self.method.iter().cloned().collect()
    }
}

impl FoldStage {
    pub(crate) fn from_raw(raw: &RawFold) -> Result<Self> {
        let known = [FoldMethod::BatchNorm, FoldMethod::Equalize].map(|method| (method.name(), method));
        let Some(name) = &raw.method else {
            let names = known.map(|(name, _)| name).join(", ");
            return Err(Error::config(format!("method: missing; set it to one of {names}")));
        };
        Ok(Self {
            method: one_of("method", name, &known)?,
            include: raw.include.as_ref().map(Patterns::new).transpose()?,
            exclude: Patterns::new(&raw.exclude)?,
        })
    }

    /// Returns the file of input statistics, if the method needs one.
    pub fn statistics(&self) -> Option<&Path> {
        None
    }
}
