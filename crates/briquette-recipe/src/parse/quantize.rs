//! The stage that rounds weights to a grid.

use crate::parse::raw::{RawCalibration, RawOverride};
use crate::parse::selection::{Selection, overrides_of};
use crate::parse::statistics::statistics_of;
use crate::parse::words::{one_of, parse_scheme, refuse};
use briquette_core::encoded::ScaleType;
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Grid, GridKind, Grouping, Result, Role};
use briquette_methods::quant::{Activations, QuantSpec, Rounding, ScaleSearch, Scheme};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The keys of a quantize stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawQuantize {
    /// quantize: a named scheme such as "int8", "int8-dynamic" or "int4-g128".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// quantize: 2 to 8, instead of a scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// quantize: "tensor", "channel", or the number of inputs that share a scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<RawGroup>,
    /// quantize: true for no zero point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symmetric: Option<bool>,
    /// quantize: "absmax", "minmax", "percentile", "mse", without zero points "hqq", or "weighted", which looks at the inputs of
    /// weights too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// quantize: the share of weights that range "percentile" holds, 0.5 to 1 (0.999).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentile: Option<f64>,
    /// quantize: "nearest" (the default), or "gptq", which rounds column by column and moves the weights that follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<String>,
    /// quantize: statistics of the inputs of layers, for the range "weighted" and the rounding "gptq", where `[calibration]` does not
    /// have them; see docs/format.md.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<PathBuf>,
    /// quantize: type of the scales, "f32" (the default) or "f16".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<String>,
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
    /// Other values for some tensors; the last that matches counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<RawOverride>,
}

/// How many inputs share a scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected \"tensor\", \"channel\" or a whole number of inputs")]
pub enum RawGroup {
    /// Inputs that share a scale.
    Size(usize),
    /// "tensor" or "channel".
    Name(String),
}

/// Round weights to a grid.
#[derive(Debug, Clone)]
pub struct QuantizeStage {
    /// Which tensors.
    pub selection: Selection,
    /// The grid of weights, how it is fitted, and what is done with activations.
    pub scheme: Scheme,
    /// Other schemes for some tensors.
    pub overrides: Vec<(Patterns, Scheme)>,
    /// The schemes that a budget found, by the exact names of tensors. They precede overrides.
    pub found: BTreeMap<String, Scheme>,
    /// How weights that multiply inputs are rounded; tables that are looked up go to the nearest.
    pub rounding: Rounding,
    /// Statistics of the inputs of layers, where range or rounding need them and no calibration of the recipe gathers them.
    pub statistics: Option<PathBuf>,
    /// Whether the stage names embeddings, by role or by patterns: then heads among them are treated as it says.
    pub names_embeddings: bool,
}

impl RawQuantize {
    /// Whether its range or its rounding looks at statistics of inputs.
    pub(crate) fn needs_statistics(&self) -> bool {
        let is_asked = |name: &str| self.range.as_deref() == Some(name);
        let fits = ScaleSearch::named(0.5).iter().any(|(name, range)| range.needs_inputs() && is_asked(name));
        fits || self.round.as_deref() == Some("gptq")
    }

    /// What it says, in words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let scheme = self.scheme.clone().or(self.bits.map(|bits| format!("int{bits}")));
        let range = self.range.as_ref().map(|range| format!("range {range}"));
        [scheme, range, self.round.clone()].into_iter().flatten().collect()
    }
}

impl QuantizeStage {
    /// The roles of a stage that names none.
    pub(crate) const ROLES: [Role; 3] = [Role::Linear, Role::Conv, Role::Embedding];

    pub(crate) fn from_raw(raw: &RawQuantize, calibration: Option<&RawCalibration>) -> Result<Self> {
        let names_role = raw.roles.as_ref().is_some_and(|roles| roles.contains(&Role::Embedding));
        Ok(Self {
            names_embeddings: names_role || raw.include.is_some(),
            selection: Selection::new(raw.include.as_ref(), &raw.exclude, raw.roles.as_ref(), &Self::ROLES)?,
            scheme: scheme_of(raw)?,
            rounding: one_of("round", raw.round.as_deref().unwrap_or("nearest"), &Rounding::NAMES)?,
            statistics: statistics_of(&raw.statistics, raw.needs_statistics(), calibration, &asks_for(raw))?,
            overrides: overrides_of(&raw.overrides, |rule| {
                refuse("overrides.sparsity", &rule.sparsity, "quantize")?;
                let name = rule.scheme.as_ref().ok_or_else(|| Error::config("overrides.scheme: missing"))?;
                let mut scheme = parse_scheme("overrides.scheme", name)?;
                // Those of steps follow from how small they are.
                if let Some(scale) = scale_of(raw)?.filter(|_| !matches!(scheme.weights.range, ScaleSearch::Step(_))) {
                    scheme.weights.scale = scale;
                }
                Ok(scheme)
            })?,
            found: BTreeMap::new(),
        })
    }
}

