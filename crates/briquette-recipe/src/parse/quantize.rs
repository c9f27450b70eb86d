//! The quantize stage.

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
    /// quantize: a named scheme such as "int8", "int8-dynamic", "int4-g128" or "int4-g32-dynamic".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// quantize: bits per weight, 2 to 8, instead of a scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// quantize: the group that shares a scale: "tensor", "channel" or a number of inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<RawGroup>,
    /// quantize: whether the grid has no zero point (true).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symmetric: Option<bool>,
    /// quantize: how the range is found: "absmax", "minmax", "percentile", "mse", "hqq" (symmetric grids only),
    /// or "weighted" (needs input statistics).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// quantize: the share of weights within the range "percentile", 0.5 to 1 (0.999).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentile: Option<f64>,
    /// quantize: "nearest" (the default), or "gptq", which rounds column by column and updates the remaining
    /// weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<String>,
    /// quantize: "signround" then learns the rounding and scales of each block from its outputs, in 200 steps; needs
    /// `calibration.data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconstruct: Option<String>,
    /// quantize: a file of input statistics, for the range "weighted" and for "gptq", if `[calibration]` does
    /// not provide them; see docs/guide/src/file-format.md.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<PathBuf>,
    /// quantize: whether linear layers also have a scale for each column, which multiplies their inputs before they are
    /// rounded (false). The scales of SmoothQuant or AWQ, chosen for each input; needs input statistics, and the format briquette.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column_scales: Option<bool>,
    /// quantize: whether biases, and the means of batch norms, take up the mean error of the layer's new weights (false); needs input
    /// statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias_correction: Option<bool>,
    /// quantize: the type of the scales: "f32" (the default) or "f16".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<String>,
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
    /// Other values for some tensors; if several match, the last applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<RawOverride>,
}

/// The weights that share a scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected \"tensor\", \"channel\" or a whole number of inputs")]
pub enum RawGroup {
    /// Number of inputs that share a scale.
    Size(usize),
    /// "tensor" or "channel".
    Name(String),
}

/// A stage that quantizes weights.
#[derive(Debug, Clone)]
pub struct QuantizeStage {
    /// The tensors to quantize.
    pub selection: Selection,
    /// Grid, grouping and range of the weights, and the quantization of activations.
    pub scheme: Scheme,
    /// Other schemes for some tensors.
    pub overrides: Vec<(Patterns, Scheme)>,
    /// The schemes that a budget found, by the exact names of tensors. They precede overrides.
    pub found: BTreeMap<String, Scheme>,
    /// How the weights of layers are rounded; lookup tables are always rounded to the nearest.
    pub rounding: Rounding,
    /// Whether the rounding is then learned from the outputs of each block (SignRound).
    pub learns: bool,
    /// Whether biases take up the mean error of new weights.
    pub corrects_biases: bool,
    /// Whether a training before the stage keeps weights on its grids.
    pub is_trained: bool,
    /// A file of input statistics, if the range or the rounding needs them and no calibration gathers them.
    pub statistics: Option<PathBuf>,
    /// Whether the stage selects embeddings by role or by pattern. If so, its scheme also applies to tied
    /// heads.
    pub names_embeddings: bool,
}

/// The schemes whose step sizes a budget chooses.
pub const OPEN_SCHEMES: [&str; 2] = ["step", "step-dynamic"];

impl RawQuantize {
    /// Returns the stage that a budget fills if the user names none: step sizes, and GPTQ if there is data.
    pub fn for_budget(has_data: bool) -> Self {
        Self { scheme: Some(OPEN_SCHEMES[0].into()), round: has_data.then(|| "gptq".into()), ..Self::default() }
    }

    /// Returns whether the range or the rounding needs input statistics.
    pub(crate) fn needs_statistics(&self) -> bool {
        let is_asked = |name: &str| self.range.as_deref() == Some(name);
        let fits = ScaleSearch::named(0.5).iter().any(|(name, range)| range.needs_inputs() && is_asked(name));
        fits || self.updates_weights() || self.scales_columns() || self.corrects_biases()
    }

    /// Returns whether columns get scales.
    pub(crate) fn scales_columns(&self) -> bool {
        self.column_scales == Some(true)
    }

    /// Returns whether biases take up the mean error of new weights.
    pub(crate) fn corrects_biases(&self) -> bool {
        self.bias_correction == Some(true)
    }

    /// Returns whether layers get static int8 activations.
    pub(crate) fn is_static(&self) -> bool {
        self.scheme_that(|scheme| scheme.activations == Activations::Static).is_some()
    }

    /// Returns a scheme whose codes are chosen on a trellis, if there is one.
    pub(crate) fn trellis(&self) -> Option<&str> {
        self.scheme_that(|scheme| scheme.weights.has_trellis)
    }

