//! The rate loss: an estimate of the entropy-coded size of the weights.

use briquette_nn::module::Trail;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor};
use std::collections::BTreeMap;
use std::f64::consts::{E, LN_2};

/// A loss of `weight` for each bit per weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// The weight of a bit.
    pub weight: f64,
    /// The step size of each rounded parameter, by its path.
    pub steps: BTreeMap<String, f64>,
}

/// Returns the mean bits per weight over the rounded parameters that are trained. `None` if there are none.
///
/// `Σ n·log2(1 + 2e·mean|w|/Δ) / Σ n` is the entropy of a Laplace distribution with this mean magnitude,
/// rounded to step sizes `Δ`, and at least 0. `w` are the weights that the network computes with.
pub(crate) fn bits<M: Module>(student: &M, rate: &Rate) -> Option<Tensor<1>> {
    let mut visitor = Bits { rate, trail: Trail::default(), sum: None, n_weights: 0 };
    student.visit(&mut visitor);
    let n_weights = visitor.n_weights as f64;
    visitor.sum.map(|sum| sum / n_weights)
}

struct Bits<'a> {
    rate: &'a Rate,
    trail: Trail,
    sum: Option<Tensor<1>>,
    n_weights: usize,
}

impl ModuleVisitor for Bits<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(step) = self.rate.steps.get(&self.trail.path()) else { return };
        let weights = param.val();
        if !weights.is_tracked() {
            return;
        }
        let n: usize = weights.dims().iter().product();
        let magnitude = weights.cast(FloatDType::F32).abs().mean() * (2.0 * E / step);
        let bits = (magnitude + 1.0).log() * (n as f64 / LN_2);
        self.n_weights += n;
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + bits,
            None => bits,
        });
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use briquette_nn::module::read_f32;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    #[test]
    fn bits_follow_a_laplace_distribution_and_fall_with_the_weights() {
        let device = Device::flex().autodiff();
        let [linear, other]: [Linear; 2] =
            std::array::from_fn(|_| LinearConfig::new(32, 8).with_bias(false).init(&device));
        let weights = read_f32(linear.weight.val().without_autodiff(), "weights").unwrap();
        let mean = weights.iter().map(|weight| f64::from(weight.abs())).sum::<f64>() / weights.len() as f64;
        let rate = Rate { weight: 1.0, steps: BTreeMap::from([("0.weight".into(), 0.01)]) };
        let found = bits(&vec![linear.clone(), other], &rate).unwrap();
        let expected = (1.0 + 2.0 * E * mean / 0.01).log2();
        let value = read_f32(found.clone().without_autodiff(), "bits").unwrap()[0];
        assert!((f64::from(value) - expected).abs() < 1e-3, "{value} of {expected}");
        let gradient = linear.weight.val().grad(&found.backward()).unwrap();
        let gradient = read_f32(gradient, "gradients").unwrap();
        assert!(
            gradient.iter().zip(&weights).all(|(gradient, weight)| gradient * weight >= 0.0),
            "the gradient does not increase magnitudes"
        );
        assert!(bits(&linear.no_grad(), &Rate { steps: BTreeMap::from([("weight".into(), 0.01)]), ..rate }).is_none());
    }
}
