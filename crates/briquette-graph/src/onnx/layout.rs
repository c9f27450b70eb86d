//! Operators that move elements: reshapes, transposes, expansions and joins.

use super::attributes::{axis, int, ints, text};
use super::importer::{Importer, MAX_HELD};
use super::inputs::NodeInputs;
use super::item::{Item, known};
use crate::graph::Operand;
use crate::op::{ElementFunction, Primitive};
use briquette_formats::onnx::{AttributeValue, Constant};

/// Adds a reshape, unless the shape is the same already.
pub(super) fn reshaped(to: &mut Importer, item: &Item, shape: Vec<usize>) -> Option<Item> {
    if to.shape(item)? == shape {
        return Some(item.clone());
    }
    let x = to.operand(item)?;
    Some(Item::Value(to.emit(Primitive::Reshape(shape), &[x])?))
}

/// Returns the extents of a reshape by ONNX's rule: 0 keeps an extent, -1 is what is left.
pub(super) fn target_of(from: &[usize], to: &[i64], allows_zero: bool) -> Option<Vec<usize>> {
    let n: usize = from.iter().product();
    let extent = |(axis, &extent): (usize, &i64)| match extent {
        0 if !allows_zero => from.get(axis).copied().map(Some),
        -1 => Some(None),
        extent => usize::try_from(extent).ok().map(Some),
    };
    let extents: Vec<Option<usize>> = to.iter().enumerate().map(extent).collect::<Option<_>>()?;
    let known = extents.iter().flatten().try_fold(1_usize, |n, &extent| n.checked_mul(extent))?;
    let n_open = extents.iter().filter(|extent| extent.is_none()).count();
    let rest = if n_open == 0 { 1 } else { n.checked_div(known)? };
    let found: Vec<usize> = extents.into_iter().map(|extent| extent.unwrap_or(rest)).collect();
    let n_found = found.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent))?;
    (n_open <= 1 && n_found == n).then_some(found)
}

/// Imports a reshape by known extents, or by the shape that the file declares.
pub(super) fn reshape(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let x = given.get(0)?;
    let shape = to.shape(x)?;
    let allows_zero = int(given.node, "allowzero", 0) != 0;
    let target = match given.integers(to, 1) {
        Some(target) => target_of(&shape, &target, allows_zero)?,
        None => to.declared_shape(given.node.outputs.first()?)?,
    };
    Some(vec![reshaped(to, x, target)?])
}

/// Imports a reshape to two axes.
pub(super) fn flatten(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let x = given.get(0)?;
    let shape = to.shape(x)?;
    let rank = i64::try_from(shape.len()).ok()?;
    let cut = int(given.node, "axis", 1);
    let cut = usize::try_from(if cut < 0 { cut + rank } else { cut }).ok().filter(|cut| *cut <= shape.len())?;
    let (outer, inner) = shape.split_at(cut);
    Some(vec![reshaped(to, x, vec![outer.iter().product(), inner.iter().product()])?])
}

/// Returns the axes of a `Squeeze` or `Unsqueeze`: an input since opset 13, an attribute before.
pub(super) fn squeeze_axes(to: &Importer, given: &NodeInputs) -> Option<Option<Vec<i64>>> {
    match (ints(given.node, "axes"), given.has(1)) {
        (Some(axes), _) => Some(Some(axes.to_vec())),
        (None, true) => Some(Some(given.integers(to, 1)?)),
        (None, false) => Some(None),
    }
}

/// Returns the shape after a `Squeeze` or `Unsqueeze`.
pub(super) fn squeezed(shape: &[usize], axes: Option<&[i64]>, is_squeeze: bool) -> Option<Vec<usize>> {
    if is_squeeze {
        let axes: Vec<usize> = match axes {
            Some(axes) => axes.iter().map(|&value| axis(value, shape.len())).collect::<Option<_>>()?,
            None => (0..shape.len()).filter(|&axis| shape[axis] == 1).collect(),
        };
        axes.iter().all(|&axis| shape[axis] == 1).then_some(())?;
        return Some((0..shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| shape[axis]).collect());
    }
    let axes = axes?;
    let rank = shape.len() + axes.len();
    let axes: Vec<usize> = axes.iter().map(|&value| axis(value, rank)).collect::<Option<_>>()?;
    let mut rest = shape.iter().copied();
    let extents = (0..rank).map(|axis| if axes.contains(&axis) { Some(1) } else { rest.next() });
    extents.collect()
}

/// Imports operators that remove or add axes of extent 1.
pub(super) fn squeeze(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let x = given.get(0)?;
    let axes = squeeze_axes(to, given)?;
    let target = squeezed(&to.shape(x)?, axes.as_deref(), given.node.op_type == "Squeeze")?;
    Some(vec![reshaped(to, x, target)?])
}

/// Returns the permutation of a `Transpose`; axes are reversed where it is absent.
pub(super) fn permutation(given: &NodeInputs, rank: usize) -> Option<Vec<usize>> {
    match ints(given.node, "perm") {
        Some(values) => values.iter().map(|&value| axis(value, rank)).collect(),
        None => Some((0..rank).rev().collect()),
    }
}

/// Imports a transpose. A matrix of the file stays as it is, so that products with it are linear layers.
pub(super) fn transpose(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let x = given.get(0)?;
    let permutation = permutation(given, to.shape(x)?.len())?;
    let item = match x {
        Item::Tensor(index) if permutation == [1, 0] => Item::Turned(*index),
        Item::Turned(index) if permutation == [1, 0] => Item::Tensor(*index),
        _ if permutation.is_sorted() => x.clone(),
        _ => {
            let operand = to.operand(x)?;
            Item::Value(to.emit(Primitive::Transpose(permutation), &[operand])?)
        }
    };
    Some(vec![item])
}

