//! Recipes built in code, of stages as types: for modules in memory, which no file names.

use crate::parse::prune::{PruneStage, PruneTarget, check_scope, check_window};
use crate::parse::quantize::{QuantizeStage, check_range};
use crate::parse::recipe::Recipe;
use crate::parse::selection::Selection;
use crate::parse::stage::{Stage, check_order};
use crate::parse::words::{finite_share, parse_scheme};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result, Role, RoleRule};
use briquette_formats::{Choice, OutputFormat, limits};
use briquette_methods::prune::{Ratio, Score};
use briquette_methods::quant::{Rounding, Scheme};
use std::collections::BTreeMap;
use std::path::PathBuf;

impl Recipe {
    /// A recipe without stages, model and output, for `briquette::compress`.
    ///
    /// ```
    /// use briquette_methods::quant::Scheme;
    /// use briquette_recipe::{PruneStage, Recipe};
    ///
    /// let recipe = Recipe::in_memory()
    ///     .prune(PruneStage::global(0.4)?.exclude(["head.**"])?)
    ///     .quantize(Scheme::INT8);
    /// assert_eq!(recipe.stages.len(), 2);
    /// # Ok::<(), briquette_core::Error>(())
    /// ```
    pub fn in_memory() -> Self {
        Self {
            model: PathBuf::new(),
            choice: Choice::default(),
            output: PathBuf::new(),
            layout: None,
            roles: Vec::new(),
            allow_nonfinite: false,
            profile: OutputFormat::default(),
            codes_entropy: false,
            allow_untested: false,
            max_shard_bytes: limits::MAX_SHARD_BYTES,
            parts: Vec::new(),
            stages: Vec::new(),
            calibration: None,
            budget: None,
            evaluate: None,
            read: Vec::new(),
            asked: crate::parse::raw::RawRecipe::default(),
        }
    }

    /// Adds a stage that drops weights.
    #[must_use]
    pub fn prune(mut self, stage: PruneStage) -> Self {
        self.stages.push(Stage::Prune(stage));
        self
    }

    /// Adds a stage that rounds weights: a [`QuantizeStage`], or a [`Scheme`] for all that such a stage takes.
    #[must_use]
    pub fn quantize(mut self, stage: impl Into<QuantizeStage>) -> Self {
        self.stages.push(Stage::Quantize(stage.into()));
        self
    }

    /// Says what tensors are, where that is not known or known wrongly; of several that match, the last counts.
    ///
    /// # Errors
    /// Config, where one is no glob.
    pub fn role<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>, role: Role) -> Result<Self> {
        self.roles.push(RoleRule { patterns: Patterns::new(globs)?, role, axis: None });
        Ok(self)
    }

    /// Holds the stages of a recipe to what TOML can say: their order, and values that go together.
    ///
    /// # Errors
    /// Config, naming the stage and the key.
    pub fn check_stages(&self) -> Result<()> {
        for (i, stage) in self.stages.iter().enumerate() {
            let checked = match stage {
                Stage::Prune(stage) => stage.check(),
                Stage::Quantize(stage) => stage.check(),
                Stage::Cast(_) => Ok(()),
            };
            checked.map_err(|error| error.at(format_args!("stage {} ({})", i + 1, stage.kind())))?;
        }
        let kinds: Vec<_> = self.stages.iter().map(Stage::kind).collect();
        check_order(&kinds)
    }

    /// Refuses a recipe that names no model and no output, such as one built by [`in_memory`](Self::in_memory).
    ///
    /// # Errors
    /// Config.
    pub fn check_has_files(&self) -> Result<()> {
        match self.model.as_os_str().is_empty() || self.output.as_os_str().is_empty() {
            true => Err(Error::config(
                "model.path: missing; a recipe for modules in memory names no files, and goes to briquette::compress",
            )),
            false => Ok(()),
        }
    }
}

impl PruneStage {
    /// Drops the weights of the smallest magnitude from linear and conv tensors.
    pub fn new(target: PruneTarget) -> Self {
        let selection = Selection::of_roles(&Self::ROLES);
        Self {
            selection,
            score: Score::Magnitude,
            reconstruction: None,
            statistics: None,
            target,
            overrides: Vec::new(),
        }
    }