    /// Returns the name of a scheme that passes a test.
    fn scheme_that(&self, passes: impl Fn(Scheme) -> bool) -> Option<&str> {
        let overrides = self.overrides.iter().filter_map(|rule| rule.scheme.as_deref());
        overrides.chain(self.scheme.as_deref()).find(|name| name.parse().is_ok_and(&passes))
    }

    /// Returns whether weights are updated while they are rounded.
    pub(crate) fn updates_weights(&self) -> bool {
        self.round.as_deref() == Some("gptq") || self.reconstruct.is_some()
    }

    /// Returns the settings of the stage in short words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let scheme = self.scheme.clone().or(self.bits.map(|bits| format!("int{bits}")));
        let range = self.range.as_ref().map(|range| format!("range {range}"));
        let columns = self.scales_columns().then(|| "column scales".into());
        let biases = self.corrects_biases().then(|| "bias correction".into());
        [scheme, range, self.round.clone(), self.reconstruct.clone(), columns, biases].into_iter().flatten().collect()
    }
}

impl QuantizeStage {
    /// The default roles.
    pub(crate) const ROLES: [Role; 3] = [Role::Linear, Role::Conv, Role::Embedding];

    /// Validates the keys of a quantize stage; `is_trained` if a training with `quantization_aware` comes before it.
    ///
    /// # Errors
    /// Config: a key is missing, invalid or without effect.
    pub(crate) fn from_raw(raw: &RawQuantize, calibration: Option<&RawCalibration>, is_trained: bool) -> Result<Self> {
        if raw.is_static() && calibration.is_none_or(|keys| keys.data.is_none()) {
            let message = "int8-static runs the model to find the ranges of activations; set calibration.data (--data)";
            return Err(Error::config(format!("scheme: {message}")));
        }
        check_trellis(raw, is_trained)?;
        let names_role = raw.roles.as_ref().is_some_and(|roles| roles.contains(&Role::Embedding));
        Ok(Self {
            names_embeddings: names_role || raw.include.is_some(),
            selection: Selection::new(raw.include.as_ref(), &raw.exclude, raw.roles.as_ref(), &Self::ROLES)?,
            scheme: scheme_of(raw)?,
            rounding: one_of("round", raw.round.as_deref().unwrap_or("nearest"), &Rounding::NAMES)?,
            learns: learns(raw, calibration)?,
            corrects_biases: raw.corrects_biases(),
            is_trained,
            statistics: statistics_of(&raw.statistics, raw.needs_statistics(), calibration, &asks_for(raw))?,
            overrides: overrides_of(&raw.overrides, |rule| {
                refuse("overrides.sparsity", &rule.sparsity, "quantize stage")?;
                let name = rule
                    .scheme
                    .as_ref()
                    .ok_or_else(|| Error::config("overrides.scheme: missing; set a scheme such as \"int8\""))?;
                let mut scheme = parse_scheme("overrides.scheme", name)?;
                scheme.weights.has_columns = raw.scales_columns();
                // The scale type of a step size follows from its value.
                if let Some(scale) = scale_of(raw)?.filter(|_| !scheme.weights.range.is_step()) {
                    scheme.weights.scale = scale;
                }
                Ok(scheme)
            })?,
            found: BTreeMap::new(),
        })
    }
}

/// Refuses a trellis whose codes nothing chooses, or two things: a training keeps weights on the trellis.
fn check_trellis(raw: &RawQuantize, is_trained: bool) -> Result<()> {
    let Some(name) = raw.trellis() else { return Ok(()) };
    let message = match (is_trained, raw.updates_weights()) {
        (true, false) => return Ok(()),
        (false, true) if raw.reconstruct.is_none() => return Ok(()),
        (true, true) => "has the codes that the training chose; remove round and reconstruct",
        (false, _) => "chooses codes while weights are updated; set round = \"gptq\", without reconstruct",
    };
    Err(Error::config(format!("scheme: {name} {message}")))
}

/// Returns whether the rounding is learned.
fn learns(raw: &RawQuantize, calibration: Option<&RawCalibration>) -> Result<bool> {
    let Some(name) = &raw.reconstruct else { return Ok(false) };
    let is_known = one_of("reconstruct", name, &[("signround", true)])?;
    if raw.statistics.is_some() || calibration.is_none_or(|keys| keys.data.is_none()) {
        let message =
            "signround runs each block, so it needs data and no statistics file; set calibration.data (--data)";
        return Err(Error::config(format!("reconstruct: {message}")));
    }
    Ok(is_known)
}

impl QuantizeStage {
    /// Returns whether weights are updated while they are rounded.
    pub fn updates_weights(&self) -> bool {
        self.rounding == Rounding::Gptq || self.learns
    }

    /// Returns whether columns get scales.
    pub fn scales_columns(&self) -> bool {
        self.scheme.weights.has_columns
    }

