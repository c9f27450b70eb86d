//! Builds graphs node by node.

use crate::graph::{Block, Graph, GraphInput, InputSource, Node, Operand, ValueId, Weight, WeightId};
use crate::headers::Headers;
use crate::op::{Composite, ConvSettings, ElementFunction, Op, Primitive};
use briquette_core::{DType, Error, OutputAxis, Result, Shape};
use std::collections::BTreeMap;

/// Builds a graph over the tensors of a checkpoint.
///
/// Layers take the path of their tensors: `linear("fc1", x)` uses `fc1.weight`, and `fc1.bias` if there is one.
#[derive(Debug)]
pub struct GraphBuilder<'a> {
    headers: &'a Headers<'a>,
    graph: Graph,
    weights: BTreeMap<String, WeightId>,
    open: Vec<(String, usize)>,
}

impl<'a> GraphBuilder<'a> {
    /// An empty graph of a family.
    pub fn new(family: &str, headers: &'a Headers<'a>) -> Self {
        let graph = Graph { family: family.into(), ..Graph::default() };
        Self { headers, graph, weights: BTreeMap::new(), open: Vec::new() }
    }

    /// The tensors of the checkpoint.
    pub fn headers(&self) -> &'a Headers<'a> {
        self.headers
    }

    /// Adds an input of the graph that the caller gives.
    pub fn input(&mut self, name: &str, shape: &[usize]) -> ValueId {
        self.input_from(name, shape, InputSource::Caller)
    }

    /// Adds an input of the graph that a program makes from texts or images.
    pub fn input_from(&mut self, name: &str, shape: &[usize], source: InputSource) -> ValueId {
        let value = self.value(name.into());
        self.graph.inputs.push(GraphInput { value, shape: shape.to_vec(), source });
        value
    }

    /// The tokens of the graph's token ids; 1 before they are an input.
    pub fn n_tokens(&self) -> usize {
        let ids = self.graph.inputs.iter().find(|input| input.source == InputSource::TokenIds);
        ids.and_then(|input| input.shape.last().copied()).unwrap_or(1)
    }

    /// The items of a batch of the last input; 1 before there is one.
    pub fn batch(&self) -> usize {
        self.graph.inputs.last().and_then(|input| input.shape.first().copied()).unwrap_or(1)
    }

    /// The weight of this name.
    ///
    /// # Errors
    /// Input: the checkpoint has no such tensor.
    pub fn weight(&mut self, name: &str) -> Result<WeightId> {
        if let Some(known) = self.weights.get(name) {
            return Ok(*known);
        }
        let Some(info) = self.headers.get(name) else {
            let message = format!("the checkpoint lacks this tensor, which a {} needs", self.graph.family);
            return Err(Error::input(message).at(name));
        };
        Ok(self.declare(name, info.dtype, &info.shape.0))
    }

    /// The weight of this name as a buffer, which is no parameter.
    ///
    /// # Errors
    /// See [`weight`](Self::weight).
    pub fn buffer(&mut self, name: &str) -> Result<WeightId> {
        let weight = self.weight(name)?;
        self.graph.weights[weight.0].is_buffer = true;
        Ok(weight)
    }

    /// Returns whether a weight has this name or alias so far.
    pub fn has_weight(&self, name: &str) -> bool {
        self.weights.contains_key(name)
    }

    /// Adds a weight that is in no checkpoint: for graphs built by hand.
    pub fn declare(&mut self, name: &str, dtype: DType, shape: &[usize]) -> WeightId {
        let layout = if shape.len() == 2 { self.headers.layout() } else { OutputAxis::First };
        let shape = Shape(shape.to_vec());
        let weight = Weight { name: name.into(), dtype, shape, layout, aliases: Vec::new(), is_buffer: false };
        self.graph.weights.push(weight);
        let id = WeightId(self.graph.weights.len() - 1);
        self.weights.insert(name.into(), id);
        id
    }

    /// Gives a weight a further name: a tied weight, or its name in another program.
    pub fn alias(&mut self, weight: WeightId, name: &str) {
        self.weights.insert(name.into(), weight);
        self.graph.weights[weight.0].aliases.push(name.into());
    }

    /// Adds a node with one output.
    pub fn node(&mut self, name: &str, op: impl Into<Op>, inputs: &[Operand]) -> ValueId {
        self.nodes(name, op, inputs, 1)[0]
    }

    /// Adds a node with `n` outputs.
    pub fn nodes(&mut self, name: &str, op: impl Into<Op>, inputs: &[Operand], n: usize) -> Vec<ValueId> {
        let output = |index: usize| if n == 1 { name.to_string() } else { format!("{name}:{index}") };
        let outputs: Vec<ValueId> = (0..n).map(|index| self.value(output(index))).collect();
        let (op, inputs) = (op.into(), inputs.to_vec());
        self.graph.nodes.push(Node { name: name.into(), op, inputs, outputs: outputs.clone() });
        outputs
    }

    fn value(&mut self, name: String) -> ValueId {
        self.graph.values.push(name);
        ValueId(self.graph.values.len() - 1)
    }

    /// `path.weight`, and `path.bias` if there is one.
    fn weight_and_bias(&mut self, path: &str) -> Result<Vec<Operand>> {
        let mut found = vec![self.weight(&format!("{path}.weight"))?.into()];
        let bias = format!("{path}.bias");
        if self.headers.has(&bias) || self.weights.contains_key(&bias) {
            found.push(self.weight(&bias)?.into());
        }
        Ok(found)
    }

