//! The stage that rounds weights to a grid.

use crate::keys::{check_keys, refuse};
use crate::raw::{RawGroup, RawStage};
use crate::selection::{Selection, overrides_of};
use crate::words::one_of;
use briquette_core::encoded::ScaleType;
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Grid, GridKind, Grouping, Result, Role};
use briquette_quant::{Activations, QuantSpec, Range, Scheme};

/// Round weights to a grid.
#[derive(Debug, Clone)]
pub struct QuantizeStage {
    /// Which tensors.
    pub selection: Selection,
    /// The grid and what comes with it.
    pub scheme: Scheme,
    /// Other schemes for some tensors.
    pub overrides: Vec<(Patterns, Scheme)>,
    /// Whether embeddings are asked for, by role or by name.
    pub names_embeddings: bool,
}

impl QuantizeStage {
    pub(crate) fn from_raw(raw: &RawStage) -> Result<Self> {
        let kind = "quantize";
        let keys = ["scheme", "bits", "group", "symmetric", "range", "percentile", "scale", "overrides"];
        check_keys(raw, &keys)?;
        let names_role = raw.roles.as_ref().is_some_and(|roles| roles.contains(&Role::Embedding));
        Ok(Self {
            names_embeddings: names_role || raw.include.is_some(),
            selection: Selection::from_raw(raw, &[Role::Linear, Role::Conv, Role::Embedding])?,
            scheme: scheme_of(raw)?,
            overrides: overrides_of(&raw.overrides, |rule| {
                refuse("overrides.sparsity", &rule.sparsity, kind)?;
                let name = rule.scheme.as_ref().ok_or_else(|| Error::config("overrides.scheme: missing"))?;
                parse_scheme("overrides.scheme", name)
            })?,
        })
    }
}

impl QuantizeStage {
    /// Whether an embedding that is the head too keeps eight bits where others have fewer.
    pub fn spares_heads(&self) -> bool {
        !self.names_embeddings && self.scheme.weights.grid.n_bits() < Grid::INT8.n_bits()
    }

    /// The scheme of a tensor: the last override that matches it counts. An embedding that is the head too keeps eight bits, a
    /// scale for each row, unless it is asked for.
    pub fn scheme_for(&self, name: &str, is_head: bool) -> Scheme {
        let own = self.overrides.iter().rfind(|(patterns, _)| patterns.matches(name));
        match own {
            Some((_, scheme)) => *scheme,
            None if is_head && self.spares_heads() => {
                let weights = QuantSpec { grid: Grid::INT8, grouping: Grouping::Row, ..self.scheme.weights };
                Scheme { weights, activations: Activations::Float }
            }
            None => self.scheme,
        }
    }
}

fn parse_scheme(key: &str, name: &str) -> Result<Scheme> {
    name.parse().map_err(|error: briquette_quant::UnknownScheme| Error::config(format!("{key}: {error}")))
}

/// A named scheme, or one spelled out; a range and a scale type may be added to either.
fn scheme_of(raw: &RawStage) -> Result<Scheme> {
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
        let known = [
            ("absmax", Range::AbsMax),
            ("minmax", Range::MinMax),
            ("percentile", Range::Percentile(share)),
            ("mse", Range::Mse),
            ("hqq", Range::Hqq),
        ];
        scheme.weights.range = one_of("range", range, &known)?;
    }
    if scheme.weights.range == Range::Hqq && scheme.weights.grid.is_asymmetric() {
        let message = "hqq moves zero points by fractions of a step, and those of an asymmetric scheme are whole numbers, so that \
                       nothing would move; leave it out, or take mse, or a symmetric scheme";
        return Err(Error::config(format!("range: {message}")));
    }
    if !matches!(scheme.weights.range, Range::Percentile(_)) {
        refuse("percentile", &raw.percentile, "quantize (with another range)")?;
    }
    if let Some(scale) = &raw.scale {
        scheme.weights.scale = one_of("scale", scale, &[("f32", ScaleType::F32), ("f16", ScaleType::F16)])?;
    }
    Ok(scheme)
}

fn spelled_out(raw: &RawStage, bits: u8) -> Result<Scheme> {
    let kind = if raw.symmetric.unwrap_or(true) { GridKind::Symmetric } else { GridKind::Asymmetric };
    let grid = Grid::new(bits, kind).ok_or_else(|| Error::config(format!("bits: found {bits}, expected 2 to 8")))?;
    let grouping = match &raw.group {
        None => Grouping::Row,
        Some(RawGroup::Size(size)) => Grouping::Group(*size),
        Some(RawGroup::Name(name)) => {
            one_of("group", name, &[("tensor", Grouping::Tensor), ("channel", Grouping::Row)])?
        }
    };
    let range = if grid.is_asymmetric() { Range::MinMax } else { Range::AbsMax };
    let weights = QuantSpec { grid, grouping, range, scale: ScaleType::F32 };
    Ok(Scheme { weights, activations: Activations::Float })
}
