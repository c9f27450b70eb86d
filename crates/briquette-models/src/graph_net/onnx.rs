//! Networks of ONNX models: a graph and a program for each shape of the inputs.

use super::blank::{as_pattern, names, shrink_to_fit};
use super::checked_nodes::check_nodes;
use super::dropout::GraphDropout;
use super::exact::ExactNodes;
use super::example::EXAMPLE;
use super::onnx_input::gives_classes;
use super::onnx_programs::{OnnxProgram, OnnxPrograms, ProgramKey};
use super::parts::BlockCuts;
use super::program::{GraphProgram, needed_nodes};
use super::value::{AnyTensor, ValueObserver};
use super::weights::{BlankLayers, blank_layers};
use super::{GraphNet, GraphOutline, RunTokens};
use crate::fresh::Initial;
use briquette_core::{Error, Result, shown_path};
use briquette_formats::InputFile;
use briquette_graph::onnx::{ImportedGraph, InputDims, RunnableModel};
use briquette_graph::{Config, Graph, InputSource, ValueId};
use briquette_nn::NameMap;
use burn::tensor::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Most programs that are kept; texts have many lengths.
const MAX_PROGRAMS: usize = 64;

/// The values that a run is given, by their ids in the network's graph.
type Given = Vec<(ValueId, AnyTensor)>;

impl GraphNet {
    /// Creates the unfilled network of an ONNX model and its name map.
    ///
    /// # Errors
    /// - Config: an operator cannot be run; the error names it.
    /// - Input: the file is damaged.
    /// - Io: the file cannot be read.
    pub(super) fn of_onnx(path: &Path, dims: &InputDims, config: &Config, device: &Device) -> Result<(Self, NameMap)> {
        Self::of_model(path, dims, config, device).map_err(|error| error.at(shown_path(path)))
    }

    fn of_model(path: &Path, dims: &InputDims, config: &Config, device: &Device) -> Result<(Self, NameMap)> {
        let model = RunnableModel::read(InputFile::open(path)?)?;
        let mut graph = model.graph(dims)?;
        let shapes = graph.lower()?.shapes;
        shrink_to_fit(&mut graph);
        let Some(&output) = graph.outputs.first() else {
            return Err(Error::config("the graph has no output"));
        };
        let exact = ExactNodes::of(&graph, &shapes);
        let layers_of = |wanted: &[ValueId]| {
            let needed = needed_nodes(&graph, &[], wanted);
            check_nodes(&graph, &shapes, &needed)?;
            let found = blank_layers(&graph, Some(exact.clone()), &needed, Initial::default(), device)?;
            Ok::<_, Error>((needed, found))
        };
        // Further outputs may need operators that cannot be run.
        let (needed, found) = layers_of(&graph.outputs).or_else(|_| layers_of(&[output]))?;
        let BlankLayers { layers, index, renames } = found;
        let names = names(&graph, &needed, renames)?.with_integers();
        let kept: BTreeSet<&str> = index.weights().map(|weight| graph.weights[weight.0].name.as_str()).collect();
        let others = graph.weights.iter().map(|weight| weight.name.as_str()).filter(|name| !kept.contains(name));
        let mut others = others.chain(graph.unused.iter().map(String::as_str));
        let names = others.try_fold(names, |names, name| names.ignore(&as_pattern(name)))?;
        let cuts = BlockCuts::whole(&graph, output);
        let classifies_text = gives_classes(&model, &graph, &shapes[output.0], config);
        let onnx = Some(OnnxPrograms { model, programs: Mutex::default() });
        let (dropped, programs, max_tokens) = (BTreeSet::new(), Mutex::default(), None);
        let (states, last_state) = (output, output);
        let outline = GraphOutline {
            graph,
            shapes,
            index,
            dropped,
            output,
            states,
            classifies_text,
            classes_of_last_token: false,
            last_state,
            cuts,
            max_tokens,
            source: None,
            onnx,
            programs,
        };
        Ok((Self { layers, dropout: GraphDropout::default(), outline: Arc::new(outline) }, names))
    }

    /// Computes all outputs of an ONNX model from its inputs, both by name. Indices and truth values are floats.
    ///
    /// # Errors
    /// - Config: the network comes from no ONNX model, or cannot be run for these shapes.
    /// - Input: an input is missing or has another shape.
    pub fn run_named(&self, inputs: &BTreeMap<String, AnyTensor>) -> Result<Vec<(String, AnyTensor)>> {
        let Some(onnx) = &self.outline.onnx else {
            return Err(Error::config("found a network of a family, expected an ONNX model"));
        };
        let graph = self.graph();
        let given = graph.inputs.iter().map(|input| {
            let name = &graph.values[input.value.0];
            let problem = |what: &str| Error::input(what).at(format!("input {name:?}"));
            let value = inputs.get(name).cloned().ok_or_else(|| problem("is missing"))?;
            match value.dims().contains(&0) {
                true => Err(problem("has no elements")),
                false => Ok((input.value, value)),
            }
        });
        let (given, program) = self.onnx_program(onnx, given.collect::<Result<_>>()?, &graph.outputs, false)?;
        let found = self.begin(given, RunTokens::default()).finish(&program.program);
        Ok(onnx.model.output_names().into_iter().map(str::to_string).zip(found).collect())
    }

