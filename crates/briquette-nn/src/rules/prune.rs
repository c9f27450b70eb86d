//! The rule that prunes.

use crate::rules::chosen_paths::ChosenPaths;
use crate::rules::scoring::{Scoring, WeightRow};
use crate::{Patterns, Schedule};
use briquette_core::{Error, InputStats, InputView, Mask, Result};
use briquette_methods::prune::{Ratio, Score};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most inputs that a pattern N:M looks at together.
const MAX_WINDOW: usize = 256;

/// The weights that a sparsity counts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Each parameter on its own.
    #[default]
    Layer,
    /// All parameters of the rule together: one threshold.
    Global,
    /// Each output of a parameter on its own.
    Row,
    /// Each block of so many neighbouring inputs of a parameter on its own, all outputs together.
    Columns(usize),
}

/// How many weights are dropped, or which.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Amount {
    Ratio(Ratio),
    NOfM { n: usize, m: usize },
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
    /// Input statistics of each layer, by its path.
    pub(crate) inputs: BTreeMap<String, InputView>,
}

impl Prune {
    /// Drops this share of the weights of the parameters that `glob` matches, all at once.
    ///
    /// # Errors
    /// Config, where the share is not from 0 to below 1 or `glob` is not a valid glob.
    pub fn new(glob: &str, sparsity: f64) -> Result<Self> {
        Self::each([glob], sparsity)
    }