/// Returns the common shape of two shapes.
pub(super) fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |own| shape[own]);
    let join = |axis: usize| match (extent(a, axis), extent(b, axis)) {
        (a, b) if a == b || b == 1 => Some(a),
        (1, b) => Some(b),
        _ => None,
    };
    (0..rank).map(join).collect()
}

/// Imports an expansion to known extents.
pub(super) fn expand(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let x = given.get(0)?;
    let shape = to.shape(x)?;
    let target: Option<Vec<usize>> =
        given.integers(to, 1)?.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let target = broadcast(&shape, &target?)?;
    if target == shape {
        return Some(vec![x.clone()]);
    }
    let x = to.operand(x)?;
    Some(vec![Item::Value(to.emit(Primitive::Expand(target), &[x])?)])
}

/// Imports a constant that is too large to be computed here: an expansion of one number.
pub(super) fn constant_of_shape(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let shape: Option<Vec<usize>> = given.integers(to, 0)?.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let fill = match given.node.attribute("value") {
        Some(AttributeValue::Tensor(tensor)) => to.values_of(tensor)?,
        _ => Constant { shape: Vec::new(), is_integer: false, values: vec![0.0] },
    };
    let number = known(Constant { shape: vec![1; shape.as_ref()?.len()], ..fill });
    let x = to.operand(&number)?;
    Some(vec![Item::Value(to.emit(Primitive::Expand(shape?), &[x])?)])
}

/// Imports a triangle of matrices that are not known: elements on the other side of a diagonal are 0.
pub(super) fn triangle(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let x = given.get(0)?;
    let shape = to.shape(x)?;
    let &[.., rows, columns] = shape.as_slice() else { return None };
    (rows.max(columns) <= MAX_HELD).then_some(())?;
    let diagonal = match given.has(1) {
        true => *given.integers(to, 1)?.first()? as f64,
        false => 0.0,
    };
    let list = |shape: Vec<usize>, first: f64| {
        let n: usize = shape.iter().product();
        known(Constant { shape, is_integer: true, values: (0..n).map(|at| at as f64 + first).collect() })
    };
    let rows = to.operand(&list(vec![rows, 1], diagonal))?;
    let columns = to.operand(&list(vec![1, columns], 0.0))?;
    let name = if int(given.node, "upper", 1) != 0 { "GreaterOrEqual" } else { "LessOrEqual" };
    let is_kept = to.emit(Primitive::Elementwise(ElementFunction::Foreign(name)), &[columns, rows])?;
    let zero = to.operand(&known(Constant { shape: vec![1], is_integer: true, values: vec![0.0] }))?;
    let operands = [is_kept.into(), to.operand(x)?, zero];
    Some(vec![Item::Value(to.emit(Primitive::Elementwise(ElementFunction::Foreign("Where")), &operands)?)])
}

/// Imports repeats: an axis of extent `n` becomes `(repeats, n)`, of which the first is expanded.
pub(super) fn tile(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let mut item = given.get(0)?.clone();
    let repeats = given.integers(to, 1)?;
    let shape = to.shape(&item)?;
    (repeats.len() == shape.len()).then_some(())?;
    for (axis, &n) in repeats.iter().enumerate() {
        let n = usize::try_from(n).ok()?;
        if n == 1 {
            continue;
        }
        let mut cut = to.shape(&item)?;
        let extent = cut[axis];
        cut.insert(axis, 1);
        item = reshaped(to, &item, cut.clone())?;
        cut[axis] = n;
        let x = to.operand(&item)?;
        item = Item::Value(to.emit(Primitive::Expand(cut.clone()), &[x])?);
        cut.remove(axis);
        cut[axis] = n.checked_mul(extent)?;
        item = reshaped(to, &item, cut)?;
    }
    Some(vec![item])
}

/// Imports a join. Empty parts are left out.
pub(super) fn concat(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let mut parts: Vec<Operand> = Vec::new();
    let axis = given.axis(to, 1)?;
    for position in 0..given.items.len() {
        let item = given.get(position)?;
        if !to.shape(item)?.contains(&0) {
            parts.push(to.operand(item)?);
        }
    }
    Some(vec![Item::Value(to.emit(Primitive::Concat { axis }, &parts)?)])
}

/// Imports a move of blocks of space to channels or back.
pub(super) fn depth_and_space(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let x = given.get(0)?;
    let shape = to.shape(x)?;
    let &[batch, channels, height, width] = shape.as_slice() else { return None };
    let block = usize::try_from(int(given.node, "blocksize", 0)).ok().filter(|block| *block > 0)?;
    let square = block.checked_mul(block)?;
    let (cut, permutation, joined) = if given.node.op_type == "SpaceToDepth" {
        (text(given.node, "mode", "DCR") == "DCR").then_some(())?;
        let (rows, columns) = (height / block, width / block);
        let cut = vec![batch, channels, rows, block, columns, block];
        (cut, vec![0, 3, 5, 1, 2, 4], vec![batch, channels.checked_mul(square)?, rows, columns])
    } else {
        let inner = channels / square;
        let joined = vec![batch, inner, height.checked_mul(block)?, width.checked_mul(block)?];
        match text(given.node, "mode", "DCR") {
            "CRD" => (vec![batch, inner, block, block, height, width], vec![0, 1, 4, 2, 5, 3], joined),
            _ => (vec![batch, block, block, inner, height, width], vec![0, 3, 4, 1, 5, 2], joined),
        }
    };
    let x = reshaped(to, x, cut)?;
    let x = to.operand(&x)?;
    let x = Item::Value(to.emit(Primitive::Transpose(permutation), &[x])?);
    Some(vec![reshaped(to, &x, joined)?])
}
