//! The stage that rounds weights to a grid.

use super::raw::{RawGroup, RawStage};
use super::{Selection, check_keys, one_of, overrides_of, refuse};
use crate::role::Role;
use briquette_core::encoded::ScaleType;
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Grid, GridKind, Grouping, Result};
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
}

impl QuantizeStage {
    pub(super) fn from_raw(raw: &RawStage) -> Result<Self> {
        let kind = "quantize";
        let keys = ["scheme", "bits", "group", "symmetric", "range", "percentile", "scale", "overrides"];
        check_keys(raw, &keys)?;
        Ok(Self {
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
    if !(0.5..=1.0).contains(&share) {
        return Err(Error::config(format!("percentile: found {share}, expected a share from 0.5 to 1")));
    }
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
        Some(RawGroup::Size(0)) => return Err(Error::config("group: found 0, expected at least 1")),
        Some(RawGroup::Size(size)) => Grouping::Group(*size),
        Some(RawGroup::Name(name)) => {
            one_of("group", name, &[("tensor", Grouping::Tensor), ("channel", Grouping::Row)])?
        }
    };
    let range = if grid.is_asymmetric() { Range::MinMax } else { Range::AbsMax };
    let weights = QuantSpec { grid, grouping, range, scale: ScaleType::F32 };
    Ok(Scheme { weights, activations: Activations::Float })
}