    /// Adds an operation with the inputs `x`, `path.weight`, and `path.bias` if there is one.
    ///
    /// # Errors
    /// See [`weight`](Self::weight).
    pub fn layer(&mut self, path: &str, op: impl Into<Op>, x: ValueId) -> Result<ValueId> {
        let mut inputs = vec![x.into()];
        inputs.extend(self.weight_and_bias(path)?);
        Ok(self.node(path, op, &inputs))
    }

    /// Adds a linear layer.
    ///
    /// # Errors
    /// See [`weight`](Self::weight); this holds for all layers.
    pub fn linear(&mut self, path: &str, x: ValueId) -> Result<ValueId> {
        self.layer(path, Composite::Linear, x)
    }

    /// Adds a linear layer whose weight is stored `[in, out]`, as GPT-2's `Conv1D`.
    ///
    /// # Errors
    /// See [`weight`](Self::weight).
    pub fn turned_linear(&mut self, path: &str, x: ValueId) -> Result<ValueId> {
        let weight = self.weight(&format!("{path}.weight"))?;
        self.graph.weights[weight.0].layout = OutputAxis::Last;
        self.linear(path, x)
    }

    /// Adds a lookup of rows.
    ///
    /// # Errors
    /// See [`weight`](Self::weight).
    pub fn embedding(&mut self, path: &str, indices: ValueId) -> Result<ValueId> {
        let name = format!("{path}.weight");
        let table = self.table(&name)?;
        Ok(self.node(path, Composite::Embedding, &[table.into(), indices.into()]))
    }

    /// Adds a lookup of rows in a table that is no `weight` of a layer.
    ///
    /// # Errors
    /// See [`weight`](Self::weight).
    pub fn lookup(&mut self, name: &str, indices: ValueId) -> Result<ValueId> {
        let table = self.table(name)?;
        Ok(self.node(name, Composite::Embedding, &[table.into(), indices.into()]))
    }

    /// The table of this name, whose rows are looked up.
    fn table(&mut self, name: &str) -> Result<WeightId> {
        let table = self.weight(name)?;
        let rank = self.graph.weights[table.0].shape.rank();
        if rank != 2 {
            return Err(Error::input(format!("found a table of rank {rank}, expected [rows, width]")).at(name));
        }
        self.graph.weights[table.0].layout = OutputAxis::First;
        Ok(table)
    }

    /// Adds a layer norm.
    ///
    /// # Errors
    /// See [`weight`](Self::weight).
    pub fn layer_norm(&mut self, path: &str, x: ValueId, eps: f64) -> Result<ValueId> {
        // TensorFlow's names, which bert-base-uncased still has.
        let op = Composite::LayerNorm { eps };
        if !self.headers.has(&format!("{path}.gamma")) {
            return self.layer(path, op, x);
        }
        let (gamma, beta) = (self.weight(&format!("{path}.gamma"))?, self.weight(&format!("{path}.beta"))?);
        Ok(self.node(path, op, &[x.into(), gamma.into(), beta.into()]))
    }

    /// Adds a root-mean-square norm.
    ///
    /// # Errors
    /// See [`weight`](Self::weight).
    pub fn rms_norm(&mut self, path: &str, x: ValueId, eps: f64) -> Result<ValueId> {
        self.layer(path, Composite::RmsNorm { eps, offset: 0.0 }, x)
    }

    /// Adds a batch norm with its running statistics.
    ///
    /// # Errors
    /// See [`weight`](Self::weight).
    pub fn batch_norm(&mut self, path: &str, x: ValueId, eps: f64) -> Result<ValueId> {
        let mut inputs = vec![x.into()];
        for (part, is_buffer) in [("weight", false), ("bias", false), ("running_mean", true), ("running_var", true)] {
            let weight = self.weight(&format!("{path}.{part}"))?;
            self.graph.weights[weight.0].is_buffer = is_buffer;
            inputs.push(weight.into());
        }
        Ok(self.node(path, Composite::BatchNorm { eps }, &inputs))
    }

    /// Adds a convolution.
    ///
    /// # Errors
    /// See [`weight`](Self::weight).
    pub fn conv(&mut self, path: &str, x: ValueId, settings: ConvSettings) -> Result<ValueId> {
        let weight = self.weight(&format!("{path}.weight"))?;
        if settings.transposed {
            self.graph.weights[weight.0].layout = OutputAxis::Second;
        }
        self.layer(path, Primitive::Conv(settings), x)
    }

    /// Adds an elementwise function of one value.
    pub fn function(&mut self, name: &str, function: ElementFunction, x: ValueId) -> ValueId {
        self.node(name, Primitive::Elementwise(function), &[x.into()])
    }

    /// Adds a sum, such as a residual connection.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.node(name, Primitive::Elementwise(ElementFunction::Add), &[a.into(), b.into()])
    }

    /// Begins a block.
    pub fn begin_block(&mut self, name: &str) {
        self.open.push((name.into(), self.graph.nodes.len()));
    }

    /// Ends the block that was begun last.
    ///
    /// # Panics
    /// If no block is open.
    pub fn end_block(&mut self) {
        let (name, start) = self.open.pop().expect("a block is open");
        self.graph.blocks.push(Block { name, nodes: start..self.graph.nodes.len() });
    }

    /// Ends the graph. Tensors that no node uses are listed in [`Graph::unused`].
    pub fn finish(mut self, outputs: &[ValueId]) -> Graph {
        self.graph.outputs = outputs.to_vec();
        let unused = self.headers.names().filter(|name| !self.weights.contains_key(*name));
        self.graph.unused = unused.map(str::to_string).collect();
        self.graph
    }
}
