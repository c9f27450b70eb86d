//! The fold stage: moves norms and scales into other layers, so that the network computes the same.

use crate::parse::raw::RawCalibration;
use crate::parse::statistics::statistics_file;
use crate::parse::words::{one_of, refuse};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result};
use briquette_methods::quant::{QuantSpec, Scheme, UnknownScheme};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The keys of a fold stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawFold {
    /// fold: "batch-norm" moves batch norms into the layer before them. "equalize" gives two layers equal ranges.
    /// "rotate" rotates the residual stream of decoders with RMS norms (QuaRot). With statistics, "smooth" moves the range of inputs into weights (SmoothQuant), and "awq" scales weights whose inputs are large.
    /// "auto" does either or neither for each input, whichever has the smallest predicted error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// fold: the exponent of input ranges of "smooth", from 0 to 1. By default, it is searched for each input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// fold: the scheme that "awq" and "auto" predict errors with ("int4-g128-asym").
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// fold: the seed of the random signs of "rotate" (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// fold: a file of input statistics, if `[calibration]` does not provide it; see docs/guide/src/file-format.md. "awq" uses
    /// Gram matrices where the file has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<PathBuf>,
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
    /// The method.
    pub method: FoldMethod,
    /// A file of input statistics, if the method needs it.
    pub statistics: Option<PathBuf>,
    /// Patterns of names; a place is folded if one of its tensors matches. `None` matches all.
    pub include: Option<Patterns>,
    /// Patterns of names; a place is skipped if one of its tensors matches.
    pub exclude: Patterns,
}

/// The method of a fold stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FoldMethod {
    /// Batch norms, into the convolution or linear layer before them.
    BatchNorm,
    /// Scales of channels between two layers with a ReLU between them, so that their ranges are equal.
    Equalize,
    /// The range of inputs, into the weights that read them.
    Smooth {
        /// The exponent of input ranges; searched for each input where absent.
        alpha: Option<f64>,
    },
    /// Rotations of the residual stream and of the values of attention, by random orthogonal matrices.
    Rotate {
        /// The seed of the random signs.
        seed: u64,
    },
    /// Scales that make weights with large inputs lose less when rounded.
    Awq {
        /// The weights' scheme.
        spec: QuantSpec,
    },
    /// The scales of `smooth` or of `awq`, or none, for each input.
    Auto {
        /// The scheme that errors are predicted with.
        scheme: Scheme,
    },
}

/// The scheme of llm-awq.
const AWQ_SCHEME: &str = "int4-g128-asym";

impl FoldMethod {
    /// Returns the name in recipes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BatchNorm => "batch-norm",
            Self::Equalize => "equalize",
            Self::Rotate { .. } => "rotate",
            Self::Smooth { .. } => "smooth",
            Self::Awq { .. } => "awq",
            Self::Auto { .. } => "auto",
        }
    }
}

impl RawFold {
    /// Returns whether the method needs input statistics.
    pub(crate) fn needs_statistics(&self) -> bool {
        matches!(self.method.as_deref(), Some("smooth" | "awq" | "auto"))
    }

    /// Returns the settings of the stage in short words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let alpha = self.alpha.map(|alpha| format!("alpha {alpha}"));
        [self.method.clone(), alpha, self.scheme.clone()].into_iter().flatten().collect()
    }
}

impl FoldStage {
    pub(crate) fn from_raw(raw: &RawFold, calibration: Option<&RawCalibration>) -> Result<Self> {
        let scheme = scheme_of(raw)?;
        let (awq, auto) = (FoldMethod::Awq { spec: scheme.weights }, FoldMethod::Auto { scheme });
        let smooth = FoldMethod::Smooth { alpha: raw.alpha };
        let rotate = FoldMethod::Rotate { seed: raw.seed.unwrap_or(0) };
        let known = [FoldMethod::BatchNorm, FoldMethod::Equalize, rotate, smooth, awq, auto]
            .map(|method| (method.name(), method));
        let Some(name) = &raw.method else {
            let names = known.map(|(name, _)| name).join(", ");
            return Err(Error::config(format!("method: missing; set it to one of {names}")));
        };
        let method = one_of("method", name, &known)?;
        let (needs, what) = (raw.needs_statistics(), format!("{name} fold stage"));
        refuse("alpha", &raw.alpha.filter(|_| !matches!(method, FoldMethod::Smooth { .. })), &what)?;
        let predicts = matches!(method, FoldMethod::Awq { .. } | FoldMethod::Auto { .. });
        refuse("scheme", &raw.scheme.as_ref().filter(|_| !predicts), &what)?;
        let rotates = matches!(method, FoldMethod::Rotate { .. });
        refuse("seed", &raw.seed.filter(|_| !rotates), &what)?;
        refuse("include", &raw.include.as_ref().filter(|_| rotates), &what)?;
        refuse("exclude", &Some(&raw.exclude).filter(|own| rotates && !own.is_empty()), &what)?;
        refuse("statistics", &raw.statistics.as_ref().filter(|_| !needs), &what)?;
        if needs && raw.statistics.is_none() && calibration.is_some_and(|own| own.data.is_some()) {
            return Err(Error::config(
                "statistics: found calibration.data, expected a file; run `briquette calibrate`, and set the file as statistics",
            ));
        }
        Ok(Self {
            method,
            statistics: statistics_file(&raw.statistics, needs, calibration, &format!("method `{name}`"))?,
            include: raw.include.as_ref().map(Patterns::new).transpose()?,
            exclude: Patterns::new(&raw.exclude)?,
        })
    }
}

/// Returns the scheme that errors are predicted with.
fn scheme_of(raw: &RawFold) -> Result<Scheme> {
    let scheme: Scheme = raw
        .scheme
        .as_deref()
        .unwrap_or(AWQ_SCHEME)
        .parse()
        .map_err(|error: UnknownScheme| Error::config(error.to_string()).at("scheme"))?;
    match scheme.is_open() {
        true => Err(Error::config("scheme: found a step without a size, expected one with it, such as step0.01")),
        false => Ok(scheme),
    }
}
