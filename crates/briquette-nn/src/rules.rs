//! Rules for pruning and quantizing parameters, chosen by glob.

use crate::{Patterns, Schedule};
use briquette_core::encoded::ScaleType;
use briquette_core::{Error, Grouping, InputStats, InputView, Mask, QuantParams, Result, Rows};
use briquette_prune::{Ratio, Score};
use briquette_quant::{Activations, QuantSpec, Range, Scheme};
use std::collections::BTreeMap;

/// The weights that a sparsity counts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Each parameter on its own.
    #[default]
    Layer,
    /// All parameters of the rule together: one threshold.
    Global,
}

/// How many weights are dropped, or which.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Amount {
    Ratio(Ratio),
    NOfM { n: usize, m: usize },
    Zeros,
    Outside(Mask),
}

/// The rules that apply to one parameter, by their indices.
#[derive(Debug, Clone)]
pub(crate) struct RuleTarget {
    /// The path of the parameter's layer, which statistics of inputs are listed under.
    pub(crate) layer: String,
    pub(crate) rows: Rows,
    pub(crate) prune: Option<usize>,
    pub(crate) quantize: Option<usize>,
    /// The parameter's index in its module, so that each parameter gets other random scores.
    pub(crate) index: usize,
}

/// All rules of a module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) prune: &'a [Prune],
    pub(crate) quantize: &'a [Quantize],
}

/// A rule that prunes parameters to a sparsity, on a schedule.
#[derive(Debug, Clone)]
pub struct Prune {
    pub(crate) patterns: Patterns,
    pub(crate) amount: Amount,
    pub(crate) from: Ratio,
    pub(crate) scope: Scope,
    pub(crate) score: Score,
    pub(crate) schedule: Schedule,
    /// Input statistics of each layer, by its path.
    pub(crate) inputs: BTreeMap<String, InputView>,
}

impl Prune {
    /// Drops this share of the weights of the parameters that `glob` matches, all at once.
    ///
    /// # Errors
    /// Config, where the share is not from 0 to 1 or `glob` is not a valid glob.
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
    /// Config, where `n` is more than `m` or `glob` is not a valid glob.
    pub fn n_of_m(glob: &str, n: usize, m: usize) -> Result<Self> {
        if m == 0 || n > m {
            return Err(Error::config(format!("{n} of {m} cannot be kept; expected n up to m, such as 2 of 4")));
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
        let is_plain = self.scope == Scope::Layer && self.from.get() == 0.0 && self.schedule.is_constant();
        match &self.amount {
            Amount::Ratio(_) => Ok(()),
            _ if !is_plain => {
                let message = "only a share of weights goes step by step, from a start, or globally; use Prune::new";
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

    /// Refuses a score that uses statistics of a layer's inputs where there are none for the layer.
    fn check_inputs(&self, layer: &str, n_cols: usize) -> Result<()> {
        if !self.score.needs_inputs() {
            return Ok(());
        }
        if self.scope == Scope::Global {
            return Err(Error::config("scores that look at inputs compare within a layer only; leave globally() out"));
        }
        match self.inputs.get(layer) {
            None => Err(Error::config(format!("no statistics of the inputs of {layer:?}; give them by Prune::inputs"))),
            Some(view) if view.rms.len() != n_cols => Err(Error::config(format!(
                "found statistics of {} inputs of {layer:?}, expected {n_cols}",
                view.rms.len()
            ))),
            Some(_) => Ok(()),
        }
    }

    fn with_amount(patterns: Patterns, amount: Amount) -> Result<Self> {
        let (scope, score, schedule) = (Scope::Layer, Score::Magnitude, Schedule::once());
        let inputs = BTreeMap::new();
        Ok(Self { patterns, amount, from: ratio_of(0.0)?, scope, score, schedule, inputs })
    }

    /// Compares the weights of all parameters of this rule, by one threshold.
    #[must_use]
    pub fn globally(mut self) -> Self {
        self.scope = Scope::Global;
        self
    }

    /// Scores weights in another way than by magnitude, which is the default.
    #[must_use]
    pub fn score(mut self, score: Score) -> Self {
        self.score = score;
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
    /// Config, where the sparsity is not from 0 to 1.
    pub fn starting_at(mut self, sparsity: f64) -> Result<Self> {
        self.from = ratio_of(sparsity)?;
        Ok(self)
    }
}

fn ratio_of(sparsity: f64) -> Result<Ratio> {
    Ratio::new(sparsity).ok_or_else(|| Error::config(format!("sparsity {sparsity} is not a share from 0 to 1")))
}

/// A rule that rounds parameters to a grid while they are trained.
#[derive(Debug, Clone)]
pub struct Quantize {
    pub(crate) patterns: Patterns,
    pub(crate) scheme: Scheme,
    pub(crate) schedule: Schedule,
    /// The scales, where they are given rather than fitted.
    pub(crate) given: Option<QuantParams>,
}

impl Quantize {
    /// Rounds the parameters that `glob` matches by a named scheme (`int8`, `int4-g128-asym`), with scales found once,
    /// and again whenever the same parameter is pruned further.
    ///
    /// # Errors
    /// Config, where there is no such scheme or `glob` is not a valid glob.
    pub fn new(glob: &str, scheme: &str) -> Result<Self> {
        let scheme = scheme.parse::<Scheme>().map_err(|error| Error::config(error.to_string()))?;
        Self::with_scheme(glob, scheme)
    }

    /// As [`new`](Self::new), with a scheme spelled out.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn with_scheme(glob: &str, scheme: Scheme) -> Result<Self> {
        Ok(Self { patterns: Patterns::new([glob])?, scheme, schedule: Schedule::once(), given: None })
    }

    /// Rounds a parameter to this grid with these scales, however they were chosen, and never with others. Rows are outputs, as in
    /// [`Prune::outside`].
    ///
    /// # Errors
    /// Config, where the path is no glob.
    pub fn on_grid(path: &str, params: QuantParams) -> Result<Self> {
        let (grid, grouping) = (params.grid, params.grouping);
        let weights = QuantSpec { grid, grouping, range: Range::AbsMax, scale: ScaleType::F32 };
        let rule = Self::with_scheme(path, Scheme { weights, activations: Activations::Float })?;
        Ok(Self { given: Some(params), ..rule })
    }

    /// Refuses groups and scales that do not fit the rows of a parameter.
    pub(crate) fn check(&self, n_rows: usize, n_cols: usize) -> Result<()> {
        let grouping = self.scheme.weights.grouping;
        let Some(per_row) = grouping.per_row(n_cols) else {
            return Err(Error::config(format!(
                "{grouping} does not divide {n_cols} columns; choose another group size"
            )));
        };
        let n_scales = if grouping == Grouping::Tensor { 1 } else { n_rows * per_row };
        match &self.given {
            Some(params) if params.affines.len() != n_scales => {
                let found = params.affines.len();
                Err(Error::config(format!("found {found} scales, expected {n_scales} of {n_rows} x {n_cols} weights")))
            }
            _ => Ok(()),
        }
    }

    /// Fits scales again as the weights change. Before the schedule begins, nothing is rounded.
    #[must_use]
    pub fn on(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }
}
