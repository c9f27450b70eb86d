//! Recipes: what to do, parsed and sound. A value that cannot be never gets past here.

mod cast;
mod distill;
mod evaluate;
mod factorize;
mod gradual;
mod memory;
mod numbers;
pub mod paths;
mod prune;
mod quantize;
pub mod ranges;
pub mod raw;
pub(crate) mod text;

use crate::role::{Role, RoleRule};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, Choice, Profile, limits};
pub use cast::CastStage;
pub use distill::{DistillStage, Dtype, Student, TrainMemory, Training};
pub use evaluate::{BatchSize, Bounds, Evaluate};
pub use factorize::FactorizeStage;
pub use gradual::{Course, Gradual};
pub use prune::{Method, PruneStage, Target};
pub use quantize::QuantizeStage;
use raw::{RawLayout, RawOverride, RawRecipe, RawStage};
use std::path::{Path, PathBuf};

/// A sound recipe.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The model to read.
    pub model: PathBuf,
    /// Which of the things in its file is the model.
    pub choice: Choice,
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
    /// Whether compressed-tensors of models that transformers is not known to load are written.
    pub allow_untested: bool,
    /// Largest shard written before another is started; the format's own limit unless a caller lowers it.
    pub max_shard_bytes: u64,
    /// What needs a whole model each time, after some stages: it comes first.
    pub parts: Vec<Part>,
    /// What to do to the weights then.
    pub stages: Vec<Stage>,
    /// How to find out what the output is worth, where that is asked.
    pub evaluate: Option<Evaluate>,
    /// Every path that is read, resolved: the model, teachers, and data that a stage looks at.
    pub read: Vec<paths::Named>,
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

/// What works on a whole model, and the stages since the one before.
#[derive(Debug, Clone)]
pub struct Part {
    /// Stages that come first.
    pub stages: Vec<Stage>,
    /// What then is done.
    pub then: Whole,
}

/// What is done to a whole model.
#[derive(Debug, Clone)]
pub enum Whole {
    /// Train it.
    Distill(Box<DistillStage>),
    /// Make two factors of its linear layers.
    Factorize(FactorizeStage),
}

impl Whole {
    /// The distill stage, where it is one.
    pub fn as_distill(&self) -> Option<&DistillStage> {
        match self {
            Self::Distill(stage) => Some(stage),
            Self::Factorize(_) => None,
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Drop weights.
    Prune(PruneStage),
    /// Round weights to a grid.
    Quantize(QuantizeStage),
    /// Store floats in another type.
    Cast(CastStage),
}

impl Recipe {
    /// Reads a recipe; its paths are relative to its file.
    ///
    /// # Errors
    /// Config, with the line and what to write instead; Io where it cannot be read.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_raw(text::read(path)?, &text::directory_of(path)).map_err(|error| locate(error, path))
    }

    /// A recipe from its TOML mirror; `directory` is what its paths are relative to.
    ///
    /// # Errors
    /// Config, naming the key.
    pub fn from_raw(asked: RawRecipe, directory: &Path) -> Result<Self> {
        ranges::check(&asked)?;
        let mut raw = asked.clone();
        paths::resolve(&mut raw, directory);
        let missing = |key: &str, what: &str| Error::config(format!("{key}: missing; name the {what}"));
        let model = raw.model.path.clone().ok_or_else(|| missing("model.path", "model to compress"))?;
        let output = raw.output.path.clone().ok_or_else(|| missing("output.path", "directory to write"))?;
        let (parts, stages) = stages_of(&raw)?;
        let evaluate = Evaluate::from_checked(&raw)?;
        memory::check_used(&raw)?;
        distill::check_select(&raw)?;
        let rule = |rule: &raw::RawRole| {
            let (patterns, axis) = (Patterns::new(&rule.include)?, rule.outputs.map(raw::RawOutputs::axis));
            Ok(RoleRule { patterns, role: rule.role, axis })
        };
        Ok(Self {
            model,
            choice: raw.model.choice(),
            output,
            layout: raw.model.layout,
            roles: raw.model.roles.iter().map(rule).collect::<Result<_>>()?,
            allow_nonfinite: raw.model.allow_nonfinite,
            profile: profile_of(raw.output.format.as_deref())?,
            allow_untested: raw.output.allow_untested,
            max_shard_bytes: limits::MAX_SHARD_BYTES,
            parts,
            stages,
            evaluate,
            read: paths::read(&raw),
            asked,
        })
    }
}

impl Recipe {
    /// Opens the model to read.
    ///
    /// # Errors
    /// As [`Checkpoint::open_as`].
    pub fn open_model(&self) -> Result<Checkpoint> {
        Checkpoint::open_as(&self.model, &self.choice)
    }

