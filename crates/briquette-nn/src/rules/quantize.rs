//! Quantization rules.

use crate::rules::chosen_paths::ChosenPaths;
use crate::{Patterns, Schedule};
use briquette_core::encoded::ScaleType;
use briquette_core::entropy::trellis::can_have_trellis;
use briquette_core::{Error, Grouping, QuantParams, Result};
use briquette_methods::quant::{Activations, QuantSpec, ScaleSearch, Scheme};

/// A rule that fake-quantizes parameters during training.
#[derive(Debug, Clone)]
pub struct Quantize {
    pub(crate) chosen: ChosenPaths,
    pub(crate) scheme: Scheme,
    pub(crate) schedule: Schedule,
    /// Given scales, which are never fitted.
    pub(crate) given: Option<QuantParams>,
    /// Whether scales are trained.
    pub(crate) is_learned: bool,
}

/// Default number of steps between fits of the scales: weights change little in ten steps.
const FITTED_EVERY: usize = 10;

impl Quantize {
    /// Fake-quantizes the parameters that `glob` matches with a named scheme, such as `int8` or
    /// `int4-g128-asym`.
    ///
    /// Scales are fitted on attachment, on every tenth step of [`refresh`](crate::Compression::refresh), and
    /// whenever the parameter is pruned further. Set other steps by [`on`](Self::on); `on(Schedule::once())`
    /// keeps the first scales.
    ///
    /// If the groups of a scheme do not divide the columns of a parameter, as in depthwise convolutions, it
    /// gets one scale per row.
    ///
    /// With `step0.01-trellis` and other sizes, weights are rounded to the nearest codes on a
    /// [trellis](briquette_core::entropy::trellis) whenever scales are fitted, and keep these values in between. Rows whose length is no
    /// multiple of 32 get plain codes with a step of twice the size. No pruning rule can apply to the parameter.
    ///
    /// With `int8-dynamic` and `int8-dynamic-sym`, the layers of [`crate::layers`] also fake-quantize their
    /// inputs: each row for a `Linear`, each image for a `Conv2d`. With burn's own layers, activations stay
    /// floats.
    ///
    /// # Errors
    /// Config: the scheme is unknown, or `glob` is not valid.
    pub fn new(glob: &str, scheme: &str) -> Result<Self> {
        let scheme = scheme.parse::<Scheme>().map_err(|error| Error::config(error.to_string()))?;
        Self::with_scheme(glob, scheme)
    }

    /// Like [`new`](Self::new), with a [`Scheme`].
    ///
    /// # Errors
    /// Config: `glob` is not valid, the scheme `step` lacks a step size, or activations are static.
    pub fn with_scheme(glob: &str, scheme: Scheme) -> Result<Self> {
        if scheme.activations == Activations::Static {
            let message = "scheme: int8-static needs the ranges of activations, which `briquette compress` finds on calibration data; \
                           use int8-dynamic here";
            return Err(Error::config(message));
        }
        if scheme.is_open() {
            return Err(Error::config("scheme: step has no size; give one, as in \"step0.01\""));
        }
        if matches!(scheme.weights.range, ScaleSearch::StepByFrequency(_)) {
            let message =
                "scheme: steps by frequency need the tokenizer of a file; use a plain step, as in \"step0.01\"";
            return Err(Error::config(message));
        }
        let (chosen, schedule) =
            (ChosenPaths::of(Patterns::new([glob])?), Schedule::constant(0..usize::MAX).every(FITTED_EVERY));
        Ok(Self { chosen, scheme, schedule, given: None, is_learned: false })
    }

    /// Fake-quantizes a parameter with given scales, which are never refitted.
    ///
    /// Rows are outputs, as in [`Prune::outside`](crate::Prune::outside).
    ///
    /// # Errors
    /// Config: `path` is not a valid glob.
    pub fn on_grid(path: &str, params: QuantParams) -> Result<Self> {
        let (grid, grouping) = (params.grid, params.grouping);
        let weights = QuantSpec { grid, grouping, range: ScaleSearch::AbsMax, ..Scheme::INT8.weights };
        let rule = Self::with_scheme(path, Scheme { weights, activations: Activations::Float })?;
        Ok(Self { given: Some(params), schedule: Schedule::once(), ..rule })
    }

