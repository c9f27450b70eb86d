//! The shape rule of each primitive.

use crate::op::{ConvSettings, PoolWindow, Primitive, Recurrent, RecurrentCell, same_zeros};

/// Inputs that do not fit an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShapeError {
    /// The position of the input that does not fit, where one is to blame.
    pub(crate) operand: Option<usize>,
    /// What was found and expected.
    pub(crate) message: String,
}

type Shapes = Result<Vec<Vec<usize>>, ShapeError>;

fn misfit<T>(operand: usize, message: String) -> Result<T, ShapeError> {
    Err(ShapeError { operand: Some(operand), message })
}

/// Returns the shape of each output.
///
/// # Errors
/// - An input's shape does not fit the operation.
/// - An output has more elements than memory can address.
pub(crate) fn infer(primitive: &Primitive, inputs: &[&[usize]]) -> Shapes {
    let n_expected = n_inputs(primitive);
    if !n_expected.contains(&inputs.len()) {
        let message = format!("found {} inputs, expected {} to {}", inputs.len(), n_expected.start(), n_expected.end());
        return Err(ShapeError { operand: None, message });
    }
    let shapes = match primitive {
        Primitive::Elementwise(_) => broadcast(inputs, 0).map(|shape| vec![shape]),
        Primitive::PerChannel { axis } => per_channel(*axis, inputs),
        Primitive::MatMul { transpose_b } => matmul(*transpose_b, inputs[0], inputs[1]),
        Primitive::Conv(settings) => conv(settings, inputs),
        Primitive::Reshape(shape) => reshape(inputs[0], shape),
        Primitive::Transpose(permutation) => transpose(inputs[0], permutation),
        Primitive::Expand(shape) => expand(inputs[0], shape),
        Primitive::Split { axis, sizes } => split(inputs[0], *axis, sizes),
        Primitive::Slice { axis, start, len } => slice(inputs[0], *axis, *start, *len),
        Primitive::Concat { axis } => concat(inputs, *axis),
        Primitive::Gather => gather(inputs[0], inputs[1]),
        Primitive::Reduce { axes, .. } => reduce(inputs[0], axes),
        Primitive::Pool(window) => pool(window, inputs[0]),
        Primitive::AdaptivePool(space) => spatial(inputs[0], |at, _| space.get(at).copied()),
        Primitive::Spatial { space, .. } => spatial(inputs[0], |at, _| space.get(at).copied()),
        Primitive::Resize(factor) => spatial(inputs[0], |_, extent| extent.checked_mul(*factor)),
        Primitive::Pad { before, after } => pad(inputs[0], before, after),
        Primitive::PadSame { size, stride } => spatial(inputs[0], |at, extent| {
            let [before, after] = same_zeros(extent, *size.get(at)?, *stride.get(at)?)?;
            extent.checked_add(before)?.checked_add(after)
        }),
        Primitive::Scale(_) | Primitive::Number { .. } | Primitive::FakeQuantize(_) => Ok(vec![inputs[0].to_vec()]),
        Primitive::Softmax { axis } | Primitive::CumulativeSum { axis } => {
            check_axis(inputs[0], *axis).map(|()| vec![inputs[0].to_vec()])
        }
        Primitive::TopIndices { axis, n, .. } => top(inputs[0], *axis, *n),
        Primitive::Route(routing) => route(inputs[0], routing.top_k),
        Primitive::Recurrent(layer) => recurrent(layer, inputs),
        Primitive::Unknown { shapes, .. } => Ok(shapes.clone()),
    }?;
    for shape in &shapes {
        if shape.contains(&0) {
            return Err(ShapeError { operand: None, message: format!("its output {shape:?} is empty") });
        }
        let n = shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent));
        if n.is_none_or(|n| n > isize::MAX as usize / 8) {
            let message = format!("its output {shape:?} has more elements than memory can address");
            return Err(ShapeError { operand: None, message });
        }
    }
    Ok(shapes)
}

fn top(x: &[usize], axis: usize, n: usize) -> Shapes {
    check_axis(x, axis)?;
    if n > x[axis] {
        return misfit(0, format!("found {} elements along axis {axis}, expected at least {n}", x[axis]));
    }
    let mut shape = x.to_vec();
    shape[axis] = n;
    Ok(vec![shape])
}

fn n_inputs(primitive: &Primitive) -> std::ops::RangeInclusive<usize> {
    match primitive {
        Primitive::Elementwise(_) | Primitive::Concat { .. } => 1..=usize::MAX,
        Primitive::PerChannel { .. } => 1..=8,
        Primitive::MatMul { .. } | Primitive::Gather => 2..=2,
        Primitive::Conv(_) => 2..=3,
        Primitive::Recurrent(_) => 5..=6,
        Primitive::Unknown { .. } => 0..=usize::MAX,
        _ => 1..=1,
    }
}

