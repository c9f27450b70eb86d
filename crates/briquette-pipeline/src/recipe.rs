//! Recipes: what to do, parsed and sound. A value that cannot be never gets past here.

pub mod raw;
pub(crate) mod text;

use crate::pattern::Patterns;
use crate::role::{Role, RoleRule};
use briquette_core::encoded::ScaleType;
use briquette_core::{Error, Grid, GridKind, Grouping, Result};
use briquette_formats::{Profile, limits};
use briquette_prune::Ratio;
use briquette_quant::{Activations, QuantSpec, Range, Scheme};
use raw::{RawGroup, RawLayout, RawOverride, RawRecipe, RawStage};
use std::path::{Path, PathBuf};

/// A sound recipe.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The model to read.
    pub model: PathBuf,
    /// The directory to write.
    pub output: PathBuf,
    /// Which way Linear weights lie, where it is said.
    pub layout: Option<RawLayout>,
    /// What tensors are, where our own reading of names is wrong.
    pub roles: Vec<RoleRule>,
    /// Whether NaN and infinity are accepted.
    pub allow_nonfinite: bool,
    /// The format of the directory.
    pub profile: Profile,
    /// Largest shard written before another is started; the format's own limit unless a caller lowers it.
    pub max_shard_bytes: u64,
    /// What to do.
    pub stages: Vec<Stage>,
    /// What was asked for, word for word.
    pub asked: RawRecipe,
}

/// Which tensors a stage is about.
#[derive(Debug, Clone)]
pub struct Selection {
    /// Patterns of names; none means all.
    pub include: Option<Patterns>,
    /// Patterns of names to leave out.
    pub exclude: Patterns,
    /// Roles that are chosen.
    pub roles: Vec<Role>,
}

/// One thing to do.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Drop weights.
    Prune(PruneStage),
    /// Round weights to a grid.
    Quantize(QuantizeStage),
}

/// Drop weights.
#[derive(Debug, Clone)]
pub struct PruneStage {
    /// Which tensors.
    pub selection: Selection,
    /// How weights are scored.
    pub method: Method,
    /// How many go.
    pub target: Target,
    /// Other ratios for some tensors.
    pub overrides: Vec<(Patterns, Ratio)>,
}

/// How weights are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// By their magnitude.
    Magnitude,
    /// At random, by seed.
    Random(u64),
}

/// How many weights go, and from where.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// The same share of each tensor.
    Layer(Ratio),
    /// A share of all chosen tensors together.
    Global(Ratio),
    /// All but n of every m inputs.
    NOfM {
        /// Kept.
        n: usize,
        /// Of these.
        m: usize,
    },
}

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

impl Recipe {
    /// Reads a recipe; its paths are relative to its file.
    ///
    /// # Errors
    /// Config, with the line and what to write instead; Io where it cannot be read.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_raw(text::read(path)?, &text::directory_of(path))
    }

    /// A recipe from its TOML mirror; `directory` is what its paths are relative to.
    ///
    /// # Errors
    /// Config, naming the key.
    pub fn from_raw(raw: RawRecipe, directory: &Path) -> Result<Self> {
        let missing = |key: &str, what: &str| Error::config(format!("{key}: missing; name the {what}"));
        let model = raw.model.path.as_ref().ok_or_else(|| missing("model.path", "model to compress"))?;
        let output = raw.output.path.as_ref().ok_or_else(|| missing("output.path", "directory to write"))?;
        let stages = raw.stage.iter().enumerate().map(|(i, stage)| {
            Stage::from_raw(stage).map_err(|error| error.at(format_args!("stage {} ({})", i + 1, stage.kind)))
        });
        let stages = stages.collect::<Result<Vec<_>>>()?;
        let out_of_order = stages.windows(2).any(|pair| matches!(pair, [Stage::Quantize(_), Stage::Prune(_)]));
        if out_of_order {
            return Err(Error::config("a prune stage comes after a quantize stage; prune first"));
        }
        let roles = raw
            .model
            .roles
            .iter()
            .map(|rule| Ok(RoleRule { patterns: Patterns::new(&rule.include)?, role: rule.role }));
        Ok(Self {
            model: directory.join(model),
            output: directory.join(output),
            layout: raw.model.layout,
            roles: roles.collect::<Result<_>>()?,
            allow_nonfinite: raw.model.allow_nonfinite,
            profile: profile_of(raw.output.format.as_deref())?,
            max_shard_bytes: limits::MAX_SHARD_BYTES,
            stages,
            asked: raw,
        })
    }
}

impl Recipe {
    /// What the manifest keeps: everything but the paths, so that the same work gives the same bytes anywhere.
    ///
    /// # Errors
    /// Bug, where it cannot be written as JSON.
    pub fn to_manifest(&self) -> Result<serde_json::Value> {
        let raw = RawRecipe {
            model: raw::RawModel { path: None, ..self.asked.model.clone() },
            output: raw::RawOutput { path: None, ..self.asked.output.clone() },
            stage: self.asked.stage.clone(),
        };
        serde_json::to_value(raw).map_err(|error| Error::bug(format!("the recipe: {error}")))
    }
}

/// Reads the TOML of a recipe without judging it.
///
/// # Errors
/// As [`Recipe::from_file`].
pub fn read_raw(path: &Path) -> Result<RawRecipe> {
    text::read(path)
}

pub use text::{directory_of, parse};

/// The JSON Schema of a recipe.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(RawRecipe).to_value()
}

