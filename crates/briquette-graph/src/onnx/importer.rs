//! The state of an import: the meaning of each name, and the graph so far.

use super::given_tensor::{GivenTensor, has_loose_elements};
use super::input_shapes::InputDims;
use super::item::{self, Item};
use super::questions::Questions;
use crate::expand::expand;
use crate::expansion::Expansion;
use crate::graph::{Graph, GraphInput, InputSource, Node, NodeId, Operand, ValueId, Weight, WeightId};
use crate::op::{Op, Primitive};
use briquette_core::{DType, Error, OutputAxis, Result, Shape};
use briquette_formats::InputFile;
use briquette_formats::onnx::{self, CodeOrder, CodedWeight, Constant, Model, Tensor, ValueInfo};
use std::collections::{BTreeMap, BTreeSet};

/// Most elements of a tensor whose values are computed.
pub(super) const MAX_KNOWN: usize = 1 << 16;

/// Most elements of an integer tensor that a graph for running holds.
pub(super) const MAX_HELD: usize = 1 << 22;

/// Returns whether a number of `TensorProto.DataType` is an integer or truth type.
pub(super) fn is_integer_type(data_type: i64) -> bool {
    matches!(data_type, 2..=7 | 9 | 12 | 13)
}

/// The state outside of a graph inside of a node: its names, its node, and its path.
pub(super) struct SubgraphScope<'a> {
    names: BTreeMap<&'a str, Item>,
    /// Shapes outside of a function, whose values may have the same names.
    declared: Option<BTreeMap<&'a str, &'a ValueInfo>>,
    place: String,
    outer: String,
}

/// A graph that is being built.
pub(super) struct Importer<'a> {
    file: &'a InputFile,
    /// The version of ONNX's operators.
    pub(super) opset: i64,
    pub(super) graph: Graph,
    /// The shape of each value; none for inner values that are being expanded.
    shapes: Vec<Option<Vec<usize>>>,
    names: BTreeMap<&'a str, Item>,
    tensors: Vec<GivenTensor<'a>>,
    weights: BTreeMap<String, WeightId>,
    declared: BTreeMap<&'a str, &'a ValueInfo>,
    /// The name of the node that is being imported.
    place: String,
    /// The path of the graph that is being imported; empty for the graph of the model.
    scope: String,
    /// Whether the graph is for running it: it then holds constants, and conversions of types are nodes.
    pub(super) runs: bool,
    /// Numbers that the model computes and the graph depends on.
    pub(super) questions: Questions,
    /// The values with integers or truth values.
    integers: BTreeSet<ValueId>,
    /// The weights with codes, in a graph for running.
    pub(super) coded: BTreeMap<String, CodedWeight>,
}

impl<'a> Importer<'a> {
    /// An empty graph of a model.
    pub(super) fn new(file: &'a InputFile, model: &Model) -> Self {
        Self {
            file,
            opset: model.opset(),
            graph: Graph { family: "onnx".into(), ..Graph::default() },
            shapes: Vec::new(),
            names: BTreeMap::new(),
            tensors: Vec::new(),
            weights: BTreeMap::new(),
            declared: BTreeMap::new(),
            place: String::new(),
            scope: String::new(),
            runs: false,
            questions: Questions::default(),
            integers: BTreeSet::new(),
            coded: BTreeMap::new(),
        }
    }

    /// Adds the initializers of a graph, and the shapes that it declares.
    pub(super) fn add_tensors(&mut self, graph: &'a onnx::OnnxGraph) {
        self.declared.extend(graph.values.iter().chain(&graph.outputs).map(|info| (info.name.as_str(), info)));
        for tensor in &graph.initializers {
            self.add_tensor(&tensor.name, tensor, true);
        }
    }

    /// Adds a tensor with values; checkpoints may list those of the model's graph.
    pub(super) fn add_tensor(&mut self, name: &'a str, tensor: &'a Tensor, is_listed: bool) {
        self.names.insert(name, Item::Tensor(self.tensors.len()));
        let is_inner = !self.scope.is_empty();
        let own = if is_inner { format!("{}/{name}", self.scope) } else { name.to_string() };
        let is_listed = is_listed && !is_inner;
        self.tensors.push(GivenTensor { name: own, tensor, is_listed, decoded: None });
    }