/// The common shape of all inputs without their last `skip` axes.
fn broadcast(inputs: &[&[usize]], skip: usize) -> Result<Vec<usize>, ShapeError> {
    let rank = inputs.iter().map(|shape| shape.len()).max().unwrap_or(0) - skip;
    let mut common = vec![1; rank];
    for (operand, shape) in inputs.iter().enumerate() {
        let shape = &shape[..shape.len() - skip];
        let offset = rank - shape.len();
        for (out, &extent) in common[offset..].iter_mut().zip(shape) {
            match (*out, extent) {
                (out, extent) if out == extent => {}
                (1, extent) => *out = extent,
                (_, 1) => {}
                (expected, _) => {
                    return misfit(operand, format!("found an extent of {extent}, expected {expected}"));
                }
            }
        }
    }
    Ok(common)
}

/// See [`Recurrent`] for the shapes.
fn recurrent(layer: &Recurrent, inputs: &[&[usize]]) -> Shapes {
    let (&[tokens, batch, n_inputs], &[_, _, width]) = (inputs[0], inputs[2]) else {
        return misfit(0, "expected three axes, and three of the weights".into());
    };
    let n = layer.n_directions();
    let gates = layer.n_gates().saturating_mul(width);
    let state = vec![n, batch, width];
    let expected = [vec![n, gates, n_inputs], vec![n, gates, width], vec![n, gates.saturating_mul(2)]];
    let is_lstm = layer.cell == RecurrentCell::Lstm;
    let states = std::iter::repeat_n(state.clone(), if is_lstm { 2 } else { 1 });
    let expected: Vec<Vec<usize>> = expected.into_iter().chain(states.clone()).collect();
    if let Some(at) = (0..expected.len()).find(|at| inputs.get(at + 1) != Some(&expected[*at].as_slice())) {
        return misfit(at + 1, format!("expected {:?}", expected[at]));
    }
    Ok([vec![tokens, n, batch, width]].into_iter().chain(states).collect())
}

fn check_axis(shape: &[usize], axis: usize) -> Result<(), ShapeError> {
    match axis < shape.len() {
        true => Ok(()),
        false => misfit(0, format!("found {} axes, expected more than {axis}", shape.len())),
    }
}

fn per_channel(axis: usize, inputs: &[&[usize]]) -> Shapes {
    check_axis(inputs[0], axis)?;
    let n = inputs[0][axis];
    match inputs.iter().skip(1).position(|vector| **vector != [n]) {
        Some(at) => misfit(at + 1, format!("expected [{n}]")),
        None => Ok(vec![inputs[0].to_vec()]),
    }
}

fn matmul(transpose_b: bool, a: &[usize], b: &[usize]) -> Shapes {
    for (operand, shape) in [a, b].into_iter().enumerate() {
        if shape.len() < 2 {
            return misfit(operand, "expected two axes or more".into());
        }
    }
    let (m, k) = (a[a.len() - 2], a[a.len() - 1]);
    let [first, second] = [b[b.len() - 2], b[b.len() - 1]];
    let (found, n) = if transpose_b { (second, first) } else { (first, second) };
    if found != k {
        return misfit(1, format!("found {found} inputs, expected {k}"));
    }
    let mut shape = broadcast(&[a, b], 2)?;
    shape.extend([m, n]);
    Ok(vec![shape])
}

fn conv(settings: &ConvSettings, inputs: &[&[usize]]) -> Shapes {
    let (x, weight) = (inputs[0], inputs[1]);
    let n_space = settings.stride.len();
    let is_sound = settings.padding.len() == n_space && settings.dilation.len() == n_space;
    if !is_sound || settings.groups == 0 || settings.stride.contains(&0) || settings.dilation.contains(&0) {
        return Err(ShapeError { operand: None, message: "its stride, dilation or groups are not valid".into() });
    }
    if x.len() != n_space + 2 || weight.len() != x.len() {
        let operand = usize::from(x.len() == n_space + 2);
        return misfit(operand, format!("expected {} axes", n_space + 2));
    }
    let groups = settings.groups;
    let (n_in, n_out) = match settings.transposed {
        true => (Some(weight[0]), weight[1].checked_mul(groups)),
        false => (weight[1].checked_mul(groups), Some(weight[0])),
    };
    let (Some(n_in), Some(n_out)) = (n_in, n_out) else {
        return misfit(1, "its channels times its groups are too many".into());
    };
    if n_in != x[1] {
        return misfit(1, format!("found {n_in} input channels, expected {}", x[1]));
    }
    if !n_out.is_multiple_of(groups) || !n_in.is_multiple_of(groups) {
        return misfit(1, format!("found {n_in} input and {n_out} output channels, expected multiples of {groups}"));
    }
    if let Some(bias) = inputs.get(2).filter(|bias| ***bias != [n_out]) {
        return misfit(2, format!("found {bias:?}, expected [{n_out}]"));
    }
    let mut shape = vec![x[0], n_out];
    for at in 0..n_space {
        match conv_extent(settings, at, x[at + 2], weight[at + 2]) {
            Some(extent) => shape.push(extent),
            None => return misfit(1, format!("its kernel does not fit an extent of {}", x[at + 2])),
        }
    }
    Ok(vec![shape])
}

