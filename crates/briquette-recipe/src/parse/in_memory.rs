//! Builds recipes in Rust from typed stages, for modules in memory.

use crate::parse::prune::{PruneStage, PruneTarget, check_scope, window_of};
use crate::parse::quantize::{QuantizeStage, check_range};
use crate::parse::recipe::Recipe;
use crate::parse::selection::Selection;
use crate::parse::stage::{Stage, check_order};
use crate::parse::words::{finite_share, parse_scheme};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result, Role, RoleRule};
use briquette_formats::{Choice, OutputFormat, limits};
use briquette_methods::prune::{Ratio, Score, SparsityPattern};
use briquette_methods::quant::{Rounding, Scheme};
use std::collections::BTreeMap;
use std::path::PathBuf;

impl Recipe {
    /// Returns a recipe without model, output and stages, for `briquette::compress`.
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
            scales: None,
            stages: Vec::new(),
            calibration: None,
            budget: None,
            evaluate: None,
            memory_limit: None,
            read: Vec::new(),
            asked: crate::parse::raw::RawRecipe::default(),
        }
    }

    /// Adds a prune stage.
    #[must_use]
    pub fn prune(mut self, stage: PruneStage) -> Self {
        self.stages.push(Stage::Prune(stage));
        self
    }

    /// Adds a quantize stage, given as a [`QuantizeStage`] or as a [`Scheme`] with default settings.
    #[must_use]
    pub fn quantize(mut self, stage: impl Into<QuantizeStage>) -> Self {
        self.stages.push(Stage::Quantize(stage.into()));
        self
    }

    /// Sets the role of tensors whose role is unknown or wrong. If several globs match, the last applies.
    ///
    /// # Errors
    /// Config: a glob is invalid.
    pub fn role<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>, role: Role) -> Result<Self> {
        self.roles.push(RoleRule { patterns: Patterns::new(globs)?, role, axis: None });
        Ok(self)
    }

    /// Checks the stages as strictly as a TOML recipe: their order and their combinations of values.
    ///
    /// # Errors
    /// Config: a stage is invalid; the message has the stage and the key.
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

    /// Refuses a recipe without model and output, such as one from [`in_memory`](Self::in_memory).
    ///
    /// # Errors
    /// Config: the model or the output is missing.
    pub fn check_has_files(&self) -> Result<()> {
        match self.model.as_os_str().is_empty() || self.output.as_os_str().is_empty() {
            true => Err(Error::config(
                "model.path: missing; a recipe without files is for modules in memory: pass it to briquette::compress",
            )),
            false => Ok(()),
        }
    }
}

impl PruneStage {
    /// Prunes linear and conv tensors by magnitude.
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

    /// Prunes this share of each tensor.
    ///
    /// # Errors
    /// Config: the share is not from 0 to below 1.
    pub fn layer(sparsity: f64) -> Result<Self> {
        Ok(Self::new(PruneTarget::Layer(SparsityPattern::Unstructured(sparsity_of(sparsity)?))))
    }

    /// Prunes this share of all selected tensors with one threshold.
    ///
    /// # Errors
    /// Config: the share is not from 0 to below 1.
    pub fn global(sparsity: f64) -> Result<Self> {
        Ok(Self::new(PruneTarget::Global(sparsity_of(sparsity)?)))
    }

    /// Keeps `n` of every `m` neighbouring inputs.
    ///
    /// # Errors
    /// Config: not `0 < n < m <= 256`.
    pub fn n_of_m(n: usize, m: usize) -> Result<Self> {
        window_of(n, m).map(|pattern| Self::new(PruneTarget::Layer(pattern)))
    }

    /// Sets the score of weights. [`Score::Wanda`] needs input statistics, which are passed with the module.
    #[must_use]
    pub fn score(mut self, score: Score) -> Self {
        self.score = score;
        self
    }

    /// Selects tensors of these roles instead of linear and conv.
    #[must_use]
    pub fn roles(mut self, roles: &[Role]) -> Self {
        self.selection.roles = roles.to_vec();
        self
    }

