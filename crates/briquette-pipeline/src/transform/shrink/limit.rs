//! Limits of a smaller network: multiply-adds, bytes or time.

use crate::transform::headed::{HeadedModel, n_multiply_adds};
use briquette_core::Result;
use briquette_graph::Graph;
use briquette_recipe::ShrinkLimit;

/// Measures a smaller graph.
pub(super) type Measure<'a> = &'a dyn Fn(&Graph) -> Result<f64>;

/// A measure of its own.
type OwnMeasure<'a> = Box<dyn Fn(&Graph) -> Result<f64> + 'a>;

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
            ShrinkLimit::MultiplyAdds(most) => Self {
                key: "multiply_adds",
                most,
                measure: Box::new(share_of_multiply_adds(model)),
                shown,
                n_steps: 16,
            },
            ShrinkLimit::Bytes(most) => {
                let measure = Box::new(|graph: &Graph| Ok(model.n_bytes_as(graph) as f64));
                Self {
                    key: "max_bytes",
                    most: most as f64,
                    measure,
                    shown: |bytes| format!("{bytes} bytes"),
                    n_steps: 16,
                }
            }
            // A measurement takes seconds, and its noise hides smaller steps.
            ShrinkLimit::Latency(most) => Self { key: "latency", most, measure: Box::new(latency), shown, n_steps: 6 },
        }
    }
}

/// Returns a measure of the share of a model's multiply-adds, which also estimates its latency.
pub(super) fn share_of_multiply_adds(model: &HeadedModel) -> impl Fn(&Graph) -> Result<f64> + use<> {
    let before = n_multiply_adds(&model.graph).max(1) as f64;
    move |graph| Ok(n_multiply_adds(graph) as f64 / before)
}
