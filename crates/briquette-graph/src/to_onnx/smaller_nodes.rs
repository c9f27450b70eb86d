//! Gives the nodes of an ONNX file the settings of a smaller graph: groups of convolutions, and extents that are constants.

use super::unused_nodes::{remove_unused, used_names};
use crate::graph::{Graph, Node};
use crate::op::{Op, Primitive};
use briquette_core::Result;
use briquette_formats::onnx_write::{OnnxAttribute, OnnxData, OnnxModel, OnnxNode, OnnxTensor, OnnxType};
use std::collections::BTreeMap;

/// Changes the nodes of the model of `before` to those of `after`, which has the same nodes with other extents.
///
/// Extents that are constants change. Those that the model computes may follow by themselves. With `other`, the graph of the model for
/// other inputs, they become constants, or -1 if they differ between both. The caller imports the result for several inputs, and
/// compares it with `after`.
///
/// # Errors
/// Input: see [`Graph::lower`].
pub fn with_extents(model: &mut OnnxModel, [before, after]: [&Graph; 2], other: Option<&Graph>) -> Result<()> {
    let (old_shapes, shapes) = (before.lower()?.shapes, after.lower()?.shapes);
    // A slice from the middle of an axis may stay as it is where the axis does not.
    let is_changed = |old: &Node, new: &Node| {
        let is_slice = matches!(new.op, Op::Primitive(Primitive::Slice { .. }));
        let is_shorter = || new.values().any(|(_, value)| shapes[value.0] != old_shapes[value.0]);
        old.op != new.op || other.is_some() && is_slice && is_shorter()
    };
    let used = used_names(model);
    let mut places: BTreeMap<String, Option<usize>> = BTreeMap::new();
    for (at, node) in model.nodes.iter().enumerate() {
        let name = if node.name.is_empty() { node.outputs.first() } else { Some(&node.name) };
        let place = places.entry(name.cloned().unwrap_or_default());
        // Two nodes of one name cannot be told apart.
        place.and_modify(|place| *place = None).or_insert(Some(at));
    }
    let mut to =
        SmallerNodes { constants: constants(model), n_added: 0, model, copies: Vec::new(), all: other.is_some() };
    // For other inputs, a graph may have more reshapes.
    let others: BTreeMap<&str, &[usize]> = other
        .iter()
        .flat_map(|other| &other.nodes)
        .map(|node| (node.name.as_str(), target(&node.op)))
        .filter(|(_, target)| !target.is_empty())
        .collect();
    for (old, new) in before.nodes.iter().zip(&after.nodes).filter(|(old, new)| is_changed(old, new)) {
        if let (Op::Primitive(old_op), Op::Primitive(new_op)) = (&old.op, &new.op)
            && let Some(Some(at)) = places.get(&old.name)
        {
            let input = new.values().next().map(|(_, value)| shapes[value.0].as_slice());
            let others = others.get(old.name.as_str()).copied().unwrap_or_default();
            let change = Change { old: old_op, new: new_op, input: input.unwrap_or_default(), others };
            to.node(*at, &change);
        }
    }
    to.insert_copies();
    remove_unused(model, &used);
    Ok(())
}

/// The known integers of a model, by name.
fn constants(model: &OnnxModel) -> BTreeMap<String, Vec<i64>> {
    let of_tensor = |tensor: &OnnxTensor| match (&tensor.data, tensor.dtype) {
        (OnnxData::Inline(bytes), OnnxType::I64) => {
            let values = bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
            Some((tensor.name.clone(), values))
        }
        _ => None,
    };
    let of_node = |node: &OnnxNode| match (&*node.op, node.attribute("value"), node.outputs.as_slice()) {
        ("Constant", Some(OnnxAttribute::Elements(values)), [name]) => {
            let are_whole = values.iter().all(|value| value.fract() == 0.0);
            are_whole.then(|| (name.clone(), values.iter().map(|value| *value as i64).collect()))
        }
        _ => None,
    };
    model.tensors.iter().filter_map(of_tensor).chain(model.nodes.iter().filter_map(of_node)).collect()
}