    /// Drops this share of each tensor.
    ///
    /// # Errors
    /// Config, where it is not from 0 to below 1.
    pub fn layer(sparsity: f64) -> Result<Self> {
        Ok(Self::new(PruneTarget::Layer(sparsity_of(sparsity)?)))
    }

    /// Drops this share of all chosen tensors together, by one threshold.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn global(sparsity: f64) -> Result<Self> {
        Ok(Self::new(PruneTarget::Global(sparsity_of(sparsity)?)))
    }

    /// Keeps `n` of every `m` inputs that lie side by side.
    ///
    /// # Errors
    /// Config, unless `0 < n < m <= 256`.
    pub fn n_of_m(n: usize, m: usize) -> Result<Self> {
        check_window(n, m).map(|()| Self::new(PruneTarget::NOfM { n, m }))
    }

    /// Scores weights in another way than by magnitude. Of [`Score::Wanda`], statistics of inputs are given with the module.
    #[must_use]
    pub fn score(mut self, score: Score) -> Self {
        self.score = score;
        self
    }

    /// Takes tensors of these roles, instead of linear and conv.
    #[must_use]
    pub fn roles(mut self, roles: &[Role]) -> Self {
        self.selection.roles = roles.to_vec();
        self
    }

    /// Takes only tensors that one of these globs matches; one that is written out in full is taken whatever its role.
    ///
    /// # Errors
    /// Config, where one is no glob.
    pub fn include<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>) -> Result<Self> {
        self.selection.include = Some(Patterns::new(globs)?);
        Ok(self)
    }

    /// Leaves out tensors that one of these globs matches.
    ///
    /// # Errors
    /// Config, where one is no glob.
    pub fn exclude<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>) -> Result<Self> {
        self.selection.exclude = Patterns::new(globs)?;
        Ok(self)
    }

    /// Drops another share of tensors that one of these globs matches; of several overrides that match, the last counts.
    ///
    /// # Errors
    /// Config, where one is no glob, or the share is not from 0 to below 1.
    pub fn with<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>, sparsity: f64) -> Result<Self> {
        self.overrides.push((Patterns::new(globs)?, sparsity_of(sparsity)?));
        Ok(self)
    }

    fn check(&self) -> Result<()> {
        self.overrides.iter().try_for_each(|(_, ratio)| sparsity_of(ratio.get()).map(drop))?;
        match self.target {
            PruneTarget::NOfM { n, m } => check_window(n, m),
            target @ (PruneTarget::Layer(ratio) | PruneTarget::Global(ratio) | PruneTarget::Owl(ratio)) => {
                sparsity_of(ratio.get())?;
                check_scope(target, self.score.needs_inputs())
            }
        }
    }
}

impl From<Scheme> for QuantizeStage {
    /// Rounds linear, conv and embedding tensors by this scheme.
    fn from(scheme: Scheme) -> Self {
        let selection = Selection::of_roles(&Self::ROLES);
        Self {
            selection,
            scheme,
            rounding: Rounding::Nearest,
            statistics: None,
            overrides: Vec::new(),
            found: BTreeMap::new(),
            names_embeddings: false,
        }
    }
}

impl QuantizeStage {
    /// Rounds linear, conv and embedding tensors by a named scheme, such as `int8`, `int8-dynamic` or `int4-g128`.
    ///
    /// # Errors
    /// Config, where there is no such scheme.
    pub fn named(scheme: &str) -> Result<Self> {
        let scheme = parse_scheme("scheme", scheme)?;
        match scheme.is_open() {
            false => Ok(scheme.into()),
            true => Err(Error::config("scheme: step has no size; say it, as in \"step0.01\"")),
        }
    }

    /// Takes tensors of these roles, instead of linear, conv and embedding.
    #[must_use]
    pub fn roles(mut self, roles: &[Role]) -> Self {
        self.names_embeddings |= roles.contains(&Role::Embedding);
        self.selection.roles = roles.to_vec();
        self
    }