    /// Returns whether layers get static int8 activations.
    pub fn has_static_activations(&self) -> bool {
        let is_static = |scheme: &Scheme| scheme.activations == Activations::Static;
        is_static(&self.scheme) || self.overrides.iter().any(|(_, scheme)| is_static(scheme))
    }

    /// Returns whether some tensors have no step size yet.
    pub fn is_open(&self) -> bool {
        self.scheme.is_open() || self.overrides.iter().any(|(_, scheme)| scheme.is_open())
    }

    /// Returns whether tied heads keep eight bits although the scheme has fewer.
    ///
    /// A tied head multiplies activations and is more sensitive than a lookup table.
    pub fn spares_heads(&self) -> bool {
        !self.names_embeddings && self.scheme.weights.grid.n_bits() < Grid::INT8.n_bits()
    }

    /// Returns the scheme of a tensor: of the last matching override, or else of the stage.
    ///
    /// A tied head gets int8 with one scale per row instead, unless the stage selects embeddings. Its activations
    /// are quantized as the scheme quantizes them.
    pub fn scheme_for(&self, name: &str, is_head: bool) -> Scheme {
        let overridden =
            || self.overrides.iter().rfind(|(patterns, _)| patterns.matches(name)).map(|(_, scheme)| scheme);
        match self.found.get(name).or_else(overridden) {
            Some(scheme) => *scheme,
            None if is_head && self.spares_heads() => {
                let weights = QuantSpec { grid: Grid::INT8, grouping: Grouping::Row, ..self.scheme.weights };
                Scheme { weights, ..self.scheme }
            }
            None => self.scheme,
        }
    }
}

/// Returns the scheme by name or by bits, with the range and the scale type of the stage.
fn scheme_of(raw: &RawQuantize) -> Result<Scheme> {
    let mut scheme = match (&raw.scheme, raw.bits) {
        (Some(name), None) => {
            refuse("group", &raw.group, "quantize stage with a scheme")?;
            refuse("symmetric", &raw.symmetric, "quantize stage with a scheme")?;
            parse_scheme("scheme", name)?
        }
        (None, Some(bits)) => spelled_out(raw, bits)?,
        (Some(_), Some(_)) => {
            return Err(Error::config("bits: the scheme already sets the bits; remove one of the two"));
        }
        (None, None) => return Err(Error::config("scheme: missing; set a scheme such as \"int8\", or bits")),
    };
    let share = raw.percentile.unwrap_or(0.999);
    if let Some(range) = &raw.range {
        scheme.weights.range = one_of("range", range, &ScaleSearch::named(share))?;
    }
    check_range(&scheme)?;
    if !matches!(scheme.weights.range, ScaleSearch::Percentile(_)) {
        refuse("percentile", &raw.percentile, "quantize stage with another range")?;
    }
    if !raw.needs_statistics() {
        let stage = "quantize stage without range weighted, round gptq, column_scales and bias_correction";
        refuse("statistics", &raw.statistics, stage)?;
    }
    if let Some(scale) = scale_of(raw)? {
        scheme.weights.scale = scale;
    }
    scheme.weights.has_columns = raw.scales_columns();
    check_columns(raw)?;
    Ok(scheme)
}

/// Refuses scales of columns together with SignRound.
fn check_columns(raw: &RawQuantize) -> Result<()> {
    if raw.scales_columns() && raw.reconstruct.is_some() {
        return Err(Error::config("column_scales: signround does not learn with them; remove one of the two"));
    }
    Ok(())
}

/// The types of scales.
pub(crate) const SCALES: [(&str, ScaleType); 2] = [("f32", ScaleType::F32), ("f16", ScaleType::F16)];

/// Returns the type of scales, if the stage sets it.
fn scale_of(raw: &RawQuantize) -> Result<Option<ScaleType>> {
    raw.scale.as_deref().map(|scale| one_of("scale", scale, &SCALES)).transpose()
}

/// Returns the setting that needs input statistics, for error messages.
fn asks_for(raw: &RawQuantize) -> String {
    match (&raw.round, &raw.reconstruct) {
        (Some(round), _) if round != "nearest" => format!("round `{round}`"),
        (_, Some(how)) => format!("reconstruct `{how}`"),
        _ if raw.scales_columns() => "column_scales".into(),
        _ if raw.corrects_biases() && raw.range.is_none() => "bias_correction".into(),
        _ => format!("range `{}`", raw.range.as_deref().unwrap_or_default()),
    }
}

/// Refuses a range method that has no effect on the grid.
pub(crate) fn check_range(scheme: &Scheme) -> Result<()> {
    if scheme.weights.range == ScaleSearch::Hqq && scheme.weights.grid.is_asymmetric() {
        let message = "hqq shifts zero points by fractions of a step, but zero points of asymmetric schemes are whole numbers, so it has \
                       no effect; choose mse, or a symmetric scheme";
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
    let weights = QuantSpec { grid, grouping, range, ..Scheme::INT8.weights };
    Ok(Scheme { weights, activations: Activations::Float })
}
