//! Recipes: what to do, parsed and sound. A value that cannot be never gets past here.

mod distill;
mod evaluate;
mod prune;
mod quantize;
pub mod raw;
pub(crate) mod text;

use crate::pattern::Patterns;
use crate::role::{Role, RoleRule};
use briquette_core::{Error, Result};
use briquette_formats::{Profile, limits};
pub use distill::{DistillStage, Dtype, Student, TrainMemory, Trained, Training};
pub use evaluate::{Bounds, Evaluate};
pub use prune::{Method, PruneStage, Target};
pub use quantize::QuantizeStage;
use raw::{RawLayout, RawOverride, RawRecipe, RawStage};
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
    /// What is trained first, each time after some stages.
    pub trained: Vec<Trained>,
    /// What to do to the weights then.
    pub stages: Vec<Stage>,
    /// How to find out what the output is worth, where that is asked.
    pub evaluate: Option<Evaluate>,
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
        let (trained, stages) = stages_of(&raw, directory)?;
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
            trained,
            stages,
            evaluate: Evaluate::from_raw(&raw, directory)?,
            asked: raw,
        })
    }
}

impl Recipe {
    /// Every stage that works on files, as if nothing was trained in between.
    pub fn file_stages(&self) -> impl Iterator<Item = &Stage> {
        self.trained.iter().flat_map(|part| &part.stages).chain(&self.stages)
    }

    /// What the manifest keeps: everything but the paths, so that the same work gives the same bytes anywhere.
    ///
    /// # Errors
    /// Bug, where it cannot be written as JSON.
    pub fn to_manifest(&self) -> Result<serde_json::Value> {
        let raw = RawRecipe {
            model: raw::RawModel { path: None, ..self.asked.model.clone() },
            output: raw::RawOutput { path: None, ..self.asked.output.clone() },
            stage: self.asked.stage.iter().filter(|stage| stage.kind != "evaluate").cloned().collect(),
            ..RawRecipe::default()
        };
        serde_json::to_value(raw).map_err(|error| Error::bug(format!("the recipe: {error}")))
    }
}

/// The stages of a recipe, cut after each distill stage.
fn stages_of(raw: &RawRecipe, directory: &Path) -> Result<(Vec<Trained>, Vec<Stage>)> {
    let (mut trained, mut stages) = (Vec::new(), Vec::new());
    for (i, stage) in raw.stage.iter().enumerate() {
        let name = |error: Error| error.at(format_args!("stage {} ({})", i + 1, stage.kind));
        if stage.kind == "distill" {
            let distill = DistillStage::from_raw(raw, i, directory).map_err(name)?;
            trained.push(Trained { stages: std::mem::take(&mut stages), distill });
        } else {
            stages.extend(Stage::from_raw(stage).map_err(name)?);
        }
    }
    let kinds: Vec<&str> = raw.stage.iter().map(|stage| stage.kind.as_str()).collect();
    let quantized = kinds.iter().position(|kind| *kind == "quantize").unwrap_or(kinds.len());
    match kinds[quantized..].iter().find(|kind| ["prune", "distill"].contains(kind)) {
        Some(kind) => Err(Error::config(format!("a {kind} stage comes after a quantize stage; {kind} first"))),
        None => Ok((trained, stages)),
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
pub(crate) fn one_of<T: Copy>(key: &str, found: &str, known: &[(&'static str, T)]) -> Result<T> {
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
    /// None for the stage that changes nothing: evaluate.
    fn from_raw(raw: &RawStage) -> Result<Option<Self>> {
        type Parse = fn(&RawStage) -> Result<Option<Stage>>;
        if raw.kind != "evaluate" {
            distill::refuse_distill_keys(raw)?;
        }
        let kinds: [(&str, Parse); 4] = [
            ("prune", |raw| Ok(Some(Self::Prune(PruneStage::from_raw(raw)?)))),
            ("quantize", |raw| Ok(Some(Self::Quantize(QuantizeStage::from_raw(raw)?)))),
            ("evaluate", |raw| evaluate::check_stage(raw).map(|()| None)),
            // Cut out before; the name is here for those who misspell it.
            ("distill", |_| Ok(None)),
        ];
        one_of("kind", &raw.kind, &kinds)?(raw)
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

fn overrides_of<T>(raw: &[RawOverride], value: impl Fn(&RawOverride) -> Result<T>) -> Result<Vec<(Patterns, T)>> {
    raw.iter().map(|rule| Ok((Patterns::new(&rule.include)?, value(rule)?))).collect()
}
