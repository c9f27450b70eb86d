//! Loops, unrolled: a graph for running has the nodes of the body once for each iteration.

use super::element_wise::chosen;
use super::importer::Importer;
use super::item::{Item, known};
use super::layout::reshaped;
use crate::graph::Operand;
use crate::op::Primitive;
use briquette_core::{Error, Result};
use briquette_formats::onnx::{self, AttributeValue, Constant, OnnxGraph};

/// Most iterations of a loop.
const MAX_ITERATIONS: i64 = 1024;

/// Imports the nodes of a graph inside of a node.
pub(super) type BodyNodes<'a, 'b> = dyn FnMut(&mut Importer<'a>, &'a OnnxGraph) -> Result<()> + 'b;

/// Returns the outputs of a `Loop` node: the last value of each variable, then the values of all iterations.
///
/// `None` if there are more than 1,024 iterations, or a number has to be computed first. A condition that is not known is computed first
/// only if there is no limit or values are collected; elsewhere, variables keep their values once it is false.
///
/// # Errors
/// Input: a node of the body is damaged.
pub(super) fn unrolled<'a>(
    to: &mut Importer<'a>,
    node: &'a onnx::Node,
    inputs: &[Option<Item>],
    body_nodes: &mut BodyNodes<'a, '_>,
) -> Result<Option<Vec<Item>>> {
    let Some(AttributeValue::Graph(body)) = node.attribute("body") else { return Ok(None) };
    let n_variables = inputs.len().saturating_sub(2);
    let given: Option<Vec<Item>> = inputs.iter().skip(2).cloned().collect();
    let (Some(variables), true) = (given, body.inputs.len() == n_variables + 2 && body.outputs.len() > n_variables)
    else {
        return Ok(None);
    };
    let limit = match inputs.first().and_then(Option::as_ref) {
        None => Some(i64::MAX),
        Some(limit) => number_of(to, limit).map(|limit| limit as i64),
    };
    let Some(limit) = limit.or(to.questions.only_plans().then_some(1)) else { return Ok(None) };
    let condition = inputs.get(1).cloned().flatten().unwrap_or_else(|| number(1.0));
    let mut state =
        Unrolled { variables, condition, collected: vec![Vec::new(); body.outputs.len() - n_variables - 1] };
    for at in 0..limit {
        let may_be_unknown = limit <= MAX_ITERATIONS && state.collected.is_empty();
        if !may_be_unknown && !state.decide(to, at) {
            return Ok(None);
        }
        match state.is_running(to) {
            Some(false) => break,
            _ if at >= MAX_ITERATIONS => return Ok(None),
            _ => {}
        }
        if state.iterate(to, body, at, body_nodes)?.is_none() {
            return Ok(None);
        }
    }
    Ok(state.outputs(to))
}

/// Returns the value of a single number: a known one, or the answer to a question.
fn number_of(to: &mut Importer, item: &Item) -> Option<f64> {
    if let Some(known) = to.known(item) {
        return known.values.first().copied();
    }
    let Item::Value(value) = item else { return None };
    let is_single = to.shape(item)?.iter().product::<usize>() == 1;
    if is_single { to.questions.ask(*value) } else { None }
}

/// A single number as an item.
fn number(value: f64) -> Item {
    known(Constant { shape: Vec::new(), is_integer: true, values: vec![value] })
}

struct Unrolled {
    /// The values of the variables.
    variables: Vec<Item>,
    /// Whether the next iteration runs.
    condition: Item,
    /// The values of each iteration, by output.
    collected: Vec<Vec<Item>>,
}

impl Unrolled {
    /// Returns whether the next iteration runs, if it is known.
    fn is_running(&self, to: &Importer) -> Option<bool> {
        to.known(&self.condition)?.values.first().map(|value| *value != 0.0)
    }

    /// Finds out whether an iteration runs; returns whether that is known now.
    fn decide(&mut self, to: &mut Importer, at: i64) -> bool {
        let is_first = f64::from(u8::from(at == 0));
        let found = number_of(to, &self.condition).or(to.questions.only_plans().then_some(is_first));
        if let Some(found) = found {
            self.condition = number(found);
        }
        found.is_some()
    }

    /// Adds the nodes of an iteration; `None` if shapes change where the condition is not known.
    fn iterate<'a>(
        &mut self,
        to: &mut Importer<'a>,
        body: &'a OnnxGraph,
        at: i64,
        body_nodes: &mut BodyNodes<'a, '_>,
    ) -> Result<Option<()>> {
        let scope = to.enter("body");
        let given = [number(at as f64), self.condition.clone()].into_iter().chain(self.variables.iter().cloned());
        for (input, item) in body.inputs.iter().zip(given) {
            to.bind(&input.name, item)?;
        }
        to.add_tensors(body);
        body_nodes(to, body)?;
        let output = |output: &onnx::ValueInfo| {
            let missing =
                || Error::input(format!("lacks the output {:?} of its body; the file is damaged", output.name));
            to.item(&output.name).cloned().ok_or_else(missing)
        };
        let found = body.outputs.iter().map(output).collect::<Result<Vec<_>>>()?;
        to.leave(scope);
        let is_known = self.is_running(to).is_some();
        let (condition, rest) = found.split_at(1);
        let (variables, collected) = rest.split_at(self.variables.len());
        let mut next = variables.to_vec();
        if !is_known {
            // An iteration after the last one changes nothing.
            for (new, old) in next.iter_mut().zip(&self.variables) {
                let Some(kept) = chosen(to, &self.condition, new, old) else { return Ok(None) };
                *new = kept;
            }
        }
        self.condition = match is_known {
            true => condition[0].clone(),
            false => {
                let Some(both) = chosen(to, &self.condition, &condition[0], &self.condition) else { return Ok(None) };
                both
            }
        };
        self.variables = next;
        self.collected.iter_mut().zip(collected).for_each(|(all, item)| all.push(item.clone()));
        Ok(Some(()))
    }

    /// Returns the variables and the joined values; `None` if an output is empty.
    fn outputs(self, to: &mut Importer) -> Option<Vec<Item>> {
        let mut found = self.variables;
        for items in self.collected {
            let mut parts: Vec<Operand> = Vec::with_capacity(items.len());
            for item in items {
                let shape = [vec![1], to.shape(&item)?].concat();
                let row = reshaped(to, &item, shape)?;
                parts.push(to.operand(&row)?);
            }
            (!parts.is_empty()).then_some(())?;
            found.push(Item::Value(to.emit(Primitive::Concat { axis: 0 }, &parts)?));
        }
        Some(found)
    }
}