fn conv_extent(settings: &ConvSettings, at: usize, extent: usize, kernel: usize) -> Option<usize> {
    let (stride, pads) = (settings.stride[at], settings.padding[at].checked_mul(2)?);
    let reach = kernel.checked_sub(1)?.checked_mul(settings.dilation[at])?;
    match settings.transposed {
        true => extent.checked_sub(1)?.checked_mul(stride)?.checked_add(reach)?.checked_add(1)?.checked_sub(pads),
        false => Some(extent.checked_add(pads)?.checked_sub(reach)?.checked_sub(1)? / stride + 1),
    }
}

fn reshape(x: &[usize], shape: &[usize]) -> Shapes {
    let n = |shape: &[usize]| shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent));
    match n(x) == n(shape) && n(x).is_some() {
        true => Ok(vec![shape.to_vec()]),
        false => misfit(0, format!("found {x:?}, which has not the elements of {shape:?}")),
    }
}

fn transpose(x: &[usize], permutation: &[usize]) -> Shapes {
    let mut sorted = permutation.to_vec();
    sorted.sort_unstable();
    if sorted != (0..x.len()).collect::<Vec<_>>() {
        return misfit(0, format!("found {} axes, which {permutation:?} does not permute", x.len()));
    }
    Ok(vec![permutation.iter().map(|&axis| x[axis]).collect()])
}

fn expand(x: &[usize], shape: &[usize]) -> Shapes {
    match x.len() <= shape.len() && broadcast(&[x, shape], 0)? == shape {
        true => Ok(vec![shape.to_vec()]),
        false => misfit(0, format!("found {x:?}, which does not expand to {shape:?}")),
    }
}

fn split(x: &[usize], axis: usize, sizes: &[usize]) -> Shapes {
    check_axis(x, axis)?;
    if sizes.iter().try_fold(0_usize, |n, &size| n.checked_add(size)) != Some(x[axis]) {
        return misfit(0, format!("found an extent of {}, expected the sum of {sizes:?}", x[axis]));
    }
    Ok(sizes.iter().map(|&size| with_extent(x, axis, size)).collect())
}

fn slice(x: &[usize], axis: usize, start: usize, len: usize) -> Shapes {
    check_axis(x, axis)?;
    match start.checked_add(len).is_some_and(|end| end <= x[axis]) {
        true => Ok(vec![with_extent(x, axis, len)]),
        false => misfit(0, format!("found an extent of {}, expected {start} + {len} or more", x[axis])),
    }
}

fn with_extent(x: &[usize], axis: usize, extent: usize) -> Vec<usize> {
    let mut shape = x.to_vec();
    shape[axis] = extent;
    shape
}

fn concat(inputs: &[&[usize]], axis: usize) -> Shapes {
    check_axis(inputs[0], axis)?;
    let mut shape = inputs[0].to_vec();
    for (operand, other) in inputs.iter().enumerate().skip(1) {
        if other.len() != shape.len() || (0..shape.len()).any(|at| at != axis && other[at] != shape[at]) {
            return misfit(operand, format!("found {other:?}, which does not join {shape:?}"));
        }
        match shape[axis].checked_add(other[axis]) {
            Some(extent) => shape[axis] = extent,
            None => return misfit(operand, "its extent is too large".into()),
        }
    }
    Ok(vec![shape])
}

fn gather(table: &[usize], indices: &[usize]) -> Shapes {
    match table.split_first() {
        Some((_, rest)) => Ok(vec![[indices, rest].concat()]),
        None => misfit(0, "expected one axis or more".into()),
    }
}

fn reduce(x: &[usize], axes: &[usize]) -> Shapes {
    for &axis in axes {
        check_axis(x, axis)?;
    }
    Ok(vec![x.iter().enumerate().map(|(axis, &extent)| if axes.contains(&axis) { 1 } else { extent }).collect()])
}

