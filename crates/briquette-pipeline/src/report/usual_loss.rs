//! Typical quality losses of methods, for reports without an evaluation.

use super::evidence::Evidence;
use super::figures::Report;
use briquette_core::Role;
use briquette_methods::prune::Score;
use briquette_methods::quant::{QuantSpec, ScaleSearch};
use briquette_writer::TensorPlan;
use std::collections::BTreeSet;

/// The number of bits up to which rounding to nearest usually fails.
const FEW_BITS: f64 = 3.5;

/// The method of an output, as far as its quality depends on it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Method {
    /// The score of pruning, if weights were pruned and the kept ones not updated.
    pruned_by: Option<Score>,
    /// Bits of weights that were rounded to nearest without data, if fewer than 8.
    bits: Option<f64>,
}

/// Describes the typical results of the run's methods, and commands that do better.
///
/// It is empty for an output that was evaluated or trained, and for a conversion.
pub(super) fn of(report: &Report, evidence: &Evidence) -> Vec<String> {
    let is_conversion = evidence.recipe.stages.is_empty();
    if is_conversion || report.evaluation.is_some() || !report.trained.is_empty() {
        return Vec::new();
    }
    texts(method_of(report, evidence))
}

fn method_of(report: &Report, evidence: &Evidence) -> Method {
    let tensors = &evidence.plan.tensors;
    if tensors.iter().any(|tensor| tensor.is_moved) {
        return Method { pruned_by: None, bits: None };
    }
    let pruned_by = tensors.iter().find_map(|tensor| Some(tensor.prune?.score));
    let of_budget = report.allocation.as_ref().map(|allocation| {
        let n_weights: usize = allocation.tensors.iter().map(|tensor| tensor.n_weights).sum();
        let names: BTreeSet<&str> = allocation.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let written = report.tensors.iter().filter(|tensor| names.contains(tensor.name.as_str()));
        8.0 * written.map(|tensor| tensor.after_bytes).sum::<u64>() as f64 / n_weights.max(1) as f64
    });
    let fewest = || tensors.iter().filter_map(bits_without_data).map(f64::from).reduce(f64::min);
    Method { pruned_by, bits: of_budget.or_else(fewest).filter(|bits| *bits < 8.0) }
}

/// Returns the bits of a layer's weights that were rounded without data.
fn bits_without_data(tensor: &TensorPlan) -> Option<u8> {
    let looks = |spec: &QuantSpec| spec.range == ScaleSearch::Weighted || spec.has_columns;
    let quant = tensor.quant.filter(|quant| !looks(&quant.spec))?;
    let is_layer = matches!(tensor.role, Role::Linear | Role::Conv);
    is_layer.then(|| quant.spec.grid.n_bits())
}

// The figures are from docs/guide/src/choose.md.
fn texts(method: Method) -> Vec<String> {
    let mut texts = Vec::new();
    if let Some(score) = method.pruned_by {
        let (how, figure) = match score {
            Score::Wanda => ("by Wanda", "has a cosine similarity of .939"),
            Score::Random(_) => ("at random", "by magnitude, which is better, has a cosine similarity of .846"),
            Score::Magnitude => ("by magnitude", "has a cosine similarity of .846"),
        };
        texts.push(format!(
            "Pruned {how} without recovery or evaluation. MiniLM with 40 % pruned {figure} to the original. \
             With `--prune-method sparsegpt --data TEXT`, it has .983; a distill stage recovers more. `--eval TEXT` evaluates the output."
        ));
    }
    if let Some(bits) = method.bits {
        let usual = match bits < FEW_BITS {
            true => {
                "SmolLM2 in int3-g64 has a perplexity of 1871 (the original 28). With `--round gptq --range weighted --data TEXT`, it has 55"
            }
            false => {
                "MiniLM has a cosine similarity of .930 to the original in int4-g128, and .960 in int4-g32. \
                      With `--round gptq --data TEXT`, int4-g32 has .991. With `--bytes 12.4MB --data TEXT`, it has .999 with the size of int4-g128"
            }
        };
        let bits = (10.0 * bits).round() / 10.0;
        texts.push(format!(
            "Rounded to {bits} bits without data or evaluation. {usual}. `--eval TEXT` evaluates the output."
        ));
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_without_evaluation_have_a_figure_and_a_better_command() {
        let of = |pruned_by, bits| texts(Method { pruned_by, bits });
        assert_eq!(of(None, None), [""; 0]);
        let both = of(Some(Score::Magnitude), Some(4.0));
        assert_eq!(both.len(), 2);
        assert!(both[0].contains(".846") && both[0].contains("--prune-method sparsegpt --data TEXT"), "{}", both[0]);
        assert!(
            both[1].starts_with("Rounded to 4 bits") && both[1].contains("--round gptq --data TEXT"),
            "{}",
            both[1]
        );
        let few = of(None, Some(3.2));
        assert!(few[0].starts_with("Rounded to 3.2 bits") && few[0].contains("1871"), "{}", few[0]);
    }
}
