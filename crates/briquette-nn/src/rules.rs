//! Rules for pruning and quantizing parameters, chosen by glob.

use crate::{Patterns, Schedule};
use briquette_core::encoded::ScaleType;
use briquette_core::{Error, Grouping, InputStats, InputView, Mask, QuantParams, Result, Rows};
use briquette_prune::{Ratio, Score};
use briquette_quant::{Activations, QuantSpec, Range, Scheme};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

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

/// The weights of one output, as a score of one's own is shown them.
#[derive(Debug, Clone, Copy)]
pub struct WeightRow<'a> {
    /// The path of the parameter.
    pub path: &'a str,
    /// Which output this is.
    pub row: usize,
    /// Its weights, 0 where they are dropped already: those of a convolution in the order `[in, ky, kx]`.
    pub weights: &'a [f32],
    /// Two numbers for each input, where [`Prune::inputs`] has statistics of the layer.
    pub inputs: Option<&'a InputView>,
}

/// A score of one's own.
type OwnScore = Arc<dyn Fn(&WeightRow<'_>) -> Vec<f32> + Send + Sync>;

/// How weights are scored.
#[derive(Clone)]
pub(crate) enum Scoring {
    Known(Score),
    Own(OwnScore),
}

impl Scoring {
    fn needs_inputs(&self) -> bool {
        matches!(self, Self::Known(score) if score.needs_inputs())
    }
}

impl fmt::Debug for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(score) => score.fmt(f),
            Self::Own(_) => f.write_str("a score of one's own"),
        }
    }
}

/// The paths that a rule is for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chosen {
    pub(crate) included: Patterns,
    pub(crate) excluded: Patterns,
}

impl Chosen {
    fn of(included: Patterns) -> Self {
        Self { included, ..Self::default() }
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        self.included.matches(path) && !self.excluded.matches(path)
    }

    /// A pattern that matches none of the names that rules are for, or excludes none of all.
    pub(crate) fn unused<'a>(
        &self,
        eligible: impl Iterator<Item = &'a str>,
        all: impl Iterator<Item = &'a str>,
    ) -> Option<&str> {
        self.included.unused(eligible).or_else(|| self.excluded.unused(all))
    }
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
    pub(crate) chosen: Chosen,
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

    /// Refuses a score that uses statistics of a layer's inputs where there are none for the layer, and those of other inputs.
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
            Some(view) if view.rms.len() != n_cols => Err(Error::config(format!(
                "found statistics of {} inputs of {layer:?}, expected {n_cols}",
                view.rms.len()
            ))),
            _ => Ok(()),
        }
    }

    /// The weights that are compared with each other.
    pub(crate) fn scope(&self) -> Scope {
        if self.scoring.needs_inputs() { Scope::Row } else { self.scope }
    }

    fn with_amount(patterns: Patterns, amount: Amount) -> Result<Self> {
        let (scope, scoring, schedule) = (Scope::Layer, Scoring::Known(Score::Magnitude), Schedule::once());
        let (chosen, inputs) = (Chosen::of(patterns), BTreeMap::new());
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
    pub(crate) chosen: Chosen,
    pub(crate) scheme: Scheme,
    pub(crate) schedule: Schedule,
    /// The scales, where they are given rather than fitted.
    pub(crate) given: Option<QuantParams>,
    /// Whether scales are trained.
    pub(crate) is_learned: bool,
}

/// Steps between two fits of scales, where a rule does not say: weights move little in so few.
const FITTED_EVERY: usize = 10;

impl Quantize {
    /// Rounds the parameters that `glob` matches by a named scheme (`int8`, `int4-g128-asym`), from the start on. Scales are found when
    /// attached, again every ten steps for which [`refresh`](crate::Compression::refresh) is called, and whenever the same parameter is
    /// pruned further; [`on`](Self::on) sets other steps, and `on(Schedule::once())` keeps the first scales.
    ///
    /// With `int8-dynamic` or `int8-dynamic-sym`, the layers of [`crate::layers`] also round what they multiply, as they will when they are
    /// served: each row of a `Linear`'s input, each image of a `Conv2d`. burn's own layers do not look at what is attached to their
    /// parameters, so with them activations stay floats.
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
        let (chosen, schedule) =
            (Chosen::of(Patterns::new([glob])?), Schedule::constant(0..usize::MAX).every(FITTED_EVERY));
        Ok(Self { chosen, scheme, schedule, given: None, is_learned: false })
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
        Ok(Self { given: Some(params), schedule: Schedule::once(), ..rule })
    }

    /// Refuses groups and scales that do not fit the rows of a parameter.
    pub(crate) fn check(&self, n_rows: usize, n_cols: usize) -> Result<()> {
        let grouping = self.scheme.weights.grouping;
        let Some(per_row) = grouping.per_row(n_cols) else {
            return Err(Error::config(format!(
                "{grouping} does not divide {n_cols} columns; choose another group size"
            )));
        };
        self.check_learned()?;
        let n_scales = if grouping == Grouping::Tensor { 1 } else { n_rows * per_row };
        match &self.given {
            Some(params) if params.affines.len() != n_scales => {
                let found = params.affines.len();
                Err(Error::config(format!("found {found} scales, expected {n_scales} of {n_rows} x {n_cols} weights")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses scales that are learned where they would not be stored as they are trained.
    fn check_learned(&self) -> Result<()> {
        let QuantSpec { grid, scale, .. } = self.scheme.weights;
        match self.is_learned {
            true if grid.is_asymmetric() => Err(Error::config("scales are learned on grids without a zero point only")),
            true if scale != ScaleType::F32 => Err(Error::config("scales that are learned are stored as f32 only")),
            true if self.given.is_some() => Err(Error::config("scales are either given or learned")),
            _ => Ok(()),
        }
    }

    /// Fits scales again at these steps, as the weights change. Before the schedule begins, nothing is rounded.
    #[must_use]
    pub fn on(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Trains the scales beside the weights, by any optimizer: they begin where the scheme's range puts them, and are not fitted again.
    ///
    /// With `t = w / s` and codes from `Qn` to `Qp`, `∂v/∂s = round(t) - t` where `Qn < t < Qp`, and `Qn` or `Qp` beyond, times
    /// `1 / sqrt(n · Qp)` for the `n` weights that share a scale; the weights beyond get no gradient. A scale that is trained below 0
    /// counts by its magnitude. Weight decay of the optimizer acts on scales too: a `ParamGroup` can leave those out, whose paths end in
    /// `.briquette.scale`. For symmetric grids with scales of f32; others are errors of [`Compression::attach`](crate::Compression::attach).
    /// Source: Esser et al., "Learned Step Size Quantization", 2020.
    #[must_use]
    pub fn learned(mut self) -> Self {
        self.is_learned = true;
        self
    }

    /// Leaves out parameters whose path matches this glob; an earlier rule may apply to them.
    ///
    /// # Errors
    /// As [`Prune::exclude`].
    pub fn exclude(mut self, glob: &str) -> Result<Self> {
        self.chosen.excluded.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// When scales are fitted: once, where they are learned from then on.
    pub(crate) fn schedule(&self) -> Schedule {
        if self.is_learned { self.schedule.begin_only() } else { self.schedule }
    }
}
