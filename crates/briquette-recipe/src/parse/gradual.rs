//! Gradual pruning: pruning during training.

use crate::parse::raw::RawGradual;
use crate::parse::selection::Selection;
use crate::parse::words::{one_of, ratio_of};
use briquette_core::{Error, Result, Role};
use briquette_methods::prune::Ratio;
use std::ops::Range;

/// Gradual pruning of a student.
#[derive(Debug, Clone)]
pub struct Gradual {
    /// The tensors to prune.
    pub selection: Selection,
    /// The final sparsity.
    pub sparsity: Ratio,
    /// Whether one threshold applies to all tensors.
    pub is_global: bool,
    /// How the sparsity grows.
    pub course: SparsityCourse,
    /// The first and the last step of pruning, as shares of the steps.
    pub span: [f64; 2],
    /// Number of steps between two updates of the masks.
    pub every: usize,
}

/// How sparsity grows from zero to its final value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SparsityCourse {
    /// The final sparsity from the first step.
    Constant,
    /// Linear growth.
    Linear,
    /// Fast growth that slows down.
    Cubic,
}

impl Gradual {
    pub(crate) fn from_raw(raw: &RawGradual) -> Result<Self> {
        let found = Self::parsed(raw);
        found.map_err(|error| Error { message: format!("prune.{}", error.message), ..error })
    }

    fn parsed(raw: &RawGradual) -> Result<Self> {
        let missing = || Error::config("sparsity: missing; set the share of weights to prune, from 0 to below 1");
        let sparsity = ratio_of("sparsity", raw.sparsity.ok_or_else(missing)?)?;
        let span = [raw.begin.unwrap_or(0.0), raw.end.unwrap_or(0.5)];
        if span[0] > span[1] {
            let [begin, end] = span;
            return Err(Error::config(format!("end: found {end}, expected at least begin = {begin}")));
        }
        let courses = [
            ("cubic", SparsityCourse::Cubic),
            ("linear", SparsityCourse::Linear),
            ("constant", SparsityCourse::Constant),
        ];
        Ok(Self {
            selection: Selection::new(raw.include.as_ref(), &raw.exclude, None, &[Role::Linear, Role::Conv])?,
            sparsity,
            is_global: one_of("scope", raw.scope.as_deref().unwrap_or("layer"), &[("layer", false), ("global", true)])?,
            course: one_of("schedule", raw.schedule.as_deref().unwrap_or("cubic"), &courses)?,
            span,
            every: raw.every.unwrap_or(10),
        })
    }

    /// Returns the steps in which the sparsity grows, of `n_steps`.
    pub fn steps(&self, n_steps: usize) -> Range<usize> {
        let [begin, end] = self.span.map(|share| (share * n_steps as f64).round() as usize);
        begin..end
    }
}
