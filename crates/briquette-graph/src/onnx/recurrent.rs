//! Recurrent layers. Only a graph for running has a rule for them.

use super::attributes::{int, text};
use super::importer::{Importer, MAX_HELD};
use super::inputs::NodeInputs;
use super::item::{Item, known};
use crate::op::{Primitive, ReadingOrder, Recurrent, RecurrentCell};
use briquette_formats::onnx::{AttributeValue, Constant, Node};

/// Imports an LSTM, GRU or RNN with the usual functions, whose items all have the same length.
pub(super) fn recurrent(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let node = given.node;
    let op = Recurrent { cell: cell(node)?, order: order(node)? };
    let (x, r) = (to.shape(given.get(0)?)?, to.shape(given.get(2)?)?);
    let (&[tokens, batch, _], &[directions, _, width]) = (x.as_slice(), r.as_slice()) else { return None };
    let is_plain = has_usual_functions(node, &op)
        && directions == op.n_directions()
        && !given.has(4)
        && !given.has(7)
        && node.attribute("clip").is_none()
        && int(node, "layout", 0) == 0
        && int(node, "input_forget", 0) == 0
        && tokens > 0;
    is_plain.then_some(())?;
    let n_states = directions.checked_mul(batch)?.checked_mul(width)?;
    (n_states.max(width) <= MAX_HELD).then_some(())?;
    let bias = vec![directions, 2 * op.n_gates() * width];
    let state = vec![directions, batch, width];
    let mut operands = Vec::new();
    for (position, shape) in [(3, bias), (5, state.clone()), (6, state)] {
        let is_cell = position == 6;
        if is_cell && op.cell != RecurrentCell::Lstm {
            continue;
        }
        let item = given.get(position).cloned().unwrap_or_else(|| zeros(shape.clone()));
        (to.shape(&item)? == shape).then_some(())?;
        operands.push(item);
    }
    let items = [given.get(0)?, given.get(1)?, given.get(2)?].into_iter().chain(&operands);
    let operands = items.map(|item| to.operand(item)).collect::<Option<Vec<_>>>()?;
    let found = to.emit_all(Primitive::Recurrent(op), &operands)?;
    Some(found.into_iter().map(Item::Value).collect())
}

fn zeros(shape: Vec<usize>) -> Item {
    let values = vec![0.0; shape.iter().product()];
    known(Constant { shape, is_integer: false, values })
}

fn cell(node: &Node) -> Option<RecurrentCell> {
    match node.op_type.as_str() {
        "LSTM" => Some(RecurrentCell::Lstm),
        "GRU" => Some(RecurrentCell::Gru { resets_product: int(node, "linear_before_reset", 0) != 0 }),
        "RNN" => Some(RecurrentCell::Rnn),
        _ => None,
    }
}

fn order(node: &Node) -> Option<ReadingOrder> {
    match text(node, "direction", "forward") {
        "forward" => Some(ReadingOrder::Forward),
        "reverse" => Some(ReadingOrder::Backward),
        "bidirectional" => Some(ReadingOrder::Both),
        _ => None,
    }
}

/// Returns whether gates are sigmoids, and states are hyperbolic tangents.
fn has_usual_functions(node: &Node, op: &Recurrent) -> bool {
    let usual: &[&[u8]] = match op.cell {
        RecurrentCell::Rnn => &[b"Tanh"],
        RecurrentCell::Gru { .. } => &[b"Sigmoid", b"Tanh"],
        RecurrentCell::Lstm => &[b"Sigmoid", b"Tanh", b"Tanh"],
    };
    match node.attribute("activations") {
        None => true,
        Some(AttributeValue::Texts(names)) => {
            names.len() == usual.len() * op.n_directions()
                && names.iter().zip(usual.iter().cycle()).all(|(name, usual)| name.eq_ignore_ascii_case(usual))
        }
        Some(_) => false,
    }
}
