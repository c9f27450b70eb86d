//! Pruning rules.

use crate::rules::chosen_paths::ChosenPaths;
use crate::rules::scoring::{Scoring, WeightRow};
use crate::{Patterns, Schedule};
use briquette_core::{Error, InputStats, InputView, Mask, Result};
use briquette_methods::prune::{Ratio, Score, SparsityPattern};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The set of weights that a sparsity applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Each parameter separately.
    #[default]
    Layer,
    /// All parameters of the rule together, with one threshold.
    Global,
    /// Each output of a parameter separately.
    Row,
    /// Each block of this many neighbouring inputs separately, over all outputs of a parameter.
    Columns(usize),
}

/// The amount of pruning.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Amount {
    /// A pattern of each parameter. The scope may compare other weights.
    Pattern(SparsityPattern<Ratio>),
    Zeros,
    Outside(Mask),
}

/// A rule that prunes parameters to a sparsity, on a schedule.
#[derive(Debug, Clone)]
pub struct Prune {
    pub(crate) chosen: ChosenPaths,
    pub(crate) amount: Amount,
    pub(crate) from: Ratio,
    scope: Scope,
    pub(crate) scoring: Scoring,
    pub(crate) schedule: Schedule,
    /// Input statistics of each layer, by path.
    pub(crate) inputs: BTreeMap<String, InputView>,
}

impl Prune {
    /// Prunes the parameters that `glob` matches to this sparsity, in one step.
    ///
    /// # Errors
    /// Config: the sparsity is not in `0..1`, or `glob` is not valid.
    pub fn new(glob: &str, sparsity: f64) -> Result<Self> {
        Self::each([glob], sparsity)
    }

