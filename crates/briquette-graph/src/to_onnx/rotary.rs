//! Rotary position embeddings. Angles are computed in f32 for the tokens of each run.

use super::emitter::Emitter;
use super::text_inputs::{n_tokens, positions};
use crate::op::{Rotary, RotaryScaling};
use briquette_formats::onnx_write::OnnxType;

/// Turns the first elements of each head, or all: `[batch, heads, tokens, width]`.
pub(super) fn rotated(to: &mut Emitter, x: &str, rotary: &Rotary, width: usize) -> String {
    let Some(part) = rotary.width.filter(|part| *part < width) else { return turned(to, x, rotary, width) };
    let parts = to.split(x, 3, &[part, width - part]);
    let first = turned(to, &parts[0], rotary, part);
    to.concat(&[&first, &parts[1]], 3)
}

/// `x · cos + (-x₂, x₁) · sin`, where `x₁` and `x₂` are the halves of each head.
fn turned(to: &mut Emitter, x: &str, rotary: &Rotary, width: usize) -> String {
    let [cosine, sine] = ["Cos", "Sin"].map(|op| table(to, rotary, width, op));
    let halves = to.split(x, 3, &[width / 2, width / 2]);
    let negative = to.plain("Neg", &[&halves[1]]);
    let swapped = to.concat(&[&negative, &halves[0]], 3);
    let (first, second) = (to.plain("Mul", &[x, &cosine]), to.plain("Mul", &[&swapped, &sine]));
    to.plain("Add", &[&first, &second])
}

/// Cosines or sines, `[tokens, width]`, in the model's type. All layers with equal settings share them.
fn table(to: &mut Emitter, rotary: &Rotary, width: usize, op: &'static str) -> String {
    let angles = to.shared(&format!("rotary angles {rotary:?} {width}"), |to| angles(to, rotary, width));
    to.shared(&format!("rotary {op} {rotary:?} {width}"), |to| {
        let mut found = to.plain(op, &[&angles]);
        if rotary.amplitude() != 1.0 {
            let amplitude = to.number_of(OnnxType::F32, rotary.amplitude());
            found = to.plain("Mul", &[&found, &amplitude]);
        }
        if to.float_type() == OnnxType::F32 { found } else { to.cast(&found, to.float_type()) }
    })
}

/// The angle of each token and element; the halves of a head have the same.
fn angles(to: &mut Emitter, rotary: &Rotary, width: usize) -> String {
    let tokens = positions(to);
    let tokens = to.cast(&tokens, OnnxType::F32);
    let tokens = to.unsqueeze(&tokens, &[1]);
    let frequencies = frequencies(to, rotary, width);
    let half = to.plain("Mul", &[&tokens, &frequencies]);
    to.concat(&[&half, &half], 1)
}

/// The frequency of each pair, `[1, pairs]`: a constant, unless it follows from the number of tokens.
fn frequencies(to: &mut Emitter, rotary: &Rotary, width: usize) -> String {
    let pairs = width / 2;
    match &rotary.scaling {
        RotaryScaling::Dynamic { factor, original } => dynamic(to, rotary.theta, [*factor, *original], width),
        RotaryScaling::LongRope { original, .. } => {
            // The last length with short factors, and the first with long ones.
            let last = original.floor().max(0.0);
            let [short, long] = [last, last + 1.0].map(|n| rotary.inverse_frequencies(width, n as usize));
            let (short, long) = (to.floats_32(&short, &[1, pairs]), to.floats_32(&long, &[1, pairs]));
            let (n, last) = (n_tokens(to), to.int(last as i64));
            let is_long = to.plain("Greater", &[&n, &last]);
            to.plain("Where", &[&is_long, &long, &short])
        }
        _ => to.floats_32(&rotary.inverse_frequencies(width, 0), &[1, pairs]),
    }
}

/// `base^(-2 i / width)`, where the base grows with inputs longer than those of training; see [`RotaryScaling::Dynamic`].
fn dynamic(to: &mut Emitter, theta: f64, [factor, original]: [f64; 2], width: usize) -> String {
    let number = |to: &mut Emitter, value: f64| to.number_of(OnnxType::F32, value);
    let n = n_tokens(to);
    let n = to.cast(&n, OnnxType::F32);
    let shortest = number(to, original);
    let n = to.plain("Max", &[&n, &shortest]);
    let per_token = number(to, factor / original);
    let growth = to.plain("Mul", &[&n, &per_token]);
    let less = number(to, factor - 1.0);
    let growth = to.plain("Sub", &[&growth, &less]);
    let power = number(to, width as f64 / (width as f64 - 2.0));
    let growth = to.plain("Pow", &[&growth, &power]);
    let theta = number(to, theta);
    let base = to.plain("Mul", &[&growth, &theta]);
    let exponents: Vec<f32> = (0..width / 2).map(|pair| -2.0 * pair as f32 / width as f32).collect();
    let exponents = to.floats_32(&exponents, &[1, width / 2]);
    to.plain("Pow", &[&base, &exponents])
}
