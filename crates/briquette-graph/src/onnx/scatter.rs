//! Lookups and replacements by index vectors and by single indices: `GatherND`, `ScatterND`, `GatherElements` and `ScatterElements`.

use super::attributes::{int, text};
use super::importer::{Importer, MAX_KNOWN};
use super::inputs::NodeInputs;
use super::item::{Item, integers, known};
use super::layout::reshaped;
use super::ranges::looked_up;
use crate::graph::Operand;
use crate::op::{ElementFunction, Primitive, Reduction};
use briquette_formats::onnx::Constant;

/// The parts of a shape that index vectors of a length find: rows, and the elements of a row.
struct IndexedRows {
    /// The extents that are indexed.
    indexed: Vec<usize>,
    /// The extents of a row.
    row: Vec<usize>,
}

impl IndexedRows {
    fn of(shape: &[usize], indices: &[usize]) -> Option<Self> {
        let (indexed, row) = shape.split_at_checked(*indices.last()?)?;
        (!indexed.is_empty() && is_exact(indexed)).then(|| Self { indexed: indexed.to_vec(), row: row.to_vec() })
    }

    fn n_rows(&self) -> usize {
        self.indexed.iter().product()
    }

    fn n_elements(&self) -> usize {
        self.row.iter().product()
    }

    /// The distance of two neighbours along each indexed axis, in rows.
    fn strides(&self) -> Vec<usize> {
        (0..self.indexed.len()).map(|axis| self.indexed[axis + 1..].iter().product()).collect()
    }

    /// The row of each index vector. Negative indices count from the end.
    fn places(&self, indices: &Constant) -> Option<Vec<usize>> {
        let strides = self.strides();
        let place = |vector: &[i64]| {
            vector.iter().zip(&self.indexed).zip(&strides).try_fold(0, |place, ((&index, &extent), stride)| {
                let index = super::attributes::axis(index, extent)?;
                Some(place + index * stride)
            })
        };
        integers(indices).chunks_exact(self.indexed.len()).map(place).collect()
    }
}

/// Most indices that f32 counts exactly.
const MAX_INDICES: usize = 1 << 24;

/// Most indices along the axis of a replacement of elements.
const MAX_REPLACED: usize = 64;

/// Returns whether f32 holds every index into these extents.
fn is_exact(extents: &[usize]) -> bool {
    extents.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent)).is_some_and(|n| n <= MAX_INDICES)
}

/// Looks up elements of a constant.
pub(super) fn gathered(given: &NodeInputs, x: &Constant, indices: &Constant) -> Option<Constant> {
    (int(given.node, "batch_dims", 0) == 0).then_some(())?;
    let rows = IndexedRows::of(&x.shape, &indices.shape)?;
    let (places, n) = (rows.places(indices)?, rows.n_elements());
    (places.len().checked_mul(n)? <= MAX_KNOWN).then_some(())?;
    let values = places.iter().map(|place| x.values.get(place * n..(place + 1) * n)).collect::<Option<Vec<_>>>()?;
    let shape = [&indices.shape[..indices.shape.len() - 1], &rows.row].concat();
    Some(Constant { shape, is_integer: x.is_integer, values: values.concat() })
}

/// Replaces elements of a constant.
pub(super) fn scattered(given: &NodeInputs, x: &Constant, indices: &Constant, updates: &Constant) -> Option<Constant> {
    (text(given.node, "reduction", "none") == "none").then_some(())?;
    let rows = IndexedRows::of(&x.shape, &indices.shape)?;
    let n = rows.n_elements();
    let mut values = x.values.clone();
    for (at, place) in rows.places(indices)?.into_iter().enumerate() {
        values.get_mut(place * n..(place + 1) * n)?.copy_from_slice(updates.values.get(at * n..(at + 1) * n)?);
    }
    Some(Constant { values, ..x.clone() })
}

