//! Activation functions: sigmoid, tanh, functions made of them, and piecewise functions such as ReLU.
#![allow(unsafe_code)]

use super::loops::{exp, on_path};
use super::threads::PAYS;
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;

/// Below this magnitude, tanh is a polynomial, because `1 - e^-2x` would cancel.
const POLYNOMIAL_EDGE: f32 = 0.625;
/// The factor of [`ActivationFunction::QuickGelu`].
const QUICK: f32 = 1.702;
/// `sqrt(2 / pi)`, of [`ActivationFunction::GeluTanh`].
const ROOT: f32 = 0.797_884_6;
/// The share of the cube in [`ActivationFunction::GeluTanh`].
const CUBE: f32 = 0.044_715;

/// An activation function of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationFunction {
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `x * sigmoid(x)`.
    Silu,
    /// `(e^x - e^-x) / (e^x + e^-x)`.
    Tanh,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))`, an approximation of GELU.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`, an approximation of GELU.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `min(max(x + 3, 0), 6) / 6`.
    HardSigmoid,
    /// `x * min(max(x + 3, 0), 6) / 6`.
    HardSwish,
}

/// Applies a function to every element in place, within 5e-7 of the exact function per unit of `max(1, |x|)`.
pub fn activate(function: ActivationFunction, x: &mut [f32]) {
    let level = active_level();
    let n = per_thread(x.len());
    x.par_chunks_mut(n).for_each(|x| activate_on(level, function, x));
}

/// Multiplies every element of `dy` by the derivative of a function at the element of `x`.
///
/// # Panics
/// If the lengths differ.
pub fn activate_grad(function: ActivationFunction, x: &[f32], dy: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "inputs and gradients");
    let level = active_level();
    let n = per_thread(x.len());
    x.par_chunks(n).zip(dy.par_chunks_mut(n)).for_each(|(x, dy)| grad_on(level, function, x, dy));
}

/// Returns the elements per task: an equal share for all threads, or all elements if the work is too small.
fn per_thread(n: usize) -> usize {
    let n_threads = if n >= PAYS { rayon::current_num_threads() } else { 1 };
    n.div_ceil(n_threads).max(1)
}

fn activate_on(level: SimdLevel, function: ActivationFunction, x: &mut [f32]) {
    on_path!(level, activate_all(function: ActivationFunction, x: &mut [f32]));
}

fn grad_on(level: SimdLevel, function: ActivationFunction, x: &[f32], dy: &mut [f32]) {
    on_path!(level, grad_all(function: ActivationFunction, x: &[f32], dy: &mut [f32]));
}

#[inline(always)]
fn activate_all(function: ActivationFunction, x: &mut [f32]) {
    match function {
        ActivationFunction::Sigmoid => change(x, sigmoid),
        ActivationFunction::Silu => change(x, |x| x * sigmoid(x)),
        ActivationFunction::Tanh => change(x, tanh),
        ActivationFunction::GeluTanh => change(x, |x| 0.5 * x * (1.0 + tanh(gelu_argument(x)))),
        ActivationFunction::QuickGelu => change(x, |x| x * sigmoid(QUICK * x)),
        ActivationFunction::Relu => change(x, |x| if x < 0.0 { 0.0 } else { x }),
        ActivationFunction::Relu6 => change(x, relu6),
        ActivationFunction::HardSigmoid => change(x, |x| relu6(x + 3.0) / 6.0),
        ActivationFunction::HardSwish => change(x, |x| x * (relu6(x + 3.0) / 6.0)),
    }
}

#[inline(always)]
fn change(x: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in x {
        *x = f(*x);
    }
}

