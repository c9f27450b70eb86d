//! Computes values that follow from constants and shapes.

use super::attributes::{float, int, ints};
use super::constant_math::{chosen, expanded, joined, moved, of_one, of_two, rounded};
use super::importer::{Importer, MAX_KNOWN};
use super::inputs::NodeInputs;
use super::item::{Item, integers, known};
use super::layout::{broadcast, permutation, squeeze_axes, squeezed, target_of};
use super::ranges::slice_ranges;
use super::scatter;
use briquette_formats::onnx::{AttributeValue, Constant, Node};

/// Computes the outputs of a node from known inputs; `None` if they are not known or large.
pub(super) fn folded(to: &Importer, node: &Node, inputs: &[Option<Item>]) -> Option<Vec<Item>> {
    if !node.domain.is_empty() {
        return None;
    }
    let given = NodeInputs { node, items: inputs };
    match node.op_type.as_str() {
        "Constant" => return Some(vec![known(constant(to, node)?)]),
        "Shape" => return Some(vec![known(shape(&to.shape(given.get(0)?)?, node)?)]),
        "Size" => {
            let n = to.shape(given.get(0)?)?.iter().product::<usize>();
            return Some(vec![known(list(&[n as f64], &[]))]);
        }
        _ => {}
    }
    let values: Vec<Constant> = inputs.iter().flatten().map(|item| to.known(item)).collect::<Option<_>>()?;
    let found = match values.as_slice() {
        [] => return None,
        [x] => of_one(&node.op_type, x),
        [a, b] if node.op_type == "Mod" && int(node, "fmod", 0) != 0 => of_two("Fmod", a, b),
        [a, b] => of_two(&node.op_type, a, b),
        [condition, a, b] if node.op_type == "Where" => chosen(condition, a, b),
        [start, limit, delta] if node.op_type == "Range" => range(start, limit, delta),
        _ => None,
    };
    if let Some(found) = found {
        return Some(vec![known(found)]);
    }
    if node.op_type == "Split" {
        return split(to, &given, &values);
    }
    Some(vec![known(rearranged(to, &given, &values)?)])
}

fn list(values: &[f64], shape: &[usize]) -> Constant {
    Constant { shape: shape.to_vec(), is_integer: true, values: values.to_vec() }
}

/// The value of a `Constant` node.
fn constant(to: &Importer, node: &Node) -> Option<Constant> {
    let attribute = node.attributes.first()?;
    let floats = |values: &[f32], shape: Vec<usize>| Constant {
        shape,
        is_integer: false,
        values: values.iter().map(|&value| value.into()).collect(),
    };
    Some(match &attribute.value {
        AttributeValue::Tensor(tensor) => to.values_of(tensor)?,
        AttributeValue::Int(value) => list(&[*value as f64], &[]),
        AttributeValue::Ints(values) => {
            let values: Vec<f64> = values.iter().map(|&value| value as f64).collect();
            list(&values, &[values.len()])
        }
        AttributeValue::Float(value) => floats(&[*value], Vec::new()),
        AttributeValue::Floats(values) => floats(values, vec![values.len()]),
        _ => return None,
    })
}

/// The extents from `start` to `end`.
fn shape(shape: &[usize], node: &Node) -> Option<Constant> {
    let n = i64::try_from(shape.len()).ok()?;
    let place =
        |value: i64| usize::try_from((if value < 0 { value.saturating_add(n) } else { value }).clamp(0, n)).ok();
    let (start, end) = (place(int(node, "start", 0))?, place(int(node, "end", i64::MAX))?);
    let extents: Vec<f64> = shape.get(start..end.max(start))?.iter().map(|&extent| extent as f64).collect();
    Some(list(&extents, &[extents.len()]))
}

fn range(start: &Constant, limit: &Constant, delta: &Constant) -> Option<Constant> {
    let [first, limit, step] = [start, limit, delta].map(|constant| constant.values.first().copied());
    let (first, step) = (first?, step?);
    let n = ((limit? - first) / step).ceil();
    (n <= MAX_KNOWN as f64 && step != 0.0).then_some(())?;
    let is_integer = start.is_integer && delta.is_integer;
    let values: Vec<f64> = (0..n.max(0.0) as usize).map(|at| rounded(first + at as f64 * step, is_integer)).collect();
    Some(Constant { shape: vec![values.len()], is_integer, values })
}

