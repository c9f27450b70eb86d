use super::*;
use briquette_cpu::float::RotaryTable;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Device, Distribution, FloatDType, Tensor, TensorData, activation, module};
use std::sync::Arc;

fn cpu() -> Device {
    Device::flex().autodiff()
}

fn random<const D: usize>(dims: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(dims, Distribution::Normal(0.0, 1.0), device).require_grad()
}

fn far<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> f32 {
    (a.inner() - b.inner()).abs().max().into_scalar()
}

/// Returns the largest difference between the outputs of two operations and between their gradients.
///
/// The gradients are those of a weighted sum of the outputs, by each of `inputs`.
fn far_by<const D: usize, const N: usize>(outputs: [Tensor<3>; 2], inputs: [&Tensor<D>; N]) -> f32 {
    let weights = Tensor::<3>::random(outputs[0].dims(), Distribution::Normal(0.0, 1.0), &outputs[0].device());
    let [a, b] = outputs.clone().map(|y| (y * weights.clone()).sum().backward());
    let of = |input: &Tensor<D>, grads| input.grad(grads).expect("a gradient");
    let of_inputs = inputs.map(|input| (of(input, &a) - of(input, &b)).abs().max().into_scalar());
    let [a, b] = outputs;
    of_inputs.into_iter().fold(far(a, b), f32::max)
}

#[test]
fn activations_and_gradients_agree_with_burn() {
    // Views, which inputs may be.
    let (gate, up) = (random([5, 7, 3], &cpu()), random([3, 7, 5], &cpu()));
    let view = || gate.clone().swap_dims(0, 2);
    assert!(fuses(&gate) && fuses(&gate.clone().inner()));
    assert!(far_by([gelu(view()), activation::gelu(view())], [&gate]) < 1e-5);
    for (function, of_burn) in [
        (ActivationFunction::Sigmoid, activation::sigmoid as fn(Tensor<3>) -> Tensor<3>),
        (ActivationFunction::Silu, activation::silu),
        (ActivationFunction::Tanh, activation::tanh),
        (ActivationFunction::GeluTanh, activation::gelu_approximate),
        (ActivationFunction::QuickGelu, |x| x.clone() * activation::sigmoid(x * 1.702)),
        (ActivationFunction::Relu, activation::relu),
        (ActivationFunction::Relu6, |x| x.clamp(0.0, 6.0)),
        (ActivationFunction::HardSigmoid, |x| (x + 3.0).clamp(0.0, 6.0) / 6.0),
        (ActivationFunction::HardSwish, activation::hard_swish),
    ] {
        assert!(far_by([activate(view(), function), of_burn(view())], [&gate]) < 1e-5, "{function:?}");
    }
    let expected = activation::silu(view()) * up.clone();
    assert!(far_by([swiglu(view(), up.clone()), expected], [&gate, &up]) < 1e-5);
}

#[test]
fn norms_and_gradients_agree_with_burn() {
    let (x, shortcut) = (random([2, 70, 33], &cpu()), random([2, 70, 33], &cpu()));
    let [gamma, beta] = [0; 2].map(|_| random([33], &cpu()));
    let of_rms = |x: Tensor<3>| {
        let scale = (x.clone().square().mean_dim(2) + 1e-5).sqrt();
        x / scale * gamma.clone().unsqueeze::<3>()
    };
    let of_rms = || [rms_norm(x.clone(), gamma.clone(), 1e-5), of_rms(x.clone())];
    assert!(far_by(of_rms(), [&x]) < 1e-5 && far_by(of_rms(), [&gamma]) < 1e-4);
    for beta in [Some(beta.clone()), None] {
        let of_sum = || {
            let found = add_norm(x.clone(), shortcut.clone(), gamma.clone(), beta.clone(), 1e-5);
            [found, module::layer_norm(x.clone() + shortcut.clone(), gamma.clone(), beta.clone(), 1e-5)]
        };
        assert!(far_by(of_sum(), [&x, &shortcut]) < 1e-5 && far_by(of_sum(), [&gamma]) < 1e-4);
        assert!(beta.as_ref().is_none_or(|beta| far_by(of_sum(), [beta]) < 1e-4));
    }
}

#[test]
fn rotation_gradients_are_rotated_back() {
    let x = random([2, 3, 8], &cpu());
    let turned = rotate(x.clone(), 2, Arc::new(RotaryTable::new(&[1.0, 0.3], 0..3)));
    assert!(far(turned.clone(), x.clone()) > 0.1);
    let grads = (turned.clone() * turned.detach()).sum().backward();
    assert!(far(x.grad(&grads).unwrap(), x.clone().inner()) < 1e-5);
}

