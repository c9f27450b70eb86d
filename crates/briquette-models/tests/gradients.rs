//! Tests that fused training on the CPU equals burn's operations. In f64 nothing is fused.

use briquette_models::{GraphNet, LoadedModel, without_dropout};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, FloatDType, Gradients, Int, Tensor, TensorData};
use std::collections::BTreeMap;
use std::path::Path;

fn model(name: &str) -> GraphNet {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name);
    without_dropout(LoadedModel::open(&path, None, &Device::flex().autodiff()).unwrap().network)
}

struct ToF64;

impl ModuleMapper for ToF64 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(FloatDType::F64).detach().require_grad())
    }
}

/// Gradients of the parameters, by path.
struct OfParameters<'a> {
    grads: &'a Gradients,
    path: Vec<String>,
    found: BTreeMap<String, Vec<f64>>,
}

impl ModuleVisitor for OfParameters<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let grad = param.val().grad(self.grads).map(|grad| grad.into_data().try_into_vec_as::<f64>().unwrap());
        self.found.extend(grad.map(|grad| (self.path.join("."), grad)));
    }
}

/// Returns loss and gradients of a network.
fn trained(network: &GraphNet, loss: impl Fn(&GraphNet) -> Tensor<1>) -> (f64, BTreeMap<String, Vec<f64>>) {
    let loss = loss(network);
    let grads = loss.backward();
    let mut found = OfParameters { grads: &grads, path: Vec::new(), found: BTreeMap::new() };
    network.visit(&mut found);
    (loss.into_scalar::<f64>(), found.found)
}

fn assert_same(network: GraphNet, loss: impl Fn(&GraphNet) -> Tensor<1>) {
    let (found, found_grads) = trained(&network, &loss);
    let (expected, grads) = trained(&network.map(&mut ToF64), &loss);
    assert!((found - expected).abs() < 1e-5 * expected.abs(), "{found} {expected}");
    assert!(grads.keys().eq(found_grads.keys()) && grads.len() > 10, "{:?}", found_grads.keys());
    let mut largest = 0.0;
    for (name, grad) in &grads {
        let most = grad.iter().fold(0.0, |most, value| value.abs().max(most));
        let apart = grad.iter().zip(&found_grads[name]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        // Softmax cancels the bias of keys, so its gradient is only rounding noise.
        assert!(apart < 1e-4 * most + 1e-7, "{name}: {apart} of {most}");
        largest = most.max(largest);
    }
    assert!(largest > 1e-2, "{largest}");
}

fn tokens(shape: [usize; 2]) -> Tensor<2, Int> {
    let ids: Vec<i32> = (0..shape[0] * shape[1]).map(|i| (i * 7 % 19) as i32).collect();
    Tensor::from_data(TensorData::new(ids, shape), &Device::flex().autodiff())
}

#[test]
fn decoder_gradients_equal_those_of_burn_operations() {
    for name in ["llama-tied", "llama-untied", "llama-qwen"] {
        assert_same(model(name), |network| {
            let decoder = network.as_decoder();
            let scores = decoder.scores(decoder.last_state(tokens([3, 11])));
            scores.slice([0..3, 0..11, 0..5]).square().mean()
        });
    }
}

#[test]
fn encoder_gradients_equal_those_of_burn_operations() {
    let padding = (0..2 * 13).map(|i| i > 20).collect::<Vec<_>>();
    assert_same(model("bert-tiny"), |network| {
        let padding = TensorData::new(padding.clone(), [2, 13]);
        let padding = Tensor::<2, Bool>::from_data(padding, &Device::flex().autodiff());
        network.encode(tokens([2, 13]), padding).slice([0..2, 0..6, 0..9]).square().mean()
    });
}
