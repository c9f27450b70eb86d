//! The rule that rounds.

use crate::rules::chosen_paths::ChosenPaths;
use crate::{Patterns, Schedule};
use briquette_core::encoded::ScaleType;
use briquette_core::{Error, Grouping, QuantParams, Result};
use briquette_methods::quant::{Activations, QuantSpec, ScaleSearch, Scheme};

/// A rule that rounds parameters to a grid while they are trained.
#[derive(Debug, Clone)]
pub struct Quantize {
    pub(crate) chosen: ChosenPaths,
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
    /// A parameter whose columns the groups of a scheme do not divide, such as a depthwise convolution, has one scale for each row.
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
    /// Config, where `glob` is not a valid glob, or the scheme has no step yet.
    pub fn with_scheme(glob: &str, scheme: Scheme) -> Result<Self> {
        if scheme.is_open() {
            return Err(Error::config("scheme: step has no size; say it, as in \"step0.01\""));
        }
        let (chosen, schedule) =
            (ChosenPaths::of(Patterns::new([glob])?), Schedule::constant(0..usize::MAX).every(FITTED_EVERY));
        Ok(Self { chosen, scheme, schedule, given: None, is_learned: false })
    }

    /// Rounds a parameter to this grid with these scales, however they were chosen, and never with others. Rows are outputs, as in
    /// [`Prune::outside`](crate::Prune::outside).
    ///
    /// # Errors
    /// Config, where the path is no glob.
    pub fn on_grid(path: &str, params: QuantParams) -> Result<Self> {
        let (grid, grouping) = (params.grid, params.grouping);
        let weights = QuantSpec { grid, grouping, range: ScaleSearch::AbsMax, scale: ScaleType::F32 };
        let rule = Self::with_scheme(path, Scheme { weights, activations: Activations::Float })?;
        Ok(Self { given: Some(params), schedule: Schedule::once(), ..rule })
    }

    /// The scheme of a parameter with rows of `n_cols` weights: one scale per row if the groups of the rule do not divide them.
    pub(crate) fn scheme_for(&self, n_cols: usize) -> Scheme {
        match self.given {
            Some(_) => self.scheme,
            None => Scheme { weights: self.scheme.weights.for_columns(n_cols), ..self.scheme },
        }
    }

    /// Refuses scales that do not fit the rows of a parameter.
    pub(crate) fn check(&self, n_rows: usize, n_cols: usize) -> Result<()> {
        let grouping = self.scheme_for(n_cols).weights.grouping;
        let Some(per_row) = grouping.per_row(n_cols) else {
            return Err(Error::config(format!(
                "found scales for {grouping}, which do not divide {n_cols} columns; give others"
            )));
        };
        self.check_learned()?;
        let n_scales = if grouping == Grouping::Tensor { 1 } else { n_rows * per_row };
        match &self.given {
            Some(params) if params.affines.iter().any(|affine| !(affine.scale.is_finite() && affine.scale > 0.0)) => {
                Err(Error::config(
                    "found a scale that is not a finite number above 0; give others to Quantize::on_grid",
                ))
            }
            Some(params) if params.affines.len() != n_scales => {
                let found = params.affines.len();
                Err(Error::config(format!("found {found} scales, expected {n_scales} of {n_rows} x {n_cols} weights")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the rule can have made scales, as far as these show.
    pub(crate) fn makes(&self, params: &QuantParams) -> bool {
        self.given.as_ref().is_none_or(|given| given == params)
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
    /// As [`Prune::exclude`](crate::Prune::exclude).
    pub fn exclude(mut self, glob: &str) -> Result<Self> {
        self.chosen.excluded.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// When scales are fitted: once, where they are learned from then on.
    pub(crate) fn schedule(&self) -> Schedule {
        if self.is_learned { self.schedule.begin_only() } else { self.schedule }
    }
}
