//! Limits of a smaller network: multiply-adds, bytes or time.

use crate::transform::headed::{HeadedModel, n_multiply_adds};
use briquette_core::{Error, Result};
use briquette_graph::Graph;
use briquette_recipe::ShrinkLimit;

/// Measures a smaller graph.
pub(super) type Measure<'a> = &'a dyn Fn(&Graph) -> Result<f64>;

/// Measures the smaller graph of a model, which may have lost experts.
type OwnMeasure<'a> = Box<dyn Fn(&HeadedModel, &Graph) -> Result<f64> + 'a>;

/// The most that a smaller network may take of what a measure counts.
pub(super) struct Limit<'a> {
    /// The key of the recipe.
    pub(super) key: &'static str,
    pub(super) most: f64,
    pub(super) measure: OwnMeasure<'a>,
    /// Formats an amount.
    pub(super) shown: fn(f64) -> String,
    /// Halvings of the range of ratios.
    pub(super) n_steps: usize,
}

impl<'a> Limit<'a> {
    /// Returns the limit that a stage asks for. `latency` measures the share of the latency.
    pub(super) fn of(asked: ShrinkLimit, model: &'a HeadedModel, latency: Measure<'a>) -> Self {
        // Rounded up, so that the amount can be reached.
        let shown: fn(f64) -> String = |share| ((share * 1e3).ceil() / 1e3).to_string();
        match asked {
            ShrinkLimit::MultiplyAdds(most) => {
                let share = share_of_multiply_adds(model);
                let measure = Box::new(move |_: &HeadedModel, graph: &Graph| share(graph));
                Self { key: "multiply_adds", most, measure, shown, n_steps: 16 }
            }
            ShrinkLimit::Bytes(most) => {
                let measure = Box::new(|model: &HeadedModel, graph: &Graph| Ok(model.n_bytes_as(graph) as f64));
                Self {
                    key: "max_bytes",
                    most: most as f64,
                    measure,
                    shown: |bytes| format!("{bytes} bytes"),
                    n_steps: 16,
                }
            }
            // A measurement takes seconds, and its noise hides smaller steps.
            ShrinkLimit::Latency(most) => {
                let measure = Box::new(move |_: &HeadedModel, graph: &Graph| latency(graph));
                Self { key: "latency", most, measure, shown, n_steps: 6 }
            }
        }
    }

    /// Finds the smallest ratio within the limit. `at` returns what is left at a ratio, and its measure.
    ///
    /// # Errors
    /// - Config: the limit is out of reach.
    /// - The first error of `at`.
    pub(super) fn smallest_ratio<T>(&self, at: &dyn Fn(f64) -> Result<(T, f64)>) -> Result<(f64, T)> {
        let (mut best, left) = at(1.0)?;
        if left > self.most {
            let (found, least) = ((self.shown)(self.most), (self.shown)(left));
            let message = format!("found {found}, expected {least} or more with these parts, floor and multiple");
            return Err(Error::config(message).at(self.key));
        }
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..self.n_steps {
            let ratio = (low + high) / 2.0;
            match at(ratio)? {
                (found, left) if left <= self.most => (best, high) = (found, ratio),
                _ => low = ratio,
            }
        }
        Ok((high, best))
    }
}

/// Returns a measure of the share of a model's multiply-adds, which also estimates its latency.
pub(super) fn share_of_multiply_adds(model: &HeadedModel) -> impl Fn(&Graph) -> Result<f64> + use<> {
    let before = n_multiply_adds(&model.graph).max(1) as f64;
    move |graph| Ok(n_multiply_adds(graph) as f64 / before)
}