impl QuantizeStage {
    /// Whether steps of some tensors are yet to be found.
    pub fn is_open(&self) -> bool {
        self.scheme.is_open() || self.overrides.iter().any(|(_, scheme)| scheme.is_open())
    }

    /// Whether an embedding that is also the output head keeps eight bits where other tensors have fewer: as a head it multiplies
    /// activations, and is more easily hurt.
    pub fn spares_heads(&self) -> bool {
        !self.names_embeddings && self.scheme.weights.grid.n_bits() < Grid::INT8.n_bits()
    }

    /// The scheme of a tensor: that of the last override whose pattern matches, else the stage's own. An embedding that is also the
    /// output head gets int8 with a scale for each row instead, unless the stage names embeddings.
    pub fn scheme_for(&self, name: &str, is_head: bool) -> Scheme {
        let overridden =
            || self.overrides.iter().rfind(|(patterns, _)| patterns.matches(name)).map(|(_, scheme)| scheme);
        match self.found.get(name).or_else(overridden) {
            Some(scheme) => *scheme,
            None if is_head && self.spares_heads() => {
                let weights = QuantSpec { grid: Grid::INT8, grouping: Grouping::Row, ..self.scheme.weights };
                Scheme { weights, activations: Activations::Float }
            }
            None => self.scheme,
        }
    }
}

/// A named scheme, or one spelled out; a range and a scale type may be added to either.
fn scheme_of(raw: &RawQuantize) -> Result<Scheme> {
    let mut scheme = match (&raw.scheme, raw.bits) {
        (Some(name), None) => {
            refuse("group", &raw.group, "quantize (with a scheme)")?;
            refuse("symmetric", &raw.symmetric, "quantize (with a scheme)")?;
            parse_scheme("scheme", name)?
        }
        (None, Some(bits)) => spelled_out(raw, bits)?,
        (Some(_), Some(_)) => return Err(Error::config("bits: a scheme says the bits already; remove one")),
        (None, None) => return Err(Error::config("scheme: missing; name one, such as \"int8\", or give bits")),
    };
    let share = raw.percentile.unwrap_or(0.999);
    if let Some(range) = &raw.range {
        scheme.weights.range = one_of("range", range, &ScaleSearch::named(share))?;
    }
    check_range(&scheme)?;
    if !matches!(scheme.weights.range, ScaleSearch::Percentile(_)) {
        refuse("percentile", &raw.percentile, "quantize (with another range)")?;
    }
    if !raw.needs_statistics() {
        refuse("statistics", &raw.statistics, "quantize (with neither range weighted nor round gptq)")?;
    }
    if let Some(scale) = scale_of(raw)? {
        scheme.weights.scale = scale;
    }
    Ok(scheme)
}

/// The types of scales.
pub(crate) const SCALES: [(&str, ScaleType); 2] = [("f32", ScaleType::F32), ("f16", ScaleType::F16)];

/// The type of scales, where it is said.
fn scale_of(raw: &RawQuantize) -> Result<Option<ScaleType>> {
    raw.scale.as_deref().map(|scale| one_of("scale", scale, &SCALES)).transpose()
}

/// What of a stage looks at inputs, as errors say it.
fn asks_for(raw: &RawQuantize) -> String {
    match &raw.round {
        Some(round) if round != "nearest" => format!("round `{round}`"),
        _ => format!("range `{}`", raw.range.as_deref().unwrap_or_default()),
    }
}

/// Refuses a range that would move nothing on this grid.
pub(crate) fn check_range(scheme: &Scheme) -> Result<()> {
    if scheme.weights.range == ScaleSearch::Hqq && scheme.weights.grid.is_asymmetric() {
        let message = "hqq moves zero points by fractions of a step, and those of an asymmetric scheme are whole numbers, so that \
                       nothing would move; leave it out, or take mse, or a symmetric scheme";
        return Err(Error::config(format!("range: {message}")));
    }
    Ok(())
}

fn spelled_out(raw: &RawQuantize, bits: u8) -> Result<Scheme> {
    let kind = if raw.symmetric.unwrap_or(true) { GridKind::Symmetric } else { GridKind::Asymmetric };
    let grid = Grid::new(bits, kind).ok_or_else(|| Error::config(format!("bits: found {bits}, expected 2 to 8")))?;
    let grouping = match &raw.group {
        None => Grouping::Row,
        Some(RawGroup::Size(size)) => Grouping::Group(*size),
        Some(RawGroup::Name(name)) => {
            one_of("group", name, &[("tensor", Grouping::Tensor), ("channel", Grouping::Row)])?
        }
    };
    let range = if grid.is_asymmetric() { ScaleSearch::MinMax } else { ScaleSearch::AbsMax };
    let weights = QuantSpec { grid, grouping, range, scale: ScaleType::F32 };
    Ok(Scheme { weights, activations: Activations::Float })
}