    /// As [`PruneStage::include`].
    ///
    /// # Errors
    /// Config, where one is no glob.
    pub fn include<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>) -> Result<Self> {
        self.names_embeddings = true;
        self.selection.include = Some(Patterns::new(globs)?);
        Ok(self)
    }

    /// As [`PruneStage::exclude`].
    ///
    /// # Errors
    /// Config, where one is no glob.
    pub fn exclude<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>) -> Result<Self> {
        self.selection.exclude = Patterns::new(globs)?;
        Ok(self)
    }

    /// Rounds tensors that one of these globs matches by another scheme; of several overrides that match, the last counts.
    ///
    /// # Errors
    /// Config, where one is no glob.
    pub fn with<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>, scheme: Scheme) -> Result<Self> {
        self.overrides.push((Patterns::new(globs)?, scheme));
        Ok(self)
    }

    fn check(&self) -> Result<()> {
        check_range(&self.scheme)?;
        self.overrides.iter().try_for_each(|(_, scheme)| check_range(scheme))
    }
}

fn sparsity_of(value: f64) -> Result<Ratio> {
    finite_share("sparsity", value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_methods::quant::ScaleSearch;

    fn refusal(recipe: &Recipe) -> String {
        recipe.check_stages().unwrap_err().to_string()
    }

    #[test]
    fn what_toml_refuses_is_refused_of_types_too() {
        let ratio = Ratio::new(0.5).unwrap();
        let global = PruneStage::new(PruneTarget::Global(ratio)).score(Score::Wanda);
        let backwards = PruneStage::new(PruneTarget::NOfM { n: 4, m: 2 });
        let mut scheme: Scheme = "int4-asym".parse().unwrap();
        scheme.weights.range = ScaleSearch::Hqq;
        let cases = [
            (Recipe::in_memory().prune(global), "stage 1 (prune): scope: found \"global\""),
            (
                Recipe::in_memory().prune(PruneStage::new(PruneTarget::Layer(Ratio::new(1.0).unwrap()))),
                "stage 1 (prune): sparsity: found 1, expected a number from 0 to below 1",
            ),
            (Recipe::in_memory().prune(backwards), "stage 1 (prune): pattern: found \"4:2\""),
            (Recipe::in_memory().quantize(scheme), "stage 1 (quantize): range: hqq moves zero points"),
            (
                Recipe::in_memory().quantize(Scheme::INT8).prune(PruneStage::new(PruneTarget::Layer(ratio))),
                "a prune stage comes after a quantize stage; prune first",
            ),
        ];
        for (recipe, expected) in cases {
            assert!(refusal(&recipe).starts_with(expected), "{}", refusal(&recipe));
        }
        for wrong in [-0.1, 1.0, f64::NAN] {
            assert!(PruneStage::layer(wrong).unwrap_err().to_string().starts_with("sparsity: found"), "{wrong}");
        }
        assert!(PruneStage::n_of_m(2, 4).is_ok() && QuantizeStage::named("int9").is_err());
    }

    #[test]
    fn stages_in_code_are_those_of_toml() {
        let toml = "model.path = \"m\"\noutput.path = \"o\"\n[[stage]]\nkind = \"prune\"\nscope = \"global\"\nsparsity = 0.4\n\
                    exclude = [\"head.**\"]\noverrides = [{ include = [\"a.*\"], sparsity = 0.2 }]\n[[stage]]\nkind = \"quantize\"\n\
                    scheme = \"int4-g32\"\ninclude = [\"b.**\"]\n";
        let raw = crate::parse::parse(toml, "recipe.toml").unwrap();
        let of_file = Recipe::from_raw(raw, "".as_ref()).unwrap();
        let prune = PruneStage::global(0.4).unwrap().exclude(["head.**"]).unwrap().with(["a.*"], 0.2).unwrap();
        let quantize = QuantizeStage::named("int4-g32").unwrap().include(["b.**"]).unwrap();
        let in_code = Recipe::in_memory().prune(prune).quantize(quantize);
        assert_eq!(format!("{:?}", in_code.stages), format!("{:?}", of_file.stages));
        assert!(of_file.check_has_files().is_ok() && of_file.check_stages().is_ok());
        assert!(in_code.check_has_files().unwrap_err().to_string().contains("briquette::compress"));
    }
}