/// Operators that move, repeat or reduce elements.
fn rearranged(to: &Importer, given: &NodeInputs, values: &[Constant]) -> Option<Constant> {
    let x = values.first()?;
    let parameter = |at: usize| values.get(at).map(integers);
    match given.node.op_type.as_str() {
        "Cast" => cast(x, int(given.node, "to", 1)),
        "Clip" => clipped(to, given, x),
        "Reshape" => {
            let target = target_of(&x.shape, &parameter(1)?, int(given.node, "allowzero", 0) != 0)?;
            Some(Constant { shape: target, ..x.clone() })
        }
        "Squeeze" | "Unsqueeze" => {
            let axes = squeeze_axes(to, given)?;
            let shape = squeezed(&x.shape, axes.as_deref(), given.node.op_type == "Squeeze")?;
            Some(Constant { shape, ..x.clone() })
        }
        "Concat" => joined(values, given.axis(to, 0)?),
        "Transpose" => {
            let order = permutation(given, x.shape.len())?;
            let shape: Vec<usize> = order.iter().map(|&axis| x.shape[axis]).collect();
            moved(x, &shape, |index| order_back(index, &order))
        }
        "Gather" => gathered(x, values.get(1)?, given.axis(to, 0)?),
        "GatherND" => scatter::gathered(given, x, values.get(1)?),
        "ScatterND" => scatter::scattered(given, x, values.get(1)?, values.get(2)?),
        "Slice" => sliced(to, given, x),
        "Expand" => {
            let extents: Option<Vec<usize>> =
                parameter(1)?.iter().map(|&extent| usize::try_from(extent).ok()).collect();
            expanded(x, &broadcast(&x.shape, &extents?)?)
        }
        "Tile" => {
            let repeats = parameter(1)?;
            let extent = |(&extent, &n): (&usize, &i64)| extent.checked_mul(usize::try_from(n).ok()?);
            let shape: Option<Vec<usize>> = x.shape.iter().zip(&repeats).map(extent).collect();
            moved(x, &shape?, |index| Some(index.iter().zip(&x.shape).map(|(at, extent)| at % extent).collect()))
        }
        "ConstantOfShape" => {
            let shape: Option<Vec<usize>> = integers(x).iter().map(|&extent| usize::try_from(extent).ok()).collect();
            let fill = match given.node.attribute("value") {
                Some(AttributeValue::Tensor(tensor)) => to.values_of(tensor)?,
                _ => Constant { shape: Vec::new(), is_integer: false, values: vec![0.0] },
            };
            expanded(&Constant { shape: Vec::new(), ..fill }, &shape?)
        }
        "Trilu" => {
            triangle(x, parameter(1).and_then(|k| k.first().copied()).unwrap_or(0), int(given.node, "upper", 1) != 0)
        }
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => reduced(to, given, x),
        _ => None,
    }
}

/// The index before a transpose.
fn order_back(index: &[usize], order: &[usize]) -> Option<Vec<usize>> {
    let mut source = vec![0; order.len()];
    for (at, &axis) in order.iter().enumerate() {
        *source.get_mut(axis)? = *index.get(at)?;
    }
    Some(source)
}

/// Rounds toward zero for integer types. Truth values are 0 and 1.
fn cast(x: &Constant, data_type: i64) -> Option<Constant> {
    let is_float = matches!(data_type, 1 | 10 | 11 | 16);
    let value = |&value: &f64| match data_type {
        9 => f64::from(u8::from(value != 0.0)),
        _ if is_float => rounded(value, false),
        _ => value.trunc(),
    };
    (1..=16).contains(&data_type).then_some(())?;
    Some(Constant { values: x.values.iter().map(value).collect(), is_integer: !is_float, shape: x.shape.clone() })
}

fn clipped(to: &Importer, given: &NodeInputs, x: &Constant) -> Option<Constant> {
    let bound = |name: &str, position: usize| match given.get(position) {
        Some(item) => to.values(item)?.values.first().copied().map(Some),
        None => Some(given.node.attribute(name).map(|_| float(given.node, name, 0.0))),
    };
    let (low, high) = (bound("min", 1)?, bound("max", 2)?);
    let value = |&value: &f64| value.max(low.unwrap_or(f64::NEG_INFINITY)).min(high.unwrap_or(f64::INFINITY));
    Some(Constant { values: x.values.iter().map(value).collect(), ..x.clone() })
}

