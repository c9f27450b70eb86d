//! Functions of elements by their names in ONNX.

use super::value::AnyTensor;
use burn::tensor::Tensor;
use burn::tensor::activation::softplus;

/// Functions of one input.
const OF_ONE: [&str; 33] = [
    "Cast",
    "Truncate",
    "IsNonzero",
    "Erf",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Abs",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Softplus",
    "Softsign",
    "Mish",
    "Not",
    "IsNaN",
    "Sum",
    "Mean",
    "Min",
    "Max",
];

/// Functions of several inputs, which broadcast.
const OF_SEVERAL: [&str; 18] = [
    "Div",
    "Pow",
    "Mod",
    "Min",
    "Max",
    "Sum",
    "Mean",
    "Where",
    "PRelu",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "And",
    "Or",
    "Xor",
    "Mul",
];

/// Returns whether a function is known.
pub(super) fn runs(name: &str) -> bool {
    OF_ONE.contains(&name) || OF_SEVERAL.contains(&name)
}

/// Returns whether a function takes several inputs.
pub(super) fn takes_several(name: &str) -> bool {
    OF_SEVERAL.contains(&name)
}

/// Applies a function of one input. Truth values are 0 and 1.
///
/// # Panics
/// If the function is not known.
pub(super) fn of_one<const D: usize>(name: &str, x: Tensor<D>) -> Tensor<D> {
    match name {
        "Cast" => x,
        "Truncate" => x.clone().sign() * x.abs().floor(),
        "IsNonzero" => x.not_equal_elem(0.0).float(),
        "Not" => x.equal_elem(0.0).float(),
        "IsNaN" => x.is_nan().float(),
        "Erf" => x.erf(),
        "Exp" => x.exp(),
        "Log" => x.log(),
        "Sqrt" => x.sqrt(),
        "Reciprocal" => x.recip(),
        "Abs" => x.abs(),
        "Floor" => x.floor(),
        "Ceil" => x.ceil(),
        "Round" => x.round(),
        "Sign" => x.sign(),
        "Softplus" => softplus(x, 1.0),
        "Softsign" => x.clone() / (x.abs() + 1.0),
        "Mish" => x.clone() * softplus(x, 1.0).tanh(),
        name => trigonometric(name, x),
    }
}

fn trigonometric<const D: usize>(name: &str, x: Tensor<D>) -> Tensor<D> {
    match name {
        "Sin" => x.sin(),
        "Cos" => x.cos(),
        "Tan" => x.tan(),
        "Asin" => x.asin(),
        "Acos" => x.acos(),
        "Atan" => x.atan(),
        "Sinh" => x.sinh(),
        "Cosh" => x.cosh(),
        "Asinh" => x.asinh(),
        "Acosh" => x.acosh(),
        "Atanh" => x.atanh(),
        name => panic!("{name} is no function of one input"),
    }
}

/// Applies a function of several inputs, which broadcast.
///
/// # Panics
/// If the function is not known, or the shapes do not agree.
pub(super) fn of_several(name: &str, inputs: Vec<AnyTensor>) -> AnyTensor {
    let shape = common_shape(&inputs);
    let n = shape.iter().product();
    let flat = inputs.into_iter().map(|x| x.expanded(&shape).reshaped(&[n]).one());
    let mut flat = flat.collect::<Vec<_>>().into_iter();
    let mut next = || flat.next().expect("an input");
    let found = match name {
        "Where" => {
            let (condition, a, b) = (next(), next(), next());
            b.mask_where(condition.not_equal_elem(0.0), a)
        }
        "PRelu" => {
            let (x, slope) = (next(), next());
            x.clone().clamp_min(0.0) + x.clamp_max(0.0) * slope
        }
        "Sum" => flat.reduce(|a, b| a + b).expect("an input"),
        "Mean" => {
            let n = flat.len() as f64;
            flat.reduce(|a, b| a + b).expect("an input") / n
        }
        "Min" => flat.reduce(|a, b| a.min_pair(b)).expect("an input"),
        "Max" => flat.reduce(|a, b| a.max_pair(b)).expect("an input"),
        name => of_two(name, next(), next()),
    };
    AnyTensor::from(found).reshaped(&shape)
}

fn of_two(name: &str, a: Tensor<1>, b: Tensor<1>) -> Tensor<1> {
    match name {
        "Mul" => a * b,
        "Div" => a / b,
        "Pow" => a.powf(b),
        "Mod" => a.clone() - b.clone() * (a / b).floor(),
        "Equal" => a.equal(b).float(),
        "Greater" => a.greater(b).float(),
        "GreaterOrEqual" => a.greater_equal(b).float(),
        "Less" => a.lower(b).float(),
        "LessOrEqual" => a.lower_equal(b).float(),
        "And" => a.not_equal_elem(0.0).float() * b.not_equal_elem(0.0).float(),
        "Or" => (a.abs() + b.abs()).not_equal_elem(0.0).float(),
        "Xor" => (a.not_equal_elem(0.0).float() - b.not_equal_elem(0.0).float()).abs(),
        name => panic!("{name} is no function of two inputs"),
    }
}

/// Returns the shape that inputs broadcast to.
fn common_shape(inputs: &[AnyTensor]) -> Vec<usize> {
    let all: Vec<Vec<usize>> = inputs.iter().map(AnyTensor::dims).collect();
    let rank = all.iter().map(Vec::len).max().unwrap_or_default();
    let extent = |dims: &Vec<usize>, axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |own| dims[own]);
    (0..rank).map(|axis| all.iter().map(|dims| extent(dims, axis)).max().unwrap_or(1)).collect()
}
