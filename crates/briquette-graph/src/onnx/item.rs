//! Items: the meanings of names in an ONNX graph.

use crate::graph::ValueId;
use crate::op::FixedGrid;
use briquette_formats::onnx::Constant;
use std::rc::Rc;

/// The meaning of a name.
#[derive(Debug, Clone)]
pub(super) enum Item {
    /// An activation with a static shape.
    Value(ValueId),
    /// An initializer or constant tensor, by its index.
    Tensor(usize),
    /// The transposed matrix of a tensor.
    Turned(usize),
    /// Known values.
    Known(Rc<Constant>),
    /// An activation whose shape is not known.
    Opaque(ValueId),
    /// The codes of an activation that was rounded to a grid.
    Codes(ValueId, FixedGrid),
}

/// Returns an item of known values.
pub(super) fn known(constant: Constant) -> Item {
    Item::Known(Rc::new(constant))
}

/// Returns the values as whole numbers. Values beyond the range of integers are cut there.
pub(super) fn integers(constant: &Constant) -> Vec<i64> {
    constant.values.iter().map(|&value| value as i64).collect()
}