/// Imports a lookup by index vectors: rows of a table by the sum of index · stride.
pub(super) fn gather_nd(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let (x, indices) = (given.get(0)?, given.get(1)?);
    (int(given.node, "batch_dims", 0) == 0).then_some(())?;
    let of_indices = to.shape(indices)?;
    let rows = IndexedRows::of(&to.shape(x)?, &of_indices)?;
    let outer = &of_indices[..of_indices.len() - 1];
    let places = match to.known(indices) {
        Some(indices) => {
            let places = rows.places(&indices)?;
            let list = Constant { shape: vec![places.len()], is_integer: true, values: numbers(&places) };
            to.operand(&known(list))?
        }
        None => flat_places(to, indices, &rows)?,
    };
    let table = as_table(to, x, &rows)?;
    let found = looked_up(to, table, places, 0)?;
    Some(vec![reshaped(to, &Item::Value(found), [outer, &rows.row].concat())?])
}

/// The row of each index vector, as a list that is computed.
fn flat_places(to: &mut Importer, indices: &Item, rows: &IndexedRows) -> Option<Operand> {
    let vector =
        |values: &[usize]| known(Constant { shape: vec![values.len()], is_integer: true, values: numbers(values) });
    let (extents, strides) = (to.operand(&vector(&rows.indexed))?, to.operand(&vector(&rows.strides()))?);
    let x = to.operand(indices)?;
    let last = to.shape(indices)?.len() - 1;
    // The remainder counts negative indices from the end.
    let own = to.emit(Primitive::Elementwise(ElementFunction::Foreign("Mod")), &[x, extents])?;
    let own = to.emit(Primitive::Elementwise(ElementFunction::Mul), &[own.into(), strides])?;
    let sum = to.emit(Primitive::Reduce { axes: vec![last], kind: Reduction::Sum }, &[own.into()])?;
    let n = to.shape(indices)?[..last].iter().product();
    let list = reshaped(to, &Item::Value(sum), vec![n])?;
    to.operand(&list)
}

/// Imports a replacement of rows by known index vectors: a lookup in the rows and the new ones.
pub(super) fn scatter_nd(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let (x, indices, updates) = (given.get(0)?, given.get(1)?, given.get(2)?);
    (text(given.node, "reduction", "none") == "none").then_some(())?;
    let shape = to.shape(x)?;
    let indices = to.known(indices)?;
    let rows = IndexedRows::of(&shape, &indices.shape)?;
    let mut sources: Vec<usize> = (0..rows.n_rows()).collect();
    for (at, place) in rows.places(&indices)?.into_iter().enumerate() {
        sources[place] = rows.n_rows() + at;
    }
    let [before, new] = [x, updates].map(|item| as_table(to, item, &rows));
    let table = to.emit(Primitive::Concat { axis: 0 }, &[before?, new?])?;
    let sources = known(Constant { shape: vec![sources.len()], is_integer: true, values: numbers(&sources) });
    let sources = to.operand(&sources)?;
    let found = looked_up(to, table.into(), sources, 0)?;
    Some(vec![reshaped(to, &Item::Value(found), shape)?])
}

/// Imports a lookup along an axis, with an index for each element of the result.
pub(super) fn gather_elements(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let axis = given.axis(to, 0)?;
    Some(vec![elements_at(to, given.get(0)?, given.get(1)?, axis)?])
}

/// Looks up an element along an axis for each index.
pub(super) fn elements_at(to: &mut Importer, x: &Item, indices: &Item, axis: usize) -> Option<Item> {
    let (shape, found) = (to.shape(x)?, to.shape(indices)?);
    (shape.len() == found.len() && is_exact(&shape) && is_exact(&found)).then_some(())?;
    let rows = IndexedRows { indexed: shape.clone(), row: Vec::new() };
    let strides = rows.strides();
    // The place of each element of the result, as if all indices were 0.
    let mut sum = None;
    for (other, &extent) in found.iter().enumerate().filter(|(other, _)| *other != axis) {
        let mut along = vec![1; found.len()];
        along[other] = extent;
        let values = (0..extent).map(|at| (at * strides[other]) as f64).collect();
        let part = to.operand(&known(Constant { shape: along, is_integer: true, values }))?;
        sum = Some(match sum {
            None => part,
            Some(sum) => to.emit(Primitive::Elementwise(ElementFunction::Add), &[sum, part])?.into(),
        });
    }
    let number = |value: usize| known(Constant { shape: vec![1], is_integer: true, values: vec![value as f64] });
    let (extent, ids) = (to.operand(&number(shape[axis]))?, to.operand(indices)?);
    let own = to.emit(Primitive::Elementwise(ElementFunction::Foreign("Mod")), &[ids, extent])?;
    let mut places = to.emit(Primitive::Scale(strides[axis] as f64), &[own.into()])?;
    if let Some(sum) = sum {
        places = to.emit(Primitive::Elementwise(ElementFunction::Add), &[places.into(), sum])?;
    }
    let n = found.iter().product();
    let list = reshaped(to, &Item::Value(places), vec![n])?;
    let list = to.operand(&list)?;
    let table = as_table(to, x, &rows)?;
    let taken = looked_up(to, table, list, 0)?;
    reshaped(to, &Item::Value(taken), found)
}