    /// Selects only tensors that match one of these globs. A full name without wildcards selects its tensor
    /// regardless of its role.
    ///
    /// # Errors
    /// Config: a glob is invalid.
    pub fn include<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>) -> Result<Self> {
        self.selection.include = Some(Patterns::new(globs)?);
        Ok(self)
    }

    /// Skips tensors that match one of these globs.
    ///
    /// # Errors
    /// Config: a glob is invalid.
    pub fn exclude<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>) -> Result<Self> {
        self.selection.exclude = Patterns::new(globs)?;
        Ok(self)
    }

    /// Overrides the share of tensors that match one of these globs. If several overrides match, the last
    /// applies.
    ///
    /// # Errors
    /// Config: a glob is invalid, or the share is not from 0 to below 1.
    pub fn with<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>, sparsity: f64) -> Result<Self> {
        self.overrides.push((Patterns::new(globs)?, sparsity_of(sparsity)?));
        Ok(self)
    }

    fn check(&self) -> Result<()> {
        self.overrides.iter().try_for_each(|(_, ratio)| sparsity_of(ratio.get()).map(drop))?;
        match self.target {
            PruneTarget::Layer(SparsityPattern::NOfM { n, m }) => window_of(n, m).map(drop)?,
            PruneTarget::Layer(SparsityPattern::Unstructured(ratio) | SparsityPattern::PerRow(ratio))
            | PruneTarget::Global(ratio)
            | PruneTarget::Owl(ratio) => sparsity_of(ratio.get()).map(drop)?,
        }
        check_scope(self.target, self.score.needs_inputs())
    }
}

impl From<Scheme> for QuantizeStage {
    /// Quantizes linear, conv and embedding tensors with this scheme.
    fn from(scheme: Scheme) -> Self {
        let selection = Selection::of_roles(&Self::ROLES);
        Self {
            selection,
            scheme,
            rounding: Rounding::Nearest,
            learns: false,
            corrects_biases: false,
            is_trained: false,
            statistics: None,
            overrides: Vec::new(),
            found: BTreeMap::new(),
            names_embeddings: false,
        }
    }
}

impl QuantizeStage {
    /// Quantizes linear, conv and embedding tensors with a named scheme, such as `int8`, `int8-dynamic` or
    /// `int4-g128`.
    ///
    /// # Errors
    /// Config: the scheme is unknown.
    pub fn named(scheme: &str) -> Result<Self> {
        let scheme = parse_scheme("scheme", scheme)?;
        match scheme.is_open() {
            false => Ok(scheme.into()),
            true => Err(Error::config("scheme: found step without a size; write it, as in \"step0.01\"")),
        }
    }

    /// Selects tensors of these roles instead of linear, conv and embedding.
    #[must_use]
    pub fn roles(mut self, roles: &[Role]) -> Self {
        self.names_embeddings |= roles.contains(&Role::Embedding);
        self.selection.roles = roles.to_vec();
        self
    }

    /// Selects only tensors that match one of these globs; see [`PruneStage::include`].
    ///
    /// # Errors
    /// Config: a glob is invalid.
    pub fn include<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>) -> Result<Self> {
        self.names_embeddings = true;
        self.selection.include = Some(Patterns::new(globs)?);
        Ok(self)
    }

    /// Skips tensors that match one of these globs.
    ///
    /// # Errors
    /// Config: a glob is invalid.
    pub fn exclude<G: AsRef<str>>(mut self, globs: impl IntoIterator<Item = G>) -> Result<Self> {
        self.selection.exclude = Patterns::new(globs)?;
        Ok(self)
    }

    /// Overrides the scheme of tensors that match one of these globs. If several overrides match, the last
    /// applies.
    ///
    /// # Errors
    /// Config: a glob is invalid.
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
    fn stages_in_code_are_checked_like_toml() {
        let ratio = Ratio::new(0.5).unwrap();
        let global = PruneStage::new(PruneTarget::Global(ratio)).score(Score::Wanda);
        let backwards = PruneStage::new(PruneTarget::Layer(SparsityPattern::NOfM { n: 4, m: 2 }));
        let mut scheme: Scheme = "int4-asym".parse().unwrap();
        scheme.weights.range = ScaleSearch::Hqq;
        let cases = [
            (Recipe::in_memory().prune(global), "stage 1 (prune): scope: found \"global\""),
            (
                Recipe::in_memory()
                    .prune(PruneStage::new(PruneTarget::Layer(SparsityPattern::PerRow(Ratio::new(1.0).unwrap())))),
                "stage 1 (prune): sparsity: found 1, expected a number from 0 to below 1",
            ),
            (Recipe::in_memory().prune(backwards), "stage 1 (prune): pattern: found \"4:2\""),
            (Recipe::in_memory().quantize(scheme), "stage 1 (quantize): range: hqq shifts zero points"),
            (
                Recipe::in_memory()
                    .quantize(Scheme::INT8)
                    .prune(PruneStage::new(PruneTarget::Layer(SparsityPattern::Unstructured(ratio)))),
                "found a prune stage after a quantize stage; put the prune stage first",
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
    fn stages_in_code_equal_stages_in_toml() {
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