fn gathered(x: &Constant, indices: &Constant, axis: usize) -> Option<Constant> {
    let extent = i64::try_from(*x.shape.get(axis)?).ok()?;
    let places = integers(indices);
    let mut shape = x.shape.clone();
    shape.splice(axis..=axis, indices.shape.iter().copied());
    let n = indices.shape.len();
    moved(x, &shape, |index| {
        let own = index.get(axis..axis + n)?;
        let place = own.iter().zip(&indices.shape).fold(0, |place, (&at, &extent)| place * extent + at);
        let found = *places.get(place)?;
        let found = usize::try_from(if found < 0 { found.saturating_add(extent) } else { found }).ok()?;
        Some([&index[..axis], &[found], &index[axis + n..]].concat())
    })
}

fn sliced(to: &Importer, given: &NodeInputs, x: &Constant) -> Option<Constant> {
    let ranges = slice_ranges(to, given, &x.shape)?;
    let mut shape = x.shape.clone();
    for range in &ranges {
        *shape.get_mut(range.axis)? = range.len;
    }
    moved(x, &shape, |index| {
        let mut source = index.to_vec();
        for range in &ranges {
            let at = source.get_mut(range.axis)?;
            let offset = range.step.checked_mul(i64::try_from(*at).ok()?)?;
            *at = usize::try_from(i64::try_from(range.start).ok()?.checked_add(offset)?).ok()?;
        }
        Some(source)
    })
}

/// Keeps the elements on one side of a diagonal, and zeros the others.
fn triangle(x: &Constant, diagonal: i64, is_upper: bool) -> Option<Constant> {
    let &[.., rows, columns] = x.shape.as_slice() else { return None };
    let keeps = |at: usize| {
        let distance = (at % columns) as i64 - (at / columns % rows) as i64;
        if is_upper { distance >= diagonal } else { distance <= diagonal }
    };
    let values = x.values.iter().enumerate().map(|(at, &value)| if keeps(at) { value } else { 0.0 }).collect();
    Some(Constant { values, ..x.clone() })
}

/// Reduces all elements of a list to one.
fn reduced(to: &Importer, given: &NodeInputs, x: &Constant) -> Option<Constant> {
    let axes = ints(given.node, "axes").map(<[i64]>::to_vec).or_else(|| given.integers(to, 1));
    (x.shape.len() == 1 || axes.is_none()).then_some(())?;
    let value = match given.node.op_type.as_str() {
        "ReduceProd" => x.values.iter().product(),
        "ReduceSum" => x.values.iter().sum(),
        "ReduceMax" => x.values.iter().copied().reduce(f64::max)?,
        _ => x.values.iter().copied().reduce(f64::min)?,
    };
    let keeps = int(given.node, "keepdims", 1) != 0;
    let shape = if keeps { vec![1; x.shape.len()] } else { Vec::new() };
    Some(Constant { shape, is_integer: x.is_integer, values: vec![value] })
}

/// Cuts a list into parts by sizes, or into equal ones.
fn split(to: &Importer, given: &NodeInputs, values: &[Constant]) -> Option<Vec<Item>> {
    let (x, n) = (values.first()?, given.node.outputs.len());
    (x.shape.len() == 1 && given.axis(to, 0)? == 0).then_some(())?;
    let sizes = ints(given.node, "split").map(<[i64]>::to_vec).or_else(|| values.get(1).map(integers));
    let equal = i64::try_from(x.values.len().div_ceil(n.max(1))).ok()?;
    let sizes = sizes.unwrap_or_else(|| vec![equal; n]);
    let (mut start, mut found) = (0_usize, Vec::new());
    for size in sizes {
        let end = start.checked_add(usize::try_from(size).ok()?)?.min(x.values.len());
        let part = x.values.get(start..end)?;
        found.push(known(Constant { shape: vec![part.len()], is_integer: x.is_integer, values: part.to_vec() }));
        start = end;
    }
    (found.len() == n).then_some(found)
}