/// Imports a replacement of elements along an axis, with an index for each new element: a choice for each index along the axis.
pub(super) fn scatter_elements(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let (x, indices, updates) = (given.get(0)?, given.get(1)?, given.get(2)?);
    let (shape, axis) = (to.shape(x)?, given.axis(to, 0)?);
    let of_indices = to.shape(indices)?;
    let n = *of_indices.get(axis)?;
    let is_whole = of_indices.iter().zip(&shape).enumerate().all(|(at, (own, all))| at == axis || own == all);
    let fits = is_whole && of_indices.len() == shape.len() && to.shape(updates)? == of_indices && n <= MAX_REPLACED;
    (fits && text(given.node, "reduction", "none") == "none").then_some(())?;
    let list =
        |shape: Vec<usize>, values: Vec<usize>| known(Constant { shape, is_integer: true, values: numbers(&values) });
    let mut along = vec![1; shape.len()];
    along[axis] = shape[axis];
    let places = to.operand(&list(along, (0..shape[axis]).collect()))?;
    let (extent, ids) = (to.operand(&list(vec![1], vec![shape[axis]]))?, to.operand(indices)?);
    // The remainder counts negative indices from the end.
    let ids = to.emit(Primitive::Elementwise(ElementFunction::Foreign("Mod")), &[ids, extent])?;
    let (mut found, updates) = (to.operand(x)?, to.operand(updates)?);
    for start in 0..n {
        let one = Primitive::Slice { axis, start, len: 1 };
        let (place, value) = (to.emit(one.clone(), &[ids.into()])?, to.emit(one, &[updates])?);
        let is_here = to.emit(Primitive::Elementwise(ElementFunction::Foreign("Equal")), &[places, place.into()])?;
        let choice = [is_here.into(), value.into(), found];
        found = to.emit(Primitive::Elementwise(ElementFunction::Foreign("Where")), &choice)?.into();
    }
    match found {
        Operand::Value(value) => Some(vec![Item::Value(value)]),
        Operand::Weight(_) => None,
    }
}

/// A matrix of the rows of an item.
fn as_table(to: &mut Importer, item: &Item, rows: &IndexedRows) -> Option<Operand> {
    let n: usize = to.shape(item)?.iter().product();
    let width = rows.n_elements();
    let table = reshaped(to, item, vec![n.checked_div(width)?, width])?;
    to.operand(&table)
}

fn numbers(places: &[usize]) -> Vec<f64> {
    places.iter().map(|&place| place as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_formats::onnx::Node;

    fn integers(shape: &[usize], values: &[i32]) -> Constant {
        Constant { shape: shape.to_vec(), is_integer: true, values: values.iter().map(|&value| value.into()).collect() }
    }

    #[test]
    fn constants_are_looked_up_and_replaced_by_index_vectors() {
        let node = Node::default();
        let given = NodeInputs { node: &node, items: &[] };
        let x = integers(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        let (whole, rows) = (integers(&[2, 2], &[0, -1, 1, 0]), integers(&[1, 1], &[-2]));
        assert_eq!(gathered(&given, &x, &whole).unwrap(), integers(&[2], &[3, 4]));
        assert_eq!(gathered(&given, &x, &rows).unwrap(), integers(&[1, 3], &[1, 2, 3]));
        assert_eq!(gathered(&given, &x, &integers(&[1, 1], &[2])), None);
        let replaced = scattered(&given, &x, &whole, &integers(&[2], &[8, 9])).unwrap();
        assert_eq!(replaced, integers(&[2, 3], &[1, 2, 8, 9, 5, 6]));
        assert_eq!(scattered(&given, &x, &rows, &integers(&[1, 2], &[8, 9])), None);
    }
}