    /// Returns the decoded floats of the codes of a name, by the scales of another; `None` if checkpoints do not decode them so.
    ///
    /// Codes that are stored by input become the transposed matrix of `[out, in]`.
    pub(super) fn decoded(&mut self, codes: &str, scale: &str) -> Option<Item> {
        let coded = self.coded.get(codes).filter(|coded| coded.scale == scale)?.clone();
        let &Item::Tensor(stored) = self.item(&coded.codes)? else { return None };
        let GivenTensor { name, tensor, is_listed, .. } = &self.tensors[stored];
        is_listed.then_some(())?;
        let is_turned = matches!(coded.order, CodeOrder::Groups(groups) if groups.is_turned);
        let decoded = GivenTensor { name: name.clone(), tensor, is_listed: true, decoded: Some(coded) };
        self.tensors.push(decoded);
        let index = self.tensors.len() - 1;
        Some(if is_turned { Item::Turned(index) } else { Item::Tensor(index) })
    }

    /// Begins a graph inside of a node. Its names are forgotten by [`leave`](Self::leave).
    pub(super) fn enter(&mut self, graph: &str) -> SubgraphScope<'a> {
        let inner = format!("{}/{}/{graph}", self.scope, self.place);
        let (names, place) = (self.names.clone(), self.place.clone());
        SubgraphScope { names, declared: None, place, outer: std::mem::replace(&mut self.scope, inner) }
    }

    /// Begins the nodes of a function, which know no names but their own.
    pub(super) fn enter_function(&mut self) -> SubgraphScope<'a> {
        let scope = self.enter("function");
        self.names.clear();
        SubgraphScope { declared: Some(std::mem::take(&mut self.declared)), ..scope }
    }

    /// Ends a graph inside of a node.
    pub(super) fn leave(&mut self, scope: SubgraphScope<'a>) {
        (self.names, self.place, self.scope) = (scope.names, scope.place, scope.outer);
        self.declared = scope.declared.unwrap_or_else(|| std::mem::take(&mut self.declared));
    }

    /// Adds an input.
    ///
    /// # Errors
    /// Input: its rank is not known, or its name is taken.
    pub(super) fn add_input(&mut self, input: &'a ValueInfo, dims: &InputDims) -> Result<()> {
        let shape = dims.shape(input)?;
        let value = self.value(&input.name, shape.clone());
        if is_integer_type(input.data_type) {
            self.integers.insert(value);
        }
        let number = dims.numbers.get(&input.name).filter(|_| shape.iter().product::<usize>() == 1);
        let item = number.map(|&number| {
            item::known(Constant {
                shape: shape.clone(),
                is_integer: is_integer_type(input.data_type),
                values: vec![number],
            })
        });
        self.graph.inputs.push(GraphInput { value, shape, source: InputSource::Caller });
        if self.names.insert(&input.name, item.unwrap_or(Item::Value(value))).is_some() {
            return Err(
                Error::input("is the name of two inputs; the file is damaged").at(format_args!("{:?}", input.name))
            );
        }
        Ok(())
    }

    /// Gives a name to what a node computes.
    ///
    /// # Errors
    /// Input: the name is taken.
    pub(super) fn bind(&mut self, name: &'a str, item: Item) -> Result<()> {
        match self.names.insert(name, item) {
            None => Ok(()),
            Some(_) => Err(Error::input(format!("computes {name:?}, which has a value already; the file is damaged"))),
        }
    }

    /// Returns the item of a name.
    pub(super) fn item(&self, name: &str) -> Option<&Item> {
        self.names.get(name)
    }

    /// The static shape that the file declares for a value.
    pub(super) fn declared_shape(&self, name: &str) -> Option<Vec<usize>> {
        let dims = self.declared.get(name)?.shape.as_ref()?;
        let extent = |dim: &onnx::Dim| if let onnx::Dim::Extent(extent) = dim { Some(*extent) } else { None };
        dims.iter().map(extent).collect::<Option<Vec<usize>>>().filter(|shape| !shape.contains(&0))
    }

    /// The tensor of an index, with its name.
    pub(super) fn given(&self, index: usize) -> &GivenTensor<'a> {
        &self.tensors[index]
    }

    /// Whether a node uses the tensor of an index already.
    pub(super) fn is_used(&self, index: usize) -> bool {
        self.weights.contains_key(&self.given(index).name)
    }

    /// The number of axes of an operand.
    pub(super) fn operand_rank(&self, operand: Operand) -> usize {
        match operand {
            Operand::Value(value) => self.shapes[value.0].as_ref().map_or(0, Vec::len),
            Operand::Weight(weight) => self.graph.weights[weight.0].shape.rank(),
        }
    }

    /// The tensor of an index.
    pub(super) fn tensor(&self, index: usize) -> &'a Tensor {
        self.tensors[index].tensor
    }

    /// Returns the static shape of an item.
    pub(super) fn shape(&self, item: &Item) -> Option<Vec<usize>> {
        match item {
            Item::Value(value) => self.shapes[value.0].clone(),
            Item::Tensor(index) => Some(self.given(*index).extents().to_vec()),
            Item::Turned(index) => Some(self.given(*index).extents().iter().rev().copied().collect()),
            Item::Known(constant) => Some(constant.shape.clone()),
            Item::Opaque(_) | Item::Codes(..) => None,
        }
    }

    /// Returns the values of an item that are known: computed ones, integers, and single floats.
    pub(super) fn known(&self, item: &Item) -> Option<Constant> {
        match item {
            Item::Known(constant) => Some(Constant::clone(constant)),
            Item::Tensor(index) if self.tensors[*index].decoded.is_none() => {
                let tensor = self.tensor(*index);
                let is_weight = tensor.dtype()?.is_weight();
                let is_small = tensor.n_elements()? <= if is_weight { 1 } else { MAX_KNOWN };
                if is_small { self.values(item) } else { None }
            }
            _ => None,
        }
    }

    /// Returns the values of a parameter of a node, such as axes, scales or bounds.
    pub(super) fn values(&self, item: &Item) -> Option<Constant> {
        match item {
            Item::Known(constant) => Some(Constant::clone(constant)),
            Item::Tensor(index) if self.tensors[*index].decoded.is_none() => self.values_of(self.tensor(*index)),
            _ => None,
        }
    }

    /// Returns the values of a small tensor.
    pub(super) fn values_of(&self, tensor: &Tensor) -> Option<Constant> {
        tensor.constant(self.file, MAX_KNOWN).ok().flatten()
    }

    /// Returns an operand for an item; `None` if its shape is not known or it is empty.
    pub(super) fn operand(&mut self, item: &Item) -> Option<Operand> {
        match item {
            Item::Value(value) => Some((*value).into()),
            Item::Tensor(index) => Some(self.weight(*index)?.into()),
            Item::Turned(index) => {
                let weight = self.weight(*index)?;
                Some(self.emit(Primitive::Transpose(vec![1, 0]), &[weight.into()])?.into())
            }
            Item::Known(constant) => {
                let name = format!("{}.constant{}", self.place, self.graph.weights.len());
                let dtype = if constant.is_integer { DType::I64 } else { DType::F32 };
                let weight = self.declare(&name, dtype, &constant.shape, true)?;
                if self.runs {
                    self.graph.constants.insert(name, constant.values.clone());
                }
                Some(weight.into())
            }
            Item::Opaque(_) | Item::Codes(..) => None,
        }
    }

    /// Returns the weight of a tensor.
    pub(super) fn weight(&mut self, index: usize) -> Option<WeightId> {
        let GivenTensor { name, tensor, is_listed, decoded } = &self.tensors[index];
        let (name, tensor, is_listed, is_decoded) = (name.clone(), *tensor, *is_listed, decoded.is_some());
        if let Some(known) = self.weights.get(&name) {
            return Some(*known);
        }
        // A type without a counterpart has the size of its integers.
        let dtype = if is_decoded { DType::F32 } else { tensor.dtype().unwrap_or(DType::U8) };
        if self.runs
            && (!is_listed || !dtype.is_weight() || tensor.shape.is_empty() || has_loose_elements(tensor))
            && let Some(constant) = tensor.constant(self.file, MAX_HELD).ok().flatten()
        {
            self.graph.constants.insert(name.clone(), constant.values);
        }
        let shape = self.given(index).extents().to_vec();
        self.declare(&name, dtype, &shape, !dtype.is_weight())
    }

    /// Returns whether the elements of an item are integers or truth values.
    pub(super) fn is_integer(&self, item: &Item) -> bool {
        match item {
            Item::Value(value) | Item::Opaque(value) => self.integers.contains(value),
            Item::Codes(..) => true,
            Item::Tensor(index) | Item::Turned(index) if self.tensors[*index].decoded.is_some() => false,
            Item::Known(constant) => constant.is_integer,
            Item::Tensor(index) | Item::Turned(index) => {
                self.tensor(*index).dtype().is_some_and(|dtype| !dtype.is_weight())
            }
        }
    }

    /// Notes that the elements of an item are integers or truth values.
    pub(super) fn mark_integer(&mut self, item: &Item) {
        if let Item::Value(value) = item {
            self.integers.insert(*value);
        }
    }

    fn declare(&mut self, name: &str, dtype: DType, shape: &[usize], is_buffer: bool) -> Option<WeightId> {
        if shape.contains(&0) {
            return None;
        }
        let shape = Shape(shape.to_vec());
        let weight =
            Weight { name: name.into(), dtype, shape, layout: OutputAxis::First, aliases: Vec::new(), is_buffer };
        self.graph.weights.push(weight);
        let id = WeightId(self.graph.weights.len() - 1);
        self.weights.insert(name.into(), id);
        Some(id)
    }

    /// Adds a node with one output.
    pub(super) fn emit(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Option<ValueId> {
        match self.emit_all(op, inputs)?.as_slice() {
            [value] => Some(*value),
            _ => None,
        }
    }

    /// Adds a node; `None` if its inputs do not fit.
    pub(super) fn emit_all(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Option<Vec<ValueId>> {
        let op = op.into();
        let n_before = self.shapes.len();
        let shapes = std::mem::take(&mut self.shapes);
        let mut to = Expansion { weights: &self.graph.weights, steps: Vec::new(), shapes, origin: NodeId(0) };
        let found = expand(&mut to, &op, inputs).ok();
        self.shapes = to.shapes;
        let of_output = |value: &ValueId| self.shapes[value.0].clone();
        let found: Option<Vec<Vec<usize>>> = found.and_then(|found| found.iter().map(of_output).collect());
        self.shapes.truncate(n_before);
        let name = self.place.clone();
        let outputs: Vec<ValueId> = found?.into_iter().map(|shape| self.value(&name, shape)).collect();
        self.graph.nodes.push(Node { name, op, inputs: inputs.to_vec(), outputs: outputs.clone() });
        Some(outputs)
    }

    fn value(&mut self, name: &str, shape: Vec<usize>) -> ValueId {
        self.graph.values.push(name.into());
        self.shapes.push(Some(shape));
        ValueId(self.graph.values.len() - 1)
    }

    /// Names the nodes that are added next.
    pub(super) fn begin(&mut self, name: String) {
        self.place = name;
    }

    /// Returns the value of an output. An output that is constant has an operation without inputs.
    ///
    /// # Errors
    /// Input: the output is empty.
    pub(super) fn output_value(&mut self, name: &str, item: &Item) -> Result<ValueId> {
        if let Item::Value(value) | Item::Opaque(value) = item {
            return Ok(*value);
        }
        self.place = name.to_string();
        let shape = self.shape(item).unwrap_or_default();
        let constant = Primitive::Unknown { name: "Constant".into(), shapes: vec![shape] };
        let inputs: Vec<Operand> = self.operand(item).into_iter().collect();
        self.emit(constant, &inputs).ok_or_else(|| Error::input("is an empty output").at(format_args!("{name:?}")))
    }

    /// Returns the values of the model's graph by their names in the file.
    pub(super) fn value_names(&self) -> BTreeMap<String, ValueId> {
        let value = |(name, item): (&&str, &Item)| match item {
            Item::Value(value) => Some(((*name).to_string(), *value)),
            _ => None,
        };
        self.names.iter().filter_map(value).collect()
    }

    /// Names of tensors that no node uses.
    pub(super) fn unused(&self) -> Vec<String> {
        let names = self.tensors.iter().filter(|tensor| tensor.is_listed).map(|tensor| &tensor.name);
        names.filter(|name| !self.weights.contains_key(*name)).cloned().collect()
    }
}