    /// Returns the scheme for rows of `n_cols` weights: one scale per row if the groups do not divide them.
    pub(crate) fn scheme_for(&self, n_cols: usize) -> Scheme {
        match self.given {
            Some(_) => self.scheme,
            None => {
                let weights = self.scheme.weights.for_columns(n_cols);
                let weights = if can_have_trellis(n_cols) { weights } else { weights.without_trellis() };
                Scheme { weights, ..self.scheme }
            }
        }
    }

    /// Returns whether rows of `n_cols` weights are rounded to codes on a [trellis](briquette_core::entropy::trellis).
    pub(crate) fn has_trellis(&self, n_cols: usize) -> bool {
        self.scheme_for(n_cols).weights.has_trellis
    }

    /// Refuses scales that do not fit the rows of a parameter.
    pub(crate) fn check(&self, n_rows: usize, n_cols: usize) -> Result<()> {
        let grouping = self.scheme_for(n_cols).weights.grouping;
        let Some(per_row) = grouping.per_row(n_cols) else {
            return Err(Error::config(format!(
                "found scales for {grouping}, which do not divide {n_cols} columns; choose another grouping"
            )));
        };
        self.check_learned()?;
        let n_scales = if grouping == Grouping::Tensor { 1 } else { n_rows * per_row };
        match &self.given {
            Some(params) if params.affines.iter().any(|affine| !(affine.scale.is_finite() && affine.scale > 0.0)) => {
                Err(Error::config(
                    "found a scale that is not a finite number above 0; correct the scales of Quantize::on_grid",
                ))
            }
            Some(params) if params.affines.len() != n_scales => {
                let found = params.affines.len();
                Err(Error::config(format!("found {found} scales, expected {n_scales} for {n_rows} x {n_cols} weights")))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the rule could have produced these scales.
    pub(crate) fn makes(&self, params: &QuantParams) -> bool {
        self.given.as_ref().is_none_or(|given| given == params)
    }

    /// Refuses learned scales on grids and types that cannot store them exactly.
    fn check_learned(&self) -> Result<()> {
        let QuantSpec { grid, scale, has_trellis, .. } = self.scheme.weights;
        match self.is_learned {
            true if grid.is_asymmetric() => Err(Error::config("learned scales need a symmetric grid")),
            true if has_trellis => {
                Err(Error::config("learned scales have no trellis; remove -trellis from the scheme"))
            }
            true if scale != ScaleType::F32 => Err(Error::config("learned scales need scales of type f32")),
            true if self.given.is_some() => {
                Err(Error::config("given scales cannot be learned; use Quantize::new or with_scheme"))
            }
            _ => Ok(()),
        }
    }

    /// Sets the steps at which scales are fitted again. Before the schedule begins, nothing is quantized.
    #[must_use]
    pub fn on(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Trains the scales with the weights, by any optimizer. They start at the fitted values and are not fitted
    /// again.
    ///
    /// With `t = w / s` and codes from `Qn` to `Qp`, the gradient `∂v/∂s` is `round(t) - t` for `Qn < t < Qp`,
    /// and `Qn` or `Qp` outside, times `1 / sqrt(n · Qp)` for the `n` weights that share the scale. Weights
    /// outside get no gradient. The magnitude of a negative scale counts.
    ///
    /// The optimizer's weight decay applies to scales too; exclude paths ending in `.briquette.scale` by a
    /// `ParamGroup`. [`Compression::attach`](crate::Compression::attach) refuses asymmetric grids and scales
    /// other than f32. Source: Esser et al., "Learned Step Size Quantization", 2020.
    #[must_use]
    pub fn learned(mut self) -> Self {
        self.is_learned = true;
        self
    }

    /// Excludes parameters whose path matches this glob; an earlier rule may apply to them.
    ///
    /// # Errors
    /// See [`Prune::exclude`](crate::Prune::exclude).
    pub fn exclude(mut self, glob: &str) -> Result<Self> {
        self.chosen.excluded.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Returns the schedule of fits; learned scales are fitted once.
    pub(crate) fn schedule(&self) -> Schedule {
        if self.is_learned { self.schedule.begin_only() } else { self.schedule }
    }
}