    /// Computes values from the inputs. A model with a fixed batch of 1 computes one item at a time.
    ///
    /// # Panics
    /// If an input is missing, or the model does not take its shape.
    pub(super) fn run_onnx(&self, onnx: &OnnxPrograms, given: Given, wanted: &[ValueId]) -> Vec<AnyTensor> {
        let items = items(onnx, given).into_iter().map(|given| {
            let (given, program) = self.expected_program(onnx, given, wanted);
            self.begin(given, RunTokens::default()).finish(&program.program)
        });
        let mut items: Vec<Vec<AnyTensor>> = items.collect();
        if items.len() == 1 {
            return items.remove(0);
        }
        (0..wanted.len()).map(|at| AnyTensor::joined(items.iter().map(|item| item[at].clone()).collect(), 0)).collect()
    }

    /// Passes the inputs of all layers to probes.
    ///
    /// # Panics
    /// See [`run_onnx`](Self::run_onnx).
    pub(super) fn observe_onnx(&self, onnx: &OnnxPrograms, given: Given, wanted: &[ValueId]) {
        for given in items(onnx, given) {
            let (given, program) = self.expected_program(onnx, given, wanted);
            self.begin(given, RunTokens::default()).observe(&program.program);
        }
    }

    /// Passes values to `each` as they are computed.
    ///
    /// # Errors
    /// Errors of `each`, and of a model that does not take these inputs.
    pub(super) fn observe_onnx_values(
        &self,
        onnx: &OnnxPrograms,
        given: Given,
        values: &[ValueId],
        each: &mut ValueObserver,
    ) -> Result<()> {
        for given in items(onnx, given) {
            let (given, program) = self.onnx_program(onnx, given, values, true)?;
            let ids: BTreeMap<ValueId, ValueId> = program.wanted.iter().copied().zip(values.iter().copied()).collect();
            let mut each_own = |id: ValueId, value: &AnyTensor| ids.get(&id).map_or(Ok(()), |id| each(*id, value));
            given.iter().try_for_each(|(id, value)| each_own(*id, value))?;
            self.begin(given, RunTokens::default()).finish_observing(
                &program.program,
                &program.wanted,
                &mut each_own,
            )?;
        }
        Ok(())
    }

    fn expected_program(&self, onnx: &OnnxPrograms, given: Given, wanted: &[ValueId]) -> (Given, Arc<OnnxProgram>) {
        self.onnx_program(onnx, given, wanted, false).unwrap_or_else(|error| panic!("the model does not run: {error}"))
    }

    /// Returns the inputs as floats of whole shapes, and the program for them.
    fn onnx_program(
        &self,
        onnx: &OnnxPrograms,
        given: Given,
        wanted: &[ValueId],
        is_observed: bool,
    ) -> Result<(Given, Arc<OnnxProgram>)> {
        let graph = self.graph();
        if wanted.iter().all(|value| given.iter().any(|(known, _)| known == value)) {
            let names: Vec<ValueId> = given.iter().map(|(value, _)| *value).collect();
            let program = (*self.outline.program(&names, wanted)).clone();
            let (wanted, is_question) = (wanted.to_vec(), false);
            return Ok((given, Arc::new(OnnxProgram { program, inputs: names, wanted, is_question })));
        }
        let mut given: BTreeMap<ValueId, AnyTensor> = given.into_iter().collect();
        let ordered = graph.inputs.iter().map(|input| {
            let missing = || Error::input("is missing").at(format!("input {:?}", graph.values[input.value.0]));
            given.remove(&input.value).map(AnyTensor::floats).ok_or_else(missing)
        });
        let ordered = of_whole_texts(graph, ordered.collect::<Result<_>>()?);
        let shapes: Vec<Vec<usize>> = ordered.iter().map(AnyTensor::dims).collect();
        let number = |at: usize| Ok((at, ordered[at].to_f32("an input")?.first().map_or(0, |number| *number as i64)));
        let numbers = onnx.model.numbers().into_iter().map(number).collect::<Result<_>>()?;
        let mut key = ProgramKey { shapes, numbers, answers: Vec::new(), wanted: wanted.to_vec(), is_observed };
        loop {
            let program = self.outline.onnx_program(onnx, &key)?;
            let given = program.inputs.iter().copied().zip(ordered.iter().cloned()).collect();
            if !program.is_question {
                return Ok((given, program));
            }
            let found = self.begin(given, RunTokens::default()).finish(&program.program);
            let answer = found.first().map(|found| found.to_f32("a number of the model")).transpose()?;
            key.answers.push(f64::from(answer.and_then(|answer| answer.first().copied()).unwrap_or(0.0)).to_bits());
        }
    }
}