/// Computes attention with burn's operations.
fn attention_of_burn([q, k, v]: [Tensor<3>; 3], heads: [usize; 2], padding: Option<Tensor<2, Bool>>) -> Tensor<3> {
    let ([batch, length, width], times) = (q.dims(), heads[0] / heads[1]);
    let split = |x: Tensor<3>, n: usize| x.reshape([batch, length, n, width / heads[0]]).swap_dims(1, 2);
    let repeated = |x: Tensor<3>| {
        let x = split(x, heads[1]).unsqueeze_dim::<5>(2).repeat_dim(2, times);
        x.reshape([batch, heads[0], length, width / heads[0]])
    };
    let options = AttentionModuleOptions { is_causal: padding.is_none(), ..AttentionModuleOptions::default() };
    let mask = padding.map(|padding| padding.reshape([batch, 1, 1, length]).expand([batch, heads[0], length, length]));
    let y = module::attention(split(q, heads[0]), repeated(k), repeated(v), mask, None, options);
    y.swap_dims(1, 2).reshape([batch, length, width])
}

#[test]
fn attention_and_gradients_agree_with_burn() {
    let padding: Vec<bool> = (0..2 * 40).map(|i| i % 40 > 30 && i > 40).collect();
    let padding = Tensor::<2, Bool>::from_data(TensorData::new(padding, [2, 40]), &cpu());
    for (n_kv_heads, padding) in [(2, None), (6, None), (6, Some(padding.clone())), (3, Some(padding))] {
        let [q, k, v] = [6, n_kv_heads, n_kv_heads].map(|n| random([2, 40, n * 9], &cpu()));
        let all = || [q.clone(), k.clone(), v.clone()];
        let found = attention(all(), 6, padding.clone());
        let expected = attention_of_burn(all(), [6, n_kv_heads], padding);
        assert!(far_by([found, expected], [&q, &k, &v]) < 1e-5, "{n_kv_heads}");
    }
}

/// Runs a network with every operation.
fn all_of_them(x: Tensor<3>, gamma: Tensor<1>) -> Tensor<3> {
    let turns = Arc::new(RotaryTable::new(&[1.0, 0.1], 0..5));
    let normed = rms_norm(x.clone(), gamma.clone(), 1e-5);
    let turned = rotate(normed.clone(), 2, turns);
    let attended = attention([turned.clone(), turned, normed], 2, None);
    let normed = add_norm(attended.clone(), x, gamma, None, 1e-5);
    swiglu(gelu(normed), attended)
}

#[test]
fn checkpointed_gradients_are_equal_and_frozen_inputs_have_none() {
    let values = Tensor::<3>::random([2, 5, 8], Distribution::Normal(0.0, 1.0), &Device::flex());
    let gamma = Tensor::<1>::from_floats([1.0, 0.5, 1.5, -1.0, 2.0, 1.0, 0.3, 0.7], &Device::flex());
    let grads = |device: Device, trains: bool| {
        let [x, gamma] = [values.clone().into_data(), gamma.clone().into_data()];
        let x = Tensor::<3>::from_data(x, &device).require_grad();
        let gamma = Tensor::<1>::from_data(gamma, &device).set_require_grad(trains);
        let grads = all_of_them(x.clone(), gamma.clone()).square().sum().backward();
        (x.grad(&grads).unwrap().into_data(), gamma.grad(&grads).map(Tensor::into_data))
    };
    let kept = grads(cpu(), true);
    assert!(kept.1.is_some());
    assert_eq!(grads(cpu().gradient_checkpointing(), true), kept);
    assert_eq!(grads(cpu(), false), (kept.0.clone(), None));
    assert_eq!(grads(cpu().gradient_checkpointing(), false), (kept.0, None));
    // A parameter that is not part of the autodiff graph.
    let x = Tensor::<3>::from_data(values.clone().into_data(), &cpu()).require_grad();
    let y = all_of_them(x, gamma.clone());
    assert_eq!(y.inner().into_data(), all_of_them(values, gamma).into_data());
}

#[test]
fn half_floats_use_burns_operations() {
    let x = random([1, 2, 4], &cpu()).cast(FloatDType::BF16);
    assert!(!fuses(&x));
    assert_eq!(far(gelu(x.clone()), activation::gelu(x.clone())), 0.0);
    assert_eq!(swiglu(x.clone(), x.clone()).into_data(), (activation::silu(x.clone()) * x).into_data());
}