/// Returns all extents of a reshape: 0 for those of the input, at most one -1, and numbers.
fn whole_extents(new: &[usize], changes: &[(usize, NewExtent)], input: &[usize]) -> Vec<i64> {
    let changed = |axis: usize| changes.iter().find(|(own, _)| *own == axis).map(|(_, extent)| *extent);
    let mut is_open = changes.iter().any(|(_, extent)| matches!(extent, NewExtent::Left));
    let extent = |(axis, new): (usize, &usize)| match changed(axis) {
        Some(NewExtent::Number(extent)) => extent,
        Some(NewExtent::Left) => -1,
        None if input.get(axis) == Some(new) => 0,
        None if !std::mem::replace(&mut is_open, true) => -1,
        None => *new as i64,
    };
    new.iter().enumerate().map(extent).collect()
}

struct SmallerNodes<'a> {
    model: &'a mut OnnxModel,
    constants: BTreeMap<String, Vec<i64>>,
    /// Nodes to insert, each before the node of a place.
    copies: Vec<(usize, OnnxNode)>,
    n_added: usize,
    /// Whether computed extents become constants.
    all: bool,
}

/// A changed operation.
struct Change<'a> {
    old: &'a Primitive,
    new: &'a Primitive,
    /// The new shape of its first input.
    input: &'a [usize],
    /// The extents that it reshapes to for other inputs of the model.
    others: &'a [usize],
}

/// A changed extent of a reshape.
#[derive(Clone, Copy)]
enum NewExtent {
    /// A count of units.
    Number(i64),
    /// The number that the other extents leave, as it depends on the inputs of the model.
    Left,
}

impl Change<'_> {
    /// The changed extents by axis.
    fn extents(&self, old: &[usize], new: &[usize]) -> Vec<(usize, NewExtent)> {
        let changes = old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new);
        let extent = |(axis, (old, new)): (usize, (&usize, &usize))| {
            let depends = self.others.get(axis).is_some_and(|other| other != old);
            (axis, if depends { NewExtent::Left } else { NewExtent::Number(*new as i64) })
        };
        changes.map(extent).collect()
    }
}

fn target(op: &Op) -> &[usize] {
    match op {
        Op::Primitive(Primitive::Reshape(shape) | Primitive::Expand(shape)) => shape,
        _ => &[],
    }
}