#[inline(always)]
fn grad_all(function: ActivationFunction, x: &[f32], dy: &mut [f32]) {
    match function {
        ActivationFunction::Sigmoid => scale(x, dy, |x| sigmoid(x) * (1.0 - sigmoid(x))),
        ActivationFunction::Silu => scale(x, dy, |x| gated_slope(sigmoid(x), x)),
        ActivationFunction::Tanh => scale(x, dy, |x| 1.0 - tanh(x) * tanh(x)),
        ActivationFunction::GeluTanh => scale(x, dy, gelu_slope),
        ActivationFunction::QuickGelu => scale(x, dy, |x| gated_slope(sigmoid(QUICK * x), QUICK * x)),
        ActivationFunction::Relu => scale(x, dy, |x| if x > 0.0 { 1.0 } else { 0.0 }),
        ActivationFunction::Relu6 => scale(x, dy, |x| if x > 0.0 && x < 6.0 { 1.0 } else { 0.0 }),
        ActivationFunction::HardSigmoid => scale(x, dy, |x| if x.abs() < 3.0 { 1.0 / 6.0 } else { 0.0 }),
        ActivationFunction::HardSwish => scale(x, dy, hard_swish_slope),
    }
}

#[inline(always)]
fn scale(x: &[f32], dy: &mut [f32], slope: impl Fn(f32) -> f32) {
    for (x, dy) in x.iter().zip(dy) {
        *dy *= slope(*x);
    }
}

/// Returns `min(max(x, 0), 6)`; NaN stays NaN.
#[inline(always)]
fn relu6(x: f32) -> f32 {
    let positive = if x < 0.0 { 0.0 } else { x };
    if positive > 6.0 { 6.0 } else { positive }
}

#[inline(always)]
fn hard_swish_slope(x: f32) -> f32 {
    let inside = (2.0 * x + 3.0) / 6.0;
    let below = if x > -3.0 { inside } else { 0.0 };
    if x < 3.0 { below } else { 1.0 }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    // The exponential of a value of at most 0 never overflows.
    let small = exp(-x.abs());
    (if x < 0.0 { small } else { 1.0 }) / (1.0 + small)
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    let square = x * x;
    // Coefficients of the Cephes library's tanhf.
    let p = (-5.704_988_7e-3_f32).mul_add(square, 2.063_909e-2);
    let p = p.mul_add(square, -5.373_971_5e-2);
    let p = p.mul_add(square, 1.333_144_2e-1);
    let p = p.mul_add(square, -3.333_328e-1);
    let near = (p * square).mul_add(x, x);
    let small = exp(-2.0 * x.abs());
    let far = ((1.0 - small) / (1.0 + small)).copysign(x);
    if x.abs() < POLYNOMIAL_EDGE { near } else { far }
}

/// Returns the derivative of `x * sigmoid(a * x)`, from `share = sigmoid(a * x)`.
#[inline(always)]
fn gated_slope(share: f32, a_times_x: f32) -> f32 {
    (a_times_x * (1.0 - share)).mul_add(share, share)
}

/// Returns the argument of tanh in [`ActivationFunction::GeluTanh`].
#[inline(always)]
fn gelu_argument(x: f32) -> f32 {
    ROOT * x * (CUBE * x).mul_add(x, 1.0)
}