    /// Like [`new`](Self::new), for several globs in one rule, so that their parameters can share a threshold.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn each<G: AsRef<str>>(globs: impl IntoIterator<Item = G>, sparsity: f64) -> Result<Self> {
        let ratio = ratio_of(sparsity)?;
        Self::with_amount(Patterns::new(globs)?, Amount::Pattern(SparsityPattern::Unstructured(ratio)))
    }

    /// Keeps `n` of every `m` neighbouring inputs.
    ///
    /// Takes full effect when the schedule begins, which must be constant, for each parameter separately.
    ///
    /// # Errors
    /// Config: not `0 < n < m <= 256`, or `glob` is not valid.
    pub fn n_of_m(glob: &str, n: usize, m: usize) -> Result<Self> {
        let expected = "expected N:M with 0 < N < M <= 256, such as 2:4";
        let pattern = SparsityPattern::n_of_m(n, m);
        let pattern = pattern.ok_or_else(|| Error::config(format!("pattern: found {n}:{m}, {expected}")))?;
        Self::with_amount(Patterns::new([glob])?, Amount::Pattern(pattern))
    }

    /// Keeps the zeros that weights have when the schedule begins, so a sparse model stays sparse during
    /// training.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn zeros(glob: &str) -> Result<Self> {
        Self::with_amount(Patterns::new([glob])?, Amount::Zeros)
    }

    /// Drops the weights that this mask does not keep.
    ///
    /// Rows of the mask are outputs: `[out, in]` for a `Linear`, `[out, in * ky * kx]` for a convolution.
    ///
    /// # Errors
    /// Config: `path` is not a valid glob.
    pub fn outside(path: &str, mask: Mask) -> Result<Self> {
        Self::with_amount(Patterns::new([path])?, Amount::Outside(mask))
    }

    /// Refuses settings without effect, and masks and patterns that do not fit rows of `n_cols`.
    pub(crate) fn check(&self, layer: &str, n_rows: usize, n_cols: usize) -> Result<()> {
        self.check_inputs(layer, n_rows, n_cols)?;
        if self.scope == Scope::Columns(0) {
            return Err(Error::config("of_each_columns: found 0, expected at least 1 input per block"));
        }
        let is_plain = self.scope == Scope::Layer && self.from.get() == 0.0 && self.schedule.is_constant();
        match &self.amount {
            _ if self.sparsity().is_some() => Ok(()),
            _ if !is_plain => {
                let message = "a schedule with steps, starting_at(), globally(), of_each_row() and of_each_columns() need a sparsity; use Prune::new";
                Err(Error::config(message))
            }
            Amount::Pattern(SparsityPattern::NOfM { n, m }) if !n_cols.is_multiple_of(*m) => Err(Error::config(
                format!("found pattern {n}:{m}, but {m} does not divide {n_cols} columns; choose another pattern"),
            )),
            Amount::Outside(mask) if mask.dim() != (n_rows, n_cols) => {
                let (rows, cols) = mask.dim();
                Err(Error::config(format!(
                    "found a mask of {rows} x {cols}, expected {n_rows} outputs x {n_cols} inputs"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses scores without the input statistics that they need, and statistics that do not fit the layer.
    fn check_inputs(&self, layer: &str, n_rows: usize, n_cols: usize) -> Result<()> {
        let needs = self.scoring.needs_inputs();
        if needs && matches!(self.scope, Scope::Global | Scope::Columns(_)) {
            let message = "scores with input statistics compare weights within an output; remove globally() and of_each_columns()";
            return Err(Error::config(message));
        }
        match self.inputs.get(layer) {
            None if needs => {
                Err(Error::config(format!("no input statistics of layer {layer:?}; set them by Prune::inputs")))
            }
            Some(view) if view.rms.iter().chain(&view.mean_square).any(|number| !number.is_finite()) => Err(
                Error::refused(format!("the input statistics of layer {layer:?} are not finite; record them again")),
            ),
            Some(view) if !view.fits([n_rows, n_cols]) => Err(Error::config(format!(
                "found statistics of {} inputs for layer {layer:?}, expected {n_cols}",
                view.rms.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns whether the rule could have produced this mask.
    pub(crate) fn makes(&self, mask: &Mask) -> bool {
        let (n_rows, n_cols) = mask.dim();
        match &self.amount {
            Amount::Outside(given) => mask == given,
            &Amount::Pattern(SparsityPattern::NOfM { n, m }) => (0..n_rows).all(|row| {
                (0..n_cols).step_by(m).all(|first| (first..first + m).filter(|&col| mask.keeps(row, col)).count() <= n)
            }),
            Amount::Pattern(_) | Amount::Zeros => true,
        }
    }

    /// Returns the sparsity at the end of the schedule; `None` for a rule without a sparsity.
    pub(crate) fn sparsity(&self) -> Option<Ratio> {
        match self.amount {
            Amount::Pattern(SparsityPattern::Unstructured(ratio) | SparsityPattern::PerRow(ratio)) => Some(ratio),
            Amount::Pattern(SparsityPattern::NOfM { .. }) | Amount::Zeros | Amount::Outside(_) => None,
        }
    }

    /// Returns the effective scope.
    pub(crate) fn scope(&self) -> Scope {
        if self.scoring.needs_inputs() { Scope::Row } else { self.scope }
    }

    fn with_amount(patterns: Patterns, amount: Amount) -> Result<Self> {
        let (scope, scoring, schedule) = (Scope::Layer, Scoring::Known(Score::Magnitude), Schedule::once());
        let (chosen, inputs) = (ChosenPaths::of(patterns), BTreeMap::new());
        Ok(Self { chosen, amount, from: ratio_of(0.0)?, scope, scoring, schedule, inputs })
    }

    /// Compares the weights of all parameters of this rule, with one threshold.
    #[must_use]
    pub fn globally(mut self) -> Self {
        self.scope = Scope::Global;
        self
    }

    /// Applies the sparsity to each output separately, so all outputs keep equally many weights.
    ///
    /// Of `n` inputs, `round(sparsity * n)` with the smallest scores are dropped; halves round to even. Ties
    /// are dropped from the lower index.
    #[must_use]
    pub fn of_each_row(mut self) -> Self {
        self.scope = Scope::Row;
        self
    }

    /// Applies the sparsity to each block of `size` neighbouring inputs, over all outputs of a parameter.
    ///
    /// A last block with fewer inputs drops proportionally, rounded down. Inputs of a convolution are `[in, ky,
    /// kx]`.
    #[must_use]
    pub fn of_each_columns(mut self, size: usize) -> Self {
        self.scope = Scope::Columns(size);
        self
    }

    /// Excludes parameters whose path matches this glob; an earlier rule may apply to them.
    ///
    /// [`Compression::attach`](crate::Compression::attach) returns an error if the glob matches no parameter.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn exclude(mut self, glob: &str) -> Result<Self> {
        self.chosen.excluded.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Sets the score; the default is the magnitude.
    #[must_use]
    pub fn score(mut self, score: Score) -> Self {
        self.scoring = Scoring::Known(score);
        self
    }

    /// Scores weights with your own function, which returns one number of at least 0 per weight of an output.
    /// The weights with the smallest scores are dropped.
    ///
    /// The function is called for each output of a parameter whenever the rule is due, from several threads;
    /// for a [global](Self::globally) rule three times. [`Compression::refresh`](crate::Compression::refresh)
    /// returns an error if the scores have another length, are negative or not finite.
    ///
    /// ```
    /// use briquette_nn::Prune;
    ///
    /// // Score by weight and, if known, by the input of the weight.
    /// let rule = Prune::new("**.weight", 0.5)?.of_each_row().score_by(|row| {
    ///     let rms = |i: usize| row.inputs.map_or(1.0, |inputs| inputs.rms[i]);
    ///     row.weights.iter().enumerate().map(|(i, weight)| weight.abs().sqrt() * rms(i)).collect()
    /// });
    /// # Ok::<(), briquette_core::Error>(())
    /// ```
    #[must_use]
    pub fn score_by(mut self, score: impl Fn(&WeightRow<'_>) -> Vec<f32> + Send + Sync + 'static) -> Self {
        self.scoring = Scoring::Own(Arc::new(score));
        self
    }

    /// Sets the input statistics of layers, by path, for scores that need them: see [`Probe`](crate::Probe).
    ///
    /// [`Score::Wanda`] applies the sparsity to each output separately.
    #[must_use]
    pub fn inputs(mut self, stats: &BTreeMap<String, InputStats>) -> Self {
        self.inputs = stats.iter().map(|(path, stats)| (path.clone(), stats.view())).collect();
        self
    }

    /// Raises the sparsity on a schedule.
    #[must_use]
    pub fn on(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Starts the schedule at this sparsity instead of 0.
    ///
    /// # Errors
    /// Config: the sparsity is not in `0..1`.
    pub fn starting_at(mut self, sparsity: f64) -> Result<Self> {
        self.from = ratio_of(sparsity)?;
        Ok(self)
    }
}

fn ratio_of(sparsity: f64) -> Result<Ratio> {
    let wrong = || Error::config(format!("sparsity: found {sparsity}, expected a number from 0 to below 1"));
    Ratio::new(sparsity).filter(|ratio| ratio.get() < 1.0).ok_or_else(wrong)
}