impl SmallerNodes<'_> {
    fn node(&mut self, at: usize, change: &Change) {
        let op = self.model.nodes[at].op.to_string();
        match (op.as_str(), change.old, change.new) {
            (_, Primitive::Conv(_), Primitive::Conv(settings)) => {
                self.model.nodes[at].set("group", OnnxAttribute::Int(settings.groups as i64));
            }
            ("Reshape", Primitive::Reshape(old), Primitive::Reshape(new))
            | ("Expand", Primitive::Expand(old), Primitive::Expand(new)) => self.extents(at, old, new, change),
            ("Split", Primitive::Split { .. }, Primitive::Split { sizes, .. }) => self.split(at, sizes),
            ("Slice", Primitive::Slice { .. }, Primitive::Slice { axis, start, len }) => {
                self.slice(at, *axis as i64, [*start as i64, (*start + *len) as i64]);
            }
            _ => {}
        }
    }

    /// Adds a vector of integers.
    fn constant(&mut self, values: &[i64]) -> String {
        let taken = |name: &String, model: &OnnxModel| {
            let is_made = |node: &OnnxNode| node.outputs.contains(name);
            model.tensors.iter().any(|tensor| tensor.name == *name) || model.nodes.iter().any(is_made)
        };
        let name = loop {
            self.n_added += 1;
            let name = format!("briquette/extents_{}", self.n_added);
            if !taken(&name, self.model) {
                break name;
            }
        };
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (shape, data) = (vec![values.len()], OnnxData::Inline(bytes));
        self.model.tensors.push(OnnxTensor { name: name.clone(), dtype: OnnxType::I64, shape, data });
        name
    }

    /// Changes the extents of the second input. 0 and -1 follow from the first input.
    fn extents(&mut self, at: usize, old: &[usize], new: &[usize], change: &Change) {
        let Some(name) = self.model.nodes[at].inputs.get(1).cloned() else { return };
        let changes = change.extents(old, new);
        if let Some(mut values) = self.constants.get(&name).cloned() {
            for (axis, extent) in changes {
                if let (Some(value @ 1..), NewExtent::Number(extent)) = (values.get_mut(axis), extent) {
                    *value = extent;
                }
            }
            self.model.nodes[at].inputs[1] = self.constant(&values);
            return;
        }
        let maker = self.model.nodes.iter().find(|node| node.op == "Concat" && node.outputs.contains(&name));
        let Some(maker) = maker.filter(|maker| maker.inputs.len() == new.len()) else {
            if self.all && self.model.nodes[at].op == "Reshape" {
                let values = whole_extents(new, &changes, change.input);
                self.model.nodes[at].inputs[1] = self.constant(&values);
            }
            return;
        };
        let (mut parts, made) = (maker.inputs.clone(), maker.outputs[0].clone());
        for (axis, extent) in changes {
            let is_number =
                self.constants.get(&parts[axis]).map(|values| matches!(values.as_slice(), [value] if *value > 0));
            let value = match (is_number, extent) {
                (Some(true), NewExtent::Number(extent)) => extent,
                (None, NewExtent::Number(extent)) if self.all => extent,
                (None, NewExtent::Left) if self.all => -1,
                _ => continue,
            };
            parts[axis] = self.constant(&[value]);
        }
        let name = format!("{made}/smaller_{at}");
        self.model.nodes[at].inputs[1].clone_from(&name);
        let axis = vec![("axis", OnnxAttribute::Int(0))];
        self.copies.push((at, OnnxNode::new(("", "Concat"), parts, vec![name], axis)));
    }

    fn split(&mut self, at: usize, sizes: &[usize]) {
        let values: Vec<i64> = sizes.iter().map(|size| *size as i64).collect();
        if self.model.opset < 13 {
            self.model.nodes[at].set("split", OnnxAttribute::Ints(values));
            return;
        }
        let name = self.constant(&values);
        let node = &mut self.model.nodes[at];
        node.remove("num_outputs");
        node.inputs.truncate(1);
        node.inputs.push(name);
    }

    /// Changes the range of an axis, if the ranges of the node are constants.
    fn slice(&mut self, at: usize, axis: i64, [start, end]: [i64; 2]) {
        let inputs = self.model.nodes[at].inputs.clone();
        let known = |position: usize| inputs.get(position).and_then(|name| self.constants.get(name)).cloned();
        let (Some(mut starts), Some(mut ends)) = (known(1), known(2)) else {
            if self.all && known(3).is_some_and(|axes| axes.len() == 1) {
                let (start, end) = (self.constant(&[start]), self.constant(&[end]));
                self.model.nodes[at].inputs.splice(1..3, [start, end]);
            }
            return;
        };
        let axes = known(3).unwrap_or_else(|| (0..starts.len() as i64).collect());
        // A negative axis counts from the end, and the rank is not known here: the only axis is the one.
        let place = axes.iter().position(|own| *own == axis).or((axes.len() == 1).then_some(0));
        let Some(place) = place.filter(|place| *place < starts.len().min(ends.len())) else { return };
        (starts[place], ends[place]) = (start, end);
        let (starts, ends) = (self.constant(&starts), self.constant(&ends));
        self.model.nodes[at].inputs[1] = starts;
        self.model.nodes[at].inputs[2] = ends;
    }

    fn insert_copies(mut self) {
        self.copies.sort_by_key(|(at, _)| *at);
        for (at, node) in self.copies.into_iter().rev() {
            self.model.nodes.insert(at, node);
        }
    }
}