    /// Every stage that works on the model's own tensors, as if nothing was trained in between: a factorize stage makes others
    /// of them, and what comes after it is about those.
    pub fn file_stages(&self) -> impl Iterator<Item = &Stage> {
        let is_factorize = |part: &Part| matches!(part.then, Whole::Factorize(_));
        let n_parts = self.parts.iter().position(is_factorize);
        let last = if n_parts.is_none() { &self.stages[..] } else { &[] };
        self.parts[..n_parts.map_or(self.parts.len(), |n| n + 1)].iter().flat_map(|part| &part.stages).chain(last)
    }

    /// What the manifest keeps: everything but the paths, so that the same work gives the same bytes anywhere.
    ///
    /// # Errors
    /// Bug, where it cannot be written as JSON.
    pub fn to_manifest(&self) -> Result<serde_json::Value> {
        let asked = paths::without(&self.asked);
        let raw = RawRecipe {
            model: asked.model,
            output: asked.output,
            stage: asked.stage.into_iter().filter(|stage| stage.kind != "evaluate").collect(),
            ..RawRecipe::default()
        };
        serde_json::to_value(raw).map_err(|error| Error::bug(format!("the recipe: {error}")))
    }
}

/// The stages of a recipe, cut after each that works on a whole model.
fn stages_of(raw: &RawRecipe) -> Result<(Vec<Part>, Vec<Stage>)> {
    let (mut parts, mut stages) = (Vec::new(), Vec::new());
    for (i, stage) in raw.stage.iter().enumerate() {
        let name = |error: Error| error.at(format_args!("stage {} ({})", i + 1, stage.kind));
        let then = match stage.kind.as_str() {
            "distill" => Whole::Distill(Box::new(DistillStage::from_raw(raw, i).map_err(name)?)),
            "factorize" => Whole::Factorize(FactorizeStage::from_raw(stage).map_err(name)?),
            _ => {
                stages.extend(Stage::from_raw(stage).map_err(name)?);
                continue;
            }
        };
        parts.push(Part { stages: std::mem::take(&mut stages), then });
    }
    check_order(raw)?;
    Ok((parts, stages))
}

/// Reads the TOML of a recipe without judging it.
///
/// # Errors
/// As [`Recipe::from_file`].
pub fn read_raw(path: &Path) -> Result<RawRecipe> {
    text::read(path)
}

/// Puts the file in front of what is wrong with a value of a recipe, with the line where it can be told.
pub fn locate(error: Error, path: &Path) -> Error {
    let text = text::read_text(path).unwrap_or_default();
    text::locate(error, &text, path)
}

pub use text::{directory_of, parse};

/// The JSON Schema of a recipe.
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(RawRecipe).to_value();
    ranges::bound(&mut schema);
    schema
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
    let hint = briquette_core::pattern::nearest(found, names.iter().copied())
        .map_or(String::new(), |name| format!("; did you mean {name:?}?"));
    Err(Error::config(format!("{key}: found {found:?}, expected one of {}{hint}", names.join(", "))))
}