#[inline(always)]
fn gelu_slope(x: f32) -> f32 {
    let t = tanh(gelu_argument(x));
    let of_argument = ROOT * (3.0 * CUBE * x).mul_add(x, 1.0);
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * of_argument
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ActivationFunction; 9] = [
        ActivationFunction::Sigmoid,
        ActivationFunction::Silu,
        ActivationFunction::Tanh,
        ActivationFunction::GeluTanh,
        ActivationFunction::QuickGelu,
        ActivationFunction::Relu,
        ActivationFunction::Relu6,
        ActivationFunction::HardSigmoid,
        ActivationFunction::HardSwish,
    ];
    /// Where the piecewise functions have no derivative.
    const EDGES: [f64; 4] = [-3.0, 0.0, 3.0, 6.0];

    fn exact(function: ActivationFunction, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match function {
            ActivationFunction::Sigmoid => sigmoid(x),
            ActivationFunction::Silu => x * sigmoid(x),
            ActivationFunction::Tanh => x.tanh(),
            ActivationFunction::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
            }
            ActivationFunction::QuickGelu => x * sigmoid(1.702 * x),
            ActivationFunction::Relu => x.max(0.0),
            ActivationFunction::Relu6 => x.clamp(0.0, 6.0),
            ActivationFunction::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
            ActivationFunction::HardSwish => x * ((x + 3.0).clamp(0.0, 6.0) / 6.0),
        }
    }

    fn inputs() -> Vec<f32> {
        (-5003..5003).map(|i| i as f32 * 3e-3).chain([0.0, -0.0, 1e-30, -1e-5, 88.0, -120.0]).collect()
    }

    #[test]
    fn every_path_is_near_the_exact_function_and_gives_the_same_bits() {
        for function in ALL {
            let mut reference = inputs();
            activate_on(SimdLevel::SCALAR, function, &mut reference);
            for (x, y) in inputs().into_iter().zip(&reference) {
                let error = (f64::from(*y) - exact(function, x.into())).abs();
                assert!(error < 5e-7 * f64::from(x.abs().max(1.0)), "{function:?} {x} {y}");
            }
            for level in SimdLevel::available() {
                let mut y = inputs();
                activate_on(level, function, &mut y);
                assert_eq!(y, reference, "{function:?} {level}");
            }
        }
    }

    #[test]
    fn small_inputs_of_tanh_keep_their_relative_precision() {
        for level in SimdLevel::available() {
            let mut y = [1e-6, -3e-4, 0.01];
            activate_on(level, ActivationFunction::Tanh, &mut y);
            for (x, y) in [1e-6_f32, -3e-4, 0.01].into_iter().zip(y) {
                assert!((f64::from(y) / f64::from(x).tanh() - 1.0).abs() < 2e-7, "{x} {y}");
            }
        }
    }

    #[test]
    fn gradients_are_near_finite_differences_on_every_path() {
        const STEP: f64 = 1e-5;
        for function in ALL {
            for level in SimdLevel::available() {
                let mut dy = vec![2.0; inputs().len()];
                grad_on(level, function, &inputs(), &mut dy);
                for (x, dy) in inputs().into_iter().zip(dy) {
                    let x = f64::from(x);
                    let is_piecewise = function as usize >= ActivationFunction::Relu as usize;
                    if is_piecewise && EDGES.iter().any(|edge| (x - edge).abs() < 2.0 * STEP) {
                        continue;
                    }
                    let slope = (exact(function, x + STEP) - exact(function, x - STEP)) / (2.0 * STEP);
                    assert!((f64::from(dy) - 2.0 * slope).abs() < 1e-5, "{function:?} {level} {x}: {dy} {slope}");
                }
            }
        }
    }

    #[test]
    fn gradients_of_piecewise_functions_at_and_beyond_their_edges() {
        for (function, x, expected) in [
            (ActivationFunction::Relu, [-1.0, 0.0, 7.0], [0.0, 0.0, 2.0]),
            (ActivationFunction::Relu6, [0.0, 5.0, 6.0], [0.0, 2.0, 0.0]),
            (ActivationFunction::HardSwish, [-3.0, 3.0, 9.0], [0.0, 2.0, 2.0]),
        ] {
            let mut dy = [2.0; 3];
            activate_grad(function, &x, &mut dy);
            assert_eq!(dy, expected, "{function:?}");
        }
    }

    #[test]
    fn several_threads_give_the_same_values_and_nan_stays() {
        let x: Vec<f32> = (0..3 * PAYS).map(|i| (i % 1013) as f32 * 0.01 - 5.0).collect();
        for function in ALL {
            let (mut whole, mut by_row) = (x.clone(), x.clone());
            activate(function, &mut whole);
            by_row.chunks_mut(777).for_each(|x| activate(function, x));
            assert_eq!(whole, by_row, "{function:?}");
            let mut y = [f32::NAN, 1e30];
            activate(function, &mut y);
            assert!(y[0].is_nan() && y[1] == exact(function, 1e30) as f32, "{function:?} {y:?}");
        }
    }
}