/// The profile with this name.
///
/// # Errors
/// Config, with the nearest name.
pub fn profile_of(name: Option<&str>) -> Result<Profile> {
    let Some(name) = name else { return Ok(Profile::default()) };
    one_of("output.format", name, &Profile::NAMES)
}

/// Looks a word up, or says which words there are.
fn one_of<T: Copy>(key: &str, found: &str, known: &[(&'static str, T)]) -> Result<T> {
    if let Some((_, value)) = known.iter().find(|(name, _)| *name == found) {
        return Ok(*value);
    }
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let hint = crate::pattern::nearest(found, names.iter().copied())
        .map_or(String::new(), |name| format!("; did you mean {name:?}?"));
    Err(Error::config(format!("{key}: found {found:?}, expected one of {}{hint}", names.join(", "))))
}

/// A key that this kind of stage does not have.
fn refuse<T>(key: &str, value: &Option<T>, kind: &str) -> Result<()> {
    match value {
        Some(_) => Err(Error::config(format!("{key}: a {kind} stage has no such key; remove it"))),
        None => Ok(()),
    }
}

impl Stage {
    fn from_raw(raw: &RawStage) -> Result<Self> {
        match one_of("kind", &raw.kind, &[("prune", true), ("quantize", false)])? {
            true => Ok(Self::Prune(PruneStage::from_raw(raw)?)),
            false => Ok(Self::Quantize(QuantizeStage::from_raw(raw)?)),
        }
    }

    /// Which tensors it is about.
    pub fn selection(&self) -> &Selection {
        match self {
            Self::Prune(stage) => &stage.selection,
            Self::Quantize(stage) => &stage.selection,
        }
    }
}

impl Selection {
    fn from_raw(raw: &RawStage, default_roles: &[Role]) -> Result<Self> {
        Ok(Self {
            include: raw.include.as_ref().map(|include| Patterns::new(include)).transpose()?,
            exclude: Patterns::new(&raw.exclude)?,
            roles: raw.roles.clone().unwrap_or_else(|| default_roles.to_vec()),
        })
    }

    /// Whether a tensor is chosen. A name written out in full is chosen whatever its role.
    pub fn chooses(&self, name: &str, role: Role) -> bool {
        let is_role = self.roles.contains(&role);
        let is_included = match &self.include {
            None => is_role,
            Some(patterns) => patterns.names_exactly(name) || is_role && patterns.matches(name),
        };
        is_included && !self.exclude.matches(name)
    }
}

impl PruneStage {
    fn from_raw(raw: &RawStage) -> Result<Self> {
        let kind = "prune";
        refuse("scheme", &raw.scheme, kind)?;
        refuse("bits", &raw.bits, kind)?;
        refuse("group", &raw.group, kind)?;
        refuse("symmetric", &raw.symmetric, kind)?;
        refuse("range", &raw.range, kind)?;
        refuse("percentile", &raw.percentile, kind)?;
        refuse("scale", &raw.scale, kind)?;
        let method = match raw.method.as_deref() {
            None => Method::Magnitude,
            Some(name) => one_of(
                "method",
                name,
                &[("magnitude", Method::Magnitude), ("random", Method::Random(raw.seed.unwrap_or(0)))],
            )?,
        };
        if method == Method::Magnitude {
            refuse("seed", &raw.seed, "magnitude prune")?;
        }
        Ok(Self {
            selection: Selection::from_raw(raw, &[Role::Linear, Role::Conv])?,
            method,
            target: target_of(raw)?,
            overrides: overrides_of(&raw.overrides, |rule| {
                refuse("overrides.scheme", &rule.scheme, kind)?;
                ratio_of("overrides.sparsity", rule.sparsity)
            })?,
        })
    }
}

fn target_of(raw: &RawStage) -> Result<Target> {
    if let Some(pattern) = &raw.pattern {
        refuse("sparsity", &raw.sparsity, "prune (with a pattern)")?;
        refuse("scope", &raw.scope, "prune (with a pattern)")?;
        let parts = pattern.split_once(':').and_then(|(n, m)| Some((n.parse().ok()?, m.parse().ok()?)));
        return match parts {
            Some((n, m)) if n > 0 && n < m && m <= 256 => Ok(Target::NOfM { n, m }),
            _ => Err(Error::config(format!(
                "pattern: found {pattern:?}, expected N:M with 0 < N < M <= 256, such as 2:4"
            ))),
        };
    }
    let ratio = ratio_of("sparsity", raw.sparsity)?;
    let scope = raw.scope.as_deref().unwrap_or("layer");
    one_of("scope", scope, &[("layer", Target::Layer(ratio)), ("global", Target::Global(ratio))])
}

fn ratio_of(key: &str, value: Option<f64>) -> Result<Ratio> {
    let value = value.ok_or_else(|| Error::config(format!("{key}: missing; a share of weights to drop, 0 to 1")))?;
    Ratio::new(value)
        .ok_or_else(|| Error::config(format!("{key}: found {value}, expected a share from 0 to 1, such as 0.4")))
}

fn overrides_of<T>(raw: &[RawOverride], value: impl Fn(&RawOverride) -> Result<T>) -> Result<Vec<(Patterns, T)>> {
    raw.iter().map(|rule| Ok((Patterns::new(&rule.include)?, value(rule)?))).collect()
}

impl QuantizeStage {
    fn from_raw(raw: &RawStage) -> Result<Self> {
        let kind = "quantize";
        refuse("method", &raw.method, kind)?;
        refuse("scope", &raw.scope, kind)?;
        refuse("sparsity", &raw.sparsity, kind)?;
        refuse("pattern", &raw.pattern, kind)?;
        refuse("seed", &raw.seed, kind)?;
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
