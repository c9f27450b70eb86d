//! Structured pruning of burn modules: coupled channels and heads are masked during training, and removed afterwards.

use crate::NameMap;
use crate::module::{Kind, Parameter, Trail};
use crate::weights::for_each_weight;
use briquette_core::{DType, Decision, Error, Mask, Result};
use briquette_formats::TensorInfo;
use briquette_graph::coupling::{Couplings, UnitId, couplings};
use briquette_graph::op::{Composite, Primitive};
use briquette_graph::pairs::{PairSide, sides};
use briquette_graph::shrink::KeptIndices;
use briquette_graph::{Graph, Op, WeightId};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the name, type and shape of each float parameter in files: the headers that a `GraphBuilder` needs.
///
/// # Errors
/// Config: roles of the name map match no parameter.
pub fn tensor_infos<M: Module>(module: &M, names: &NameMap) -> Result<Vec<TensorInfo>> {
    let of = |parameter: Parameter| {
        let shape = shape_in_files(&parameter, names);
        TensorInfo::checked(names.file_name(&parameter), DType::F32, shape)
    };
    let floats = names.parameters(module)?.into_iter().filter(|one| one.kind == Kind::Float);
    floats.map(of).collect()
}

/// Returns masks under which no layer reads these units, by parameter path. [`Compression::of`](crate::Compression::of) attaches them.
///
/// The weights that read a unit become 0 and stay 0 in training. The unit itself may keep its weights: it has no effect any more.
///
/// # Errors
/// Config: a unit does not exist, no layer reads it, or the graph does not fit the module.
pub fn unit_masks<M: Module>(
    module: &M,
    graph: &Graph,
    names: &NameMap,
    units: &BTreeSet<UnitId>,
) -> Result<BTreeMap<String, Decision>> {
    let known = UnitGraph::of(module, graph, names)?;
    let mut dropped: BTreeMap<WeightId, BTreeSet<usize>> = BTreeMap::new();
    for unit in units {
        let readers = known.readers(*unit)?;
        if readers.is_empty() {
            return Err(Error::config(format!("no layer reads unit {} of group {}", unit.unit, unit.group)));
        }
        readers.into_iter().for_each(|(weight, columns)| dropped.entry(weight).or_default().extend(columns));
    }
    let mask = |(weight, columns): (WeightId, BTreeSet<usize>)| {
        let parameter = known.parameter(weight)?;
        let rows = parameter.rows();
        let mask = Mask::from_fn(rows.n_rows, rows.n_cols, |_, column| !columns.contains(&column));
        Ok((parameter.path.clone(), Decision { mask: Some(mask), quant: None }))
    };
    dropped.into_iter().map(mask).collect()
}

/// Returns the units that no layer reads: every weight that would read them is 0, as it is or by an attached mask.
///
/// # Errors
/// - Config: the graph does not fit the module.
/// - Io: a device does not return a tensor.
pub fn unused_units<M: Module>(module: &M, graph: &Graph, names: &NameMap) -> Result<BTreeSet<UnitId>> {
    let known = UnitGraph::of(module, graph, names)?;
    let mut zeros: BTreeMap<String, Vec<bool>> = BTreeMap::new();
    for_each_weight(module, |weight| {
        let n_columns = weight.rows.n_cols.max(1);
        let mut is_zero = vec![true; n_columns];
        for row in weight.effective().chunks_exact(n_columns) {
            is_zero.iter_mut().zip(row).for_each(|(is_zero, value)| *is_zero &= *value == 0.0);
        }
        zeros.insert(weight.parameter.path, is_zero);
        Ok(())
    })?;
    let mut found = BTreeSet::new();
    for (group, units) in known.couplings.groups.iter().map(|group| group.units.len()).enumerate() {
        for unit in (0..units).map(|unit| UnitId { group, unit }) {
            let readers = known.readers(unit)?;
            let is_unread = |(weight, columns): &(WeightId, Vec<usize>)| {
                let zeros = known.parameter(*weight).ok().and_then(|parameter| zeros.get(&parameter.path));
                zeros.is_some_and(|zeros| columns.iter().all(|&column| zeros.get(column) == Some(&true)))
            };
            if !readers.is_empty() && readers.iter().all(is_unread) {
                found.insert(unit);
            }
        }
    }
    Ok(found)
}