    /// As [`new`](Self::new), for parameters that any of these globs matches: one rule, so that they can share one threshold.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn each<G: AsRef<str>>(globs: impl IntoIterator<Item = G>, sparsity: f64) -> Result<Self> {
        let ratio = ratio_of(sparsity)?;
        Self::with_amount(Patterns::new(globs)?, Amount::Ratio(ratio))
    }

    /// Keeps `n` of every `m` neighbouring inputs: all at once when the schedule, which is constant, begins, and each parameter on
    /// its own.
    ///
    /// # Errors
    /// Config, unless `0 < n < m <= 256`, and where `glob` is not a valid glob.
    pub fn n_of_m(glob: &str, n: usize, m: usize) -> Result<Self> {
        if n == 0 || n >= m || m > MAX_WINDOW {
            let message = format!("pattern: found {n}:{m}, expected N:M with 0 < N < M <= {MAX_WINDOW}, such as 2:4");
            return Err(Error::config(message));
        }
        Self::with_amount(Patterns::new([glob])?, Amount::NOfM { n, m })
    }

    /// Keeps weights at zero that are zero when the schedule begins: a model that is sparse already stays as sparse while it trains.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn zeros(glob: &str) -> Result<Self> {
        Self::with_amount(Patterns::new([glob])?, Amount::Zeros)
    }

    /// Drops the weights that this mask does not keep, however it was chosen. Rows of the mask are outputs, its columns all else:
    /// `[out, in]` of a `Linear`, `[out, in * ky * kx]` of a convolution.
    ///
    /// # Errors
    /// Config, where the path is no glob.
    pub fn outside(path: &str, mask: Mask) -> Result<Self> {
        Self::with_amount(Patterns::new([path])?, Amount::Outside(mask))
    }

    /// Refuses settings that would have no effect, and masks and patterns that do not fit rows of `n_cols`.
    pub(crate) fn check(&self, layer: &str, n_rows: usize, n_cols: usize) -> Result<()> {
        self.check_inputs(layer, n_cols)?;
        if self.scope == Scope::Columns(0) {
            return Err(Error::config("a block of 0 inputs has no weights; give of_each_columns at least 1"));
        }
        let is_plain = self.scope == Scope::Layer && self.from.get() == 0.0 && self.schedule.is_constant();
        match &self.amount {
            Amount::Ratio(_) => Ok(()),
            _ if !is_plain => {
                let message = "only a share of weights goes step by step, from a start, globally, or of each part; use Prune::new";
                Err(Error::config(message))
            }
            Amount::NOfM { n, m } if !n_cols.is_multiple_of(*m) => {
                Err(Error::config(format!("{n}:{m} does not divide {n_cols} columns; choose another pattern")))
            }
            Amount::Outside(mask) if mask.dim() != (n_rows, n_cols) => {
                let (rows, cols) = mask.dim();
                Err(Error::config(format!(
                    "found a mask of {rows} x {cols}, expected {n_rows} outputs x {n_cols} weights"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a score that needs statistics of a layer's inputs where there are none for the layer, and statistics that do not fit.
    fn check_inputs(&self, layer: &str, n_cols: usize) -> Result<()> {
        let needs = self.scoring.needs_inputs();
        if needs && matches!(self.scope, Scope::Global | Scope::Columns(_)) {
            let message =
                "scores that look at inputs compare within an output only; leave globally() and of_each_columns() out";
            return Err(Error::config(message));
        }
        match self.inputs.get(layer) {
            None if needs => {
                Err(Error::config(format!("no statistics of the inputs of {layer:?}; give them by Prune::inputs")))
            }
            Some(view) if view.rms.iter().chain(&view.mean_square).any(|number| !number.is_finite()) => Err(
                Error::refused(format!("the statistics of the inputs of {layer:?} are not finite; gather them again")),
            ),
            Some(view) if view.rms.len() != n_cols => Err(Error::config(format!(
                "found statistics of {} inputs of {layer:?}, expected {n_cols}",
                view.rms.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Whether the rule can have made a mask, as far as the mask shows.
    pub(crate) fn makes(&self, mask: &Mask) -> bool {
        let (n_rows, n_cols) = mask.dim();
        match &self.amount {
            Amount::Outside(given) => mask == given,
            &Amount::NOfM { n, m } => (0..n_rows).all(|row| {
                (0..n_cols).step_by(m).all(|first| (first..first + m).filter(|&col| mask.keeps(row, col)).count() <= n)
            }),
            Amount::Ratio(_) | Amount::Zeros => true,
        }
    }

    /// The weights that are compared with each other.
    pub(crate) fn scope(&self) -> Scope {
        if self.scoring.needs_inputs() { Scope::Row } else { self.scope }
    }

    fn with_amount(patterns: Patterns, amount: Amount) -> Result<Self> {
        let (scope, scoring, schedule) = (Scope::Layer, Scoring::Known(Score::Magnitude), Schedule::once());
        let (chosen, inputs) = (ChosenPaths::of(patterns), BTreeMap::new());
        Ok(Self { chosen, amount, from: ratio_of(0.0)?, scope, scoring, schedule, inputs })
    }

    /// Compares the weights of all parameters of this rule, by one threshold.
    #[must_use]
    pub fn globally(mut self) -> Self {
        self.scope = Scope::Global;
        self
    }

    /// Drops the share from each output on its own: all outputs keep as many weights.
    ///
    /// Of `n` inputs `round(share * n)` are dropped, halves to even, those of smallest score; ties go to the lower index.
    #[must_use]
    pub fn of_each_row(mut self) -> Self {
        self.scope = Scope::Row;
        self
    }

    /// Drops the share from each block of `size` neighbouring inputs on its own, all outputs of the parameter together; of a last
    /// block with fewer inputs, in proportion, rounded down. Of a convolution, inputs are its taps `[in, ky, kx]`.
    #[must_use]
    pub fn of_each_columns(mut self, size: usize) -> Self {
        self.scope = Scope::Columns(size);
        self
    }

    /// Leaves out parameters whose path matches this glob; an earlier rule may apply to them.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob. Where it matches no parameter, [`Compression::attach`](crate::Compression::attach) says so.
    pub fn exclude(mut self, glob: &str) -> Result<Self> {
        self.chosen.excluded.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Scores weights in another way than by magnitude, which is the default.
    #[must_use]
    pub fn score(mut self, score: Score) -> Self {
        self.scoring = Scoring::Known(score);
        self
    }

    /// Scores weights by a function of one's own: a number of at least 0 for each weight of an output, smaller where it is safer to drop.
    ///
    /// It is called for each output of a parameter whenever the rule is due, by several threads, and for a rule that is
    /// [global](Self::globally) three times. Scores of another length, negative ones and those that are not finite are errors of
    /// [`Compression::refresh`](crate::Compression::refresh).
    ///
    /// ```
    /// use briquette_nn::Prune;
    ///
    /// // The input of each weight weighs in, where it is known, and not only its size.
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

    /// Sets the input statistics of layers, by path, for scores that use them: see [`Probe`](crate::Probe). With [`Score::Wanda`],
    /// the share is dropped from each output on its own.
    #[must_use]
    pub fn inputs(mut self, stats: &BTreeMap<String, InputStats>) -> Self {
        self.inputs = stats.iter().map(|(path, stats)| (path.clone(), stats.view())).collect();
        self
    }

    /// Reaches the sparsity step by step.
    #[must_use]
    pub fn on(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Begins the schedule at this sparsity instead of 0.
    ///
    /// # Errors
    /// Config, where the sparsity is not from 0 to below 1.
    pub fn starting_at(mut self, sparsity: f64) -> Result<Self> {
        self.from = ratio_of(sparsity)?;
        Ok(self)
    }
}

fn ratio_of(sparsity: f64) -> Result<Ratio> {
    let wrong = || Error::config(format!("sparsity: found {sparsity}, expected a number from 0 to below 1"));
    Ratio::new(sparsity).filter(|ratio| ratio.get() < 1.0).ok_or_else(wrong)
}
