//! Interprets the calls in a pickle, which another reader would execute.

use super::graph::{Outside, Pickle};
use super::names::PickleName;
use super::refusal::{Refusal, damaged};
use super::value::{Node, TorchStorage, Value, View};
use briquette_core::DType;
use briquette_core::shape::MAX_RANK;

/// Returns the object of a persistent id: a storage, or a tensor of the table.
pub(super) fn outside(pickle: &Pickle, id: &Value) -> Option<Node> {
    match (&pickle.outside, id) {
        (Outside::Tensors(table), Value::Text(number)) => {
            let view = table.get(&number.parse::<i64>().ok()?)?;
            Some(Node::Tensor(Box::new(view.clone())))
        }
        (Outside::Tensors(_), _) => None,
        (Outside::Storages | Outside::Script, _) => storage(pickle, id).map(Node::Storage),
    }
}

/// Reads `("storage", type, key, device, elements)`.
///
/// Files before 1.6 have another item for the part of the storage: `None`, or `(key, first, elements)`.
fn storage(pickle: &Pickle, id: &Value) -> Option<TorchStorage> {
    let [Value::Text(tag), Value::Name(PickleName::Storage(dtype)), Value::Text(key), _, Value::Int(n), part @ ..] =
        pickle.list(id)?
    else {
        return None;
    };
    let n_stored = u64::try_from(*n).ok().filter(|_| &**tag == "storage")?;
    let (first, n_elements) = match part {
        [] | [Value::Other] => (0, n_stored),
        [part] => match pickle.list(part)? {
            [_, Value::Int(first), Value::Int(n)] => (u64::try_from(*first).ok()?, u64::try_from(*n).ok()?),
            _ => return None,
        },
        _ => return None,
    };
    Some(TorchStorage { key: key.clone(), dtype: *dtype, n_stored, first, n_elements })
}

/// Interprets a call of `name`: returns an existing value, or a new node.
pub(super) fn describe(pickle: &Pickle, name: PickleName, arguments: &Value) -> Result<Result<Value, Node>, Refusal> {
    let Some(Node::List(arguments)) = pickle.node(arguments) else { return Err(damaged()) };
    match (name, arguments.as_slice()) {
        (PickleName::Dict, []) => Ok(Err(Node::Dict(Vec::new()))),
        (PickleName::Dict, [items]) => {
            let items = dict_of(pickle, items).ok_or_else(damaged)?;
            Ok(Err(Node::Dict(items)))
        }
        (PickleName::Tensor, [storage, view @ ..]) => {
            check_metadata(pickle, view.get(5))?;
            view_of(pickle, storage, view, None).map(Err)
        }
        (PickleName::TypedTensor, [storage, view @ ..]) => match view.get(5) {
            Some(Value::Name(PickleName::Type(dtype))) => {
                check_metadata(pickle, view.get(6))?;
                view_of(pickle, storage, view, Some(*dtype)).map(Err)
            }
            _ => Err(damaged()),
        },
        (PickleName::Parameter | PickleName::Size, [value, ..]) => Ok(Ok(value.clone())),
        (PickleName::Passed, [value, ..]) => Ok(Ok(value.clone())),
        (PickleName::AnyDict, _) => Ok(Err(Node::Dict(Vec::new()))),
        (PickleName::Class | PickleName::TransposedConv, []) => Ok(Err(Node::Object(Value::Other))),
        (PickleName::Inert, _) => Ok(Ok(Value::Other)),
        _ => Err(damaged()),
    }
}

/// Returns the items of an OrderedDict made from a list of pairs.
fn dict_of(pickle: &Pickle, items: &Value) -> Option<Vec<(Value, Value)>> {
    let Some(Node::List(items)) = pickle.node(items) else { return None };
    let pair = |item| match pickle.node(item) {
        Some(Node::List(pair)) => <&[Value; 2]>::try_from(pair.as_slice()).ok().map(|[a, b]| (a.clone(), b.clone())),
        _ => None,
    };
    items.iter().map(pair).collect()
}

/// Refuses views that negate or conjugate the elements of their storage.
fn check_metadata(pickle: &Pickle, metadata: Option<&Value>) -> Result<(), Refusal> {
    let Some(Node::Dict(items)) = metadata.and_then(|metadata| pickle.node(metadata)) else { return Ok(()) };
    let is_lazy = |(key, value): &(Value, Value)| {
        matches!(key, Value::Text(key) if matches!(&**key, "neg" | "conj")) && !matches!(value, Value::Bool(false))
    };
    match items.iter().any(is_lazy) {
        false => Ok(()),
        true => {
            Err("a tensor is a view with negated or conjugated values; save tensor.resolve_neg().resolve_conj()".into())
        }
    }
}

fn view_of(pickle: &Pickle, storage: &Value, view: &[Value], dtype: Option<DType>) -> Result<Node, Refusal> {
    let (Some(Node::Storage(storage)), [Value::Int(offset), shape, strides, ..]) = (pickle.node(storage), view) else {
        return Err(damaged());
    };
    let dtype = dtype.or(storage.dtype).ok_or_else(damaged)?;
    let offset = u64::try_from(*offset).map_err(|_| damaged())?;
    let (shape, strides) = extents(pickle, shape).zip(extents(pickle, strides)).ok_or_else(damaged)?;
    if shape.len() != strides.len() {
        return Err(damaged());
    }
    let storage = storage.clone();
    Ok(Node::Tensor(Box::new(View { storage, dtype, offset, shape, strides })))
}

fn extents(pickle: &Pickle, value: &Value) -> Option<Vec<usize>> {
    let Some(Node::List(items)) = pickle.node(value) else { return None };
    let extent = |item: &Value| match item {
        Value::Int(n) => usize::try_from(*n).ok(),
        _ => None,
    };
    // Many tensors may share one list as their shape, and a long list would be copied for each.
    if items.len() <= MAX_RANK { items.iter().map(extent).collect() } else { None }
}