/// Returns a module without some units: smaller parameters, with the same paths and ids.
///
/// The smaller module computes what the module computes whose units are 0 in every parameter, or that no layer reads, as
/// [`unused_units`] finds them. The module's code must take sizes from its parameters: numbers in a module, such as the heads of burn's own
/// attention, stay as they are. burn's clones of a batch norm share running statistics: do not shrink a clone of a module that you still use. An optimizer has moments of the old shapes, so start a new one. Masks and grids must be gone: call
/// `materialize` first.
///
/// # Errors
/// - Config: a unit does not exist, nothing is left of an axis, the graph does not fit the module, or a convolution or a norm would need another
///   number of groups.
/// - Refused: a parameter is reparameterized.
pub fn shrink<M: Module>(module: M, graph: &Graph, names: &NameMap, units: &BTreeSet<UnitId>) -> Result<M> {
    let known = UnitGraph::of(&module, graph, names)?;
    if let Some(parameter) = known.parameters.values().find(|parameter| parameter.reparameterized.is_some()) {
        let message = "has a mask, a grid or another reparameterization; call materialize() first";
        return Err(Error::refused(message).at(&parameter.path));
    }
    let shrunk = graph.without_units(&known.couplings, units)?;
    let is_fixed =
        |op: &Op| matches!(op, Op::Primitive(Primitive::Conv(_)) | Op::Composite(Composite::GroupNorm { .. }));
    let pairs = graph.nodes.iter().zip(&shrunk.graph.nodes);
    if let Some((node, _)) = pairs.into_iter().find(|(before, after)| is_fixed(&before.op) && before.op != after.op) {
        let message = "would need another number of groups, which the module holds; exclude its units";
        return Err(Error::config(message).at(format_args!("node {:?}", node.name)));
    }
    let kept = known.parameters.iter().map(|(weight, parameter)| {
        let mut axes = shrunk.kept[weight.0].clone();
        if names.is_turned(parameter, names.weight_layout()) {
            axes.reverse();
        }
        (parameter.path.clone(), axes)
    });
    // During training, burn delays the last update of running statistics; `valid` applies it.
    if module.devices().iter().any(Device::is_autodiff) {
        drop(module.valid());
    }
    let mut mapper = Cutter { kept: kept.collect(), trail: Trail::default() };
    Ok(module.map(&mut mapper))
}

/// A graph with its groups, and the parameter of each weight.
struct UnitGraph<'g> {
    graph: &'g Graph,
    couplings: Couplings,
    parameters: BTreeMap<WeightId, Parameter>,
}

impl<'g> UnitGraph<'g> {
    fn of<M: Module>(module: &M, graph: &'g Graph, names: &NameMap) -> Result<Self> {
        let mut parameters = BTreeMap::new();
        for parameter in names.parameters(module)? {
            let name = names.file_name(&parameter);
            let Some(weight) = graph.weight(&name) else { continue };
            let (found, expected) = (shape_in_files(&parameter, names), &graph.weights[weight.0].shape.0);
            if found != *expected {
                let message = format!("has shape {found:?}, and the graph has {expected:?}");
                return Err(Error::config(message).at(&parameter.path));
            }
            parameters.insert(weight, parameter);
        }
        let is_missing = |weight: &usize| !parameters.contains_key(&WeightId(*weight));
        if let Some(weight) = (0..graph.weights.len()).find(is_missing) {
            let message = format!("the module has no parameter {:?}, which the graph has", graph.weights[weight].name);
            return Err(Error::config(message));
        }
        Ok(Self { graph, couplings: couplings(graph, &graph.lower()?)?, parameters })
    }

    fn parameter(&self, weight: WeightId) -> Result<&Parameter> {
        self.parameters.get(&weight).ok_or_else(|| Error::bug("a weight without a parameter"))
    }

    /// Returns the weights that read a unit, with the columns of their rows.
    fn readers(&self, id: UnitId) -> Result<Vec<(WeightId, Vec<usize>)>> {
        let group = self.couplings.groups.get(id.group);
        let Some((group, unit)) = group.and_then(|group| Some((group, group.units.get(id.unit)?))) else {
            return Err(Error::config(format!("found unit {} of group {}, which does not exist", id.unit, id.group)));
        };
        let mut found = Vec::new();
        for ((side, place), elements) in sides(self.graph, group).into_iter().zip(&group.places).zip(unit) {
            if side == PairSide::Inputs {
                let shape = &self.graph.weights[place.weight.0].shape.0;
                let inner: usize = shape[place.axis + 1..].iter().product();
                // A matrix [in, out] has no axes of a kernel after its inputs.
                let inner = if place.axis == 0 { 1 } else { inner };
                let columns =
                    elements.iter().flat_map(|&element| element as usize * inner..(element as usize + 1) * inner);
                found.push((place.weight, columns.collect()));
            }
        }
        Ok(found)
    }
}

/// Returns the shape of a parameter in files.
fn shape_in_files(parameter: &Parameter, names: &NameMap) -> Vec<usize> {
    let mut shape = parameter.shape.0.clone();
    if names.is_turned(parameter, names.weight_layout()) {
        shape.reverse();
    }
    shape
}

/// Keeps some indices along each axis of parameters, by path.
struct Cutter {
    kept: BTreeMap<String, Vec<KeptIndices>>,
    trail: Trail,
}

impl ModuleMapper for Cutter {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(axes) = self.kept.get(&self.trail.path()).filter(|axes| axes.iter().any(Option::is_some)) else {
            return param;
        };
        let id = param.id;
        let is_trained = param.is_require_grad();
        let mut tensor = param.val().without_autodiff();
        for (axis, kept) in axes.iter().enumerate() {
            let Some(kept) = kept else { continue };
            let places: Vec<i64> = kept.iter().map(|&place| place as i64).collect();
            let places = Tensor::<1, Int>::from_data(TensorData::new(places, [kept.len()]), &tensor.device());
            tensor = tensor.select(axis, places);
        }
        let tensor = Tensor::from_data(tensor.into_data(), &param.device());
        Param::initialized(id, if is_trained { tensor.require_grad() } else { tensor })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        param
    }
}