fn pad(x: &[usize], before: &[usize], after: &[usize]) -> Shapes {
    if before.len() != x.len() || after.len() != x.len() {
        return misfit(0, format!("found {} axes, expected zeros for {} and {}", x.len(), before.len(), after.len()));
    }
    let extent = |axis: usize| x[axis].checked_add(before[axis])?.checked_add(after[axis]);
    match (0..x.len()).map(extent).collect() {
        Some(shape) => Ok(vec![shape]),
        None => misfit(0, "its extents are too large".into()),
    }
}

fn pool(window: &PoolWindow, x: &[usize]) -> Shapes {
    spatial(x, |at, extent| {
        let (size, stride, padding) = (window.size.get(at)?, window.stride.get(at)?, window.padding.get(at)?);
        extent.checked_add(padding.checked_mul(2)?)?.checked_sub(*size)?.checked_div(*stride)?.checked_add(1)
    })
}

/// Changes each axis after the second.
fn spatial(x: &[usize], extent: impl Fn(usize, usize) -> Option<usize>) -> Shapes {
    if x.len() < 3 {
        return misfit(0, format!("found {x:?}, expected axes of space after batch and channels"));
    }
    let space: Option<Vec<usize>> = x[2..].iter().enumerate().map(|(at, &size)| extent(at, size)).collect();
    match space {
        Some(space) => Ok(vec![[&x[..2], &space].concat()]),
        None => misfit(0, format!("found {x:?}, which its window does not fit")),
    }
}

fn route(x: &[usize], top_k: usize) -> Shapes {
    match x.last() {
        Some(&n) if (1..=n).contains(&top_k) => Ok(vec![x.to_vec()]),
        n => misfit(0, format!("found {} experts, expected at least {top_k} and 1", n.unwrap_or(&0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_and_the_wrong_input_is_named() {
        let matmul = Primitive::MatMul { transpose_b: true };
        assert_eq!(infer(&matmul, &[&[1, 5, 8], &[16, 8]]).unwrap(), [[1, 5, 16]]);
        assert_eq!(infer(&matmul, &[&[1, 5, 8], &[16, 9]]).unwrap_err().operand, Some(1));
        let conv = Primitive::Conv(ConvSettings::square(2, 3));
        assert_eq!(infer(&conv, &[&[1, 3, 224, 224], &[64, 3, 7, 7]]).unwrap(), [[1, 64, 112, 112]]);
        assert_eq!(infer(&conv, &[&[1, 3, 224, 224], &[64, 3, 7, 7], &[63]]).unwrap_err().operand, Some(2));
        let up = ConvSettings { transposed: true, ..ConvSettings::square(2, 0) };
        assert_eq!(infer(&Primitive::Conv(up), &[&[1, 8, 5, 5], &[8, 4, 2, 2]]).unwrap(), [[1, 4, 10, 10]]);
    }

    #[test]
    fn zeros_for_equal_extents_follow_from_the_image() {
        let pad = Primitive::PadSame { size: vec![5, 3], stride: vec![2, 2] };
        // At stride 2, a window of 5 over 5 elements gets 4 zeros, and a window of 3 over 8 elements gets 1.
        assert_eq!(infer(&pad, &[&[1, 2, 5, 8]]).unwrap(), [[1, 2, 9, 9]]);
        assert_eq!(
            [same_zeros(5, 5, 2), same_zeros(8, 3, 2), same_zeros(9, 1, 3)],
            [Some([2, 2]), Some([0, 1]), Some([0, 0])]
        );
        assert_eq!(same_zeros(usize::MAX, 3, 1), None);
        assert_eq!(same_zeros(4, 3, 0), None);
    }

    #[test]
    fn extents_at_their_limits_are_misfits_and_no_panic() {
        let huge = usize::MAX;
        let matmul = Primitive::MatMul { transpose_b: false };
        assert!(infer(&matmul, &[&[1, huge, 2], &[2, huge]]).is_err());
        let conv = Primitive::Conv(ConvSettings::square(1, huge));
        assert!(infer(&conv, &[&[1, 3, huge, 1], &[64, 3, 7, 7]]).is_err());
        let grouped = Primitive::Conv(ConvSettings::square(1, 0).with_groups(huge));
        assert!(infer(&grouped, &[&[1, 3, 9, 9], &[64, 3, 7, 7]]).is_err());
        assert!(infer(&Primitive::Concat { axis: 0 }, &[&[huge], &[2]]).is_err());
        assert!(infer(&Primitive::Reshape(vec![huge, huge]), &[&[huge, huge]]).is_err());
        assert!(infer(&Primitive::Slice { axis: 0, start: huge, len: 2 }, &[&[3]]).is_err());
        assert!(infer(&Primitive::Expand(vec![huge, huge]), &[&[1, 1]]).is_err());
    }
}