impl GraphOutline {
    /// Returns the program for inputs of these shapes.
    fn onnx_program(&self, onnx: &OnnxPrograms, key: &ProgramKey) -> Result<Arc<OnnxProgram>> {
        // A poisoned lock only means that another thread panicked elsewhere.
        let lock = || onnx.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(key) {
            return Ok(Arc::clone(known));
        }
        let program = Arc::new(self.new_onnx_program(onnx, key)?);
        let mut programs = lock();
        if programs.len() >= MAX_PROGRAMS {
            programs.clear();
        }
        programs.insert(key.clone(), Arc::clone(&program));
        Ok(program)
    }

    fn new_onnx_program(&self, onnx: &OnnxPrograms, key: &ProgramKey) -> Result<OnnxProgram> {
        let given: Vec<String> = onnx.model.given().into_iter().map(|input| input.name.clone()).collect();
        let numbers = key.numbers.iter().map(|(at, number)| (given[*at].clone(), *number as f64)).collect();
        let shapes = given.iter().cloned().zip(key.shapes.iter().cloned()).collect();
        let answers = Some(key.answers.iter().copied().map(f64::from_bits).collect());
        let dims = InputDims { extents: EXAMPLE, shapes, numbers, answers, ..InputDims::default() };
        let ImportedGraph { graph, question, .. } = onnx.model.named_graph(&dims)?;
        let shapes = graph.lower()?.shapes;
        let index = self.index.of_same_layers(&self.graph, &graph, &shapes)?;
        let wanted = match question {
            Some(question) => vec![question],
            None => key.wanted.iter().map(|value| self.same_value(*value, &graph)).collect::<Result<_>>()?,
        };
        let inputs: Vec<ValueId> = graph.inputs.iter().map(|input| input.value).collect();
        check_nodes(&graph, &shapes, &needed_nodes(&graph, &inputs, &wanted))?;
        let is_question = question.is_some();
        let plan = if key.is_observed && !is_question { GraphProgram::observed } else { GraphProgram::new };
        let program = plan(&graph, &shapes, &index, &self.dropped, [&inputs, &wanted]);
        Ok(OnnxProgram { program, inputs, wanted, is_question })
    }

    /// Returns the value of another graph of the same model: the same output, or the value of the same name.
    fn same_value(&self, value: ValueId, other: &Graph) -> Result<ValueId> {
        if let Some(at) = self.graph.outputs.iter().position(|output| *output == value) {
            return Ok(other.outputs[at]);
        }
        let name = &self.graph.values[value.0];
        let has_name =
            |graph: &Graph| (0..graph.values.len()).filter(|at| graph.values[*at] == *name).collect::<Vec<_>>();
        let place = has_name(&self.graph).iter().position(|at| *at == value.0).unwrap_or_default();
        let found = has_name(other).get(place).copied().map(ValueId);
        found.ok_or_else(|| Error::config(format!("the graph for another shape has no value {name:?}")))
    }
}

/// Cuts a batch into items, if the model takes one at a time.
fn items(onnx: &OnnxPrograms, given: Given) -> Vec<Given> {
    let n = given.iter().filter_map(|(_, value)| value.dims().first().copied()).max().unwrap_or(1);
    if onnx.model.fixed_batch() != Some(1) || n == 1 {
        return vec![given];
    }
    let item = |at: usize| {
        let one = |(value, tensor): &(ValueId, AnyTensor)| {
            let tensor = tensor.clone().floats();
            let is_shared = tensor.dims().first() == Some(&1);
            (*value, if is_shared { tensor } else { tensor.narrowed(0, at, 1) })
        };
        given.iter().map(one).collect()
    };
    (0..n).map(item).collect()
}

/// Repeats inputs of texts that are the same for every item, such as positions.
fn of_whole_texts(graph: &Graph, values: Vec<AnyTensor>) -> Vec<AnyTensor> {
    let ids = graph.inputs.iter().position(|input| input.source == InputSource::TokenIds);
    let Some(shape) = ids.map(|at| values[at].dims()) else { return values };
    let is_of_text = |source: InputSource| source != InputSource::Caller && source != InputSource::Images;
    let whole = |(value, input): (AnyTensor, &briquette_graph::GraphInput)| match is_of_text(input.source) {
        true => value.expanded(&shape),
        false => value,
    };
    values.into_iter().zip(&graph.inputs).map(whole).collect()
}
