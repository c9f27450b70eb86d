//! The result of a fold stage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a fold stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FoldReport {
    /// The method, such as `batch-norm`.
    pub method: String,
    /// The number of places that were folded: batch norms, or inputs of layers.
    pub n_places: usize,
    /// The kind of the places, in the plural.
    pub places: String,
    /// Layers that stay unchanged, with the reasons.
    pub skipped: Vec<String>,
    /// The exponents of methods with statistics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exponents: Vec<FoldExponent>,
    /// The largest difference of outputs on random inputs, as a share of the largest output; none if not compared.
    pub difference: Option<f64>,
}

/// The exponent of the input sizes of a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FoldExponent {
    /// The name of the layer; other layers with the same input share its scales.
    pub name: String,
    /// The exponent; none if no scale lowers the error, so that the layer stays unchanged.
    pub exponent: Option<f64>,
    /// The method that `auto` chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

impl FoldReport {
    /// The name of its file in the directory of a folded model.
    pub const FILE: &str = "fold.json";

    /// Returns how many inputs got the scales of each method, if they have different ones.
    fn chosen(&self) -> String {
        let count = |name: &str| self.exponents.iter().filter(|own| own.method.as_deref() == Some(name)).count();
        match ["smooth", "awq"].map(|name| (name, count(name))) {
            [(_, 0), (_, 0)] => String::new(),
            counts => format!(" ({})", counts.map(|(name, n)| format!("{n} by {name}")).join(", ")),
        }
    }

    /// Describes the fold in a few lines.
    pub fn in_words(&self) -> Vec<String> {
        let mut lines = vec![format!("fold {}: {} {} are folded.", self.method, self.n_places, self.places)];
        lines.extend(self.skipped.iter().map(|reason| format!("fold {}: {reason}.", self.method)));
        let found: Vec<f64> = self.exponents.iter().filter_map(|own| own.exponent).collect();
        if !found.is_empty() {
            let least = found.iter().copied().fold(f64::INFINITY, f64::min);
            let (most, mean) =
                (found.iter().copied().fold(0.0, f64::max), found.iter().sum::<f64>() / found.len() as f64);
            let n = self.exponents.len();
            lines.push(format!(
                "fold {}: {} of {n} inputs are scaled{}, with exponents from {least:.2} to {most:.2} (mean {mean:.2}).",
                self.method,
                found.len(),
                self.chosen()
            ));
        }
        if let Some(difference) = self.difference {
            lines.push(format!(
                "fold {}: outputs on random inputs differ by {difference:.1e} of the largest output.",
                self.method
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_have_places_reasons_and_the_difference() {
        let report = FoldReport {
            method: "batch-norm".into(),
            n_places: 3,
            places: "batch norms".into(),
            skipped: vec!["bn1 is unchanged: a sum is before it".into()],
            exponents: [Some(0.25), None, Some(0.75)]
                .map(|exponent| FoldExponent { name: "q".into(), exponent, method: None })
                .to_vec(),
            difference: Some(2e-7),
        };
        let mut auto = FoldReport { method: "auto".into(), ..report.clone() };
        auto.exponents[0].method = Some("awq".into());
        assert!(auto.in_words()[2].starts_with("fold auto: 2 of 3 inputs are scaled (0 by smooth, 1 by awq), with"));
        assert_eq!(
            report.in_words(),
            [
                "fold batch-norm: 3 batch norms are folded.",
                "fold batch-norm: bn1 is unchanged: a sum is before it.",
                "fold batch-norm: 2 of 3 inputs are scaled, with exponents from 0.25 to 0.75 (mean 0.50).",
                "fold batch-norm: outputs on random inputs differ by 2.0e-7 of the largest output."
            ]
        );
    }
}