/// Refuses a key that this kind of stage does not have. Which tensors it is about, every stage may say.
fn check_keys(raw: &RawStage, own: &[&str]) -> Result<()> {
    const SHARED: [&str; 4] = ["kind", "include", "exclude", "roles"];
    let found = serde_json::to_value(raw).map_err(|error| Error::bug(format!("the stage: {error}")))?;
    let is_known = |key: &&String| SHARED.contains(&key.as_str()) || own.contains(&key.as_str());
    let unknown = found.as_object().and_then(|keys| keys.keys().find(|key| !is_known(key)));
    unknown.map_or(Ok(()), |key| refuse(key, &Some(()), &raw.kind))
}

/// Refuses stages in another order than theirs: each works on what those before it left. Training may take turns with
/// factorizing, then with pruning, whose zeros factors would not have.
fn check_order(raw: &RawRecipe) -> Result<()> {
    // The first and the last place of each.
    const PLACES: [(&str, usize, usize); 5] =
        [("factorize", 0, 0), ("distill", 0, 1), ("prune", 1, 1), ("quantize", 2, 2), ("cast", 3, 3)];
    let place = |stage: &RawStage| PLACES.iter().find(|(kind, ..)| *kind == stage.kind);
    let placed: Vec<_> = raw.stage.iter().filter_map(place).collect();
    for (i, (after, _, last)) in placed.iter().enumerate() {
        if let Some((before, ..)) = placed[..i].iter().find(|(_, first, _)| first > last) {
            return Err(Error::config(format!("a {after} stage comes after a {before} stage; {after} first")));
        }
    }
    Ok(())
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
        let kinds: [(&str, Parse); 6] = [
            ("prune", |raw| Ok(Some(Self::Prune(PruneStage::from_raw(raw)?)))),
            ("quantize", |raw| Ok(Some(Self::Quantize(QuantizeStage::from_raw(raw)?)))),
            ("cast", |raw| Ok(Some(Self::Cast(CastStage::from_raw(raw)?)))),
            ("evaluate", |raw| evaluate::check_stage(raw).map(|()| None)),
            // Cut out before; the name is here for those who misspell it.
            ("distill", |_| Ok(None)),
            ("factorize", |_| Ok(None)),
        ];
        one_of("kind", &raw.kind, &kinds)?(raw)
    }

    /// Which tensors it is about.
    pub fn selection(&self) -> &Selection {
        match self {
            Self::Prune(stage) => &stage.selection,
            Self::Quantize(stage) => &stage.selection,
            Self::Cast(stage) => &stage.selection,
        }
    }

    /// Its kind, as recipes have it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Prune(_) => "prune",
            Self::Quantize(_) => "quantize",
            Self::Cast(_) => "cast",
        }
    }

    /// Patterns of the tensors that are treated in another way.
    pub fn overrides(&self) -> Vec<&Patterns> {
        match self {
            Self::Prune(stage) => stage.overrides.iter().map(|(patterns, _)| patterns).collect(),
            Self::Quantize(stage) => stage.overrides.iter().map(|(patterns, _)| patterns).collect(),
            Self::Cast(_) => Vec::new(),
        }
    }
}

impl Selection {
    fn from_raw(raw: &RawStage, default_roles: &[Role]) -> Result<Self> {
        Ok(Self {
            include: raw.include.as_ref().map(Patterns::new).transpose()?,
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

/// A share of something, whose range was looked at before.
fn ratio_of(key: &str, value: f64) -> Result<briquette_prune::Ratio> {
    briquette_prune::Ratio::new(value)
        .ok_or_else(|| Error::config(format!("{key}: found {value}, expected a number from 0 to 1")))
}

fn overrides_of<T>(raw: &[RawOverride], value: impl Fn(&RawOverride) -> Result<T>) -> Result<Vec<(Patterns, T)>> {
    raw.iter().map(|rule| Ok((Patterns::new(&rule.include)?, value(rule)?))).collect()
}
