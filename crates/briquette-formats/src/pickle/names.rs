//! The names a pickle may use, and what each describes.

use super::{Node, Outside, Pickle, Refusal, Storage, Value, View, damaged};
use crate::limits::MAX_RANK;
use briquette_core::DType;

/// A name that may stand in a pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// `collections.OrderedDict`.
    Dict,
    /// `torch._utils._rebuild_tensor` and `_rebuild_tensor_v2`: the storage has the type.
    Tensor,
    /// `torch._utils._rebuild_tensor_v3`: the type is an argument.
    TypedTensor,
    /// `torch._utils._rebuild_parameter`: a tensor that trains.
    Parameter,
    /// `torch.FloatStorage` and its like; none for plain bytes.
    Storage(Option<DType>),
    /// `torch.float32` and its like.
    Type(DType),
    /// `torch.Size`: a tuple.
    Size,
    /// A list of TorchScript: its first argument.
    Passed,
    /// `collections.defaultdict` and `Counter`: dictionaries, whatever they are made with.
    AnyDict,
    /// A class of a TorchScript program.
    Class,
    /// What is of no matter here, and harmless: settings and counters that lie beside weights.
    Inert,
}

const STORAGES: [(&str, DType); 10] = [
    ("DoubleStorage", DType::F64),
    ("FloatStorage", DType::F32),
    ("HalfStorage", DType::F16),
    ("BFloat16Storage", DType::BF16),
    ("LongStorage", DType::I64),
    ("IntStorage", DType::I32),
    ("ShortStorage", DType::I16),
    ("CharStorage", DType::I8),
    ("ByteStorage", DType::U8),
    ("BoolStorage", DType::Bool),
];
const TYPES: [(&str, DType); 18] = [
    ("float64", DType::F64),
    ("float32", DType::F32),
    ("float16", DType::F16),
    ("bfloat16", DType::BF16),
    ("float8_e4m3fn", DType::F8E4M3),
    ("float8_e5m2", DType::F8E5M2),
    ("float8_e4m3fnuz", DType::F8E4M3Fnuz),
    ("float8_e5m2fnuz", DType::F8E5M2Fnuz),
    ("float8_e8m0fnu", DType::F8E8M0),
    ("int64", DType::I64),
    ("int32", DType::I32),
    ("int16", DType::I16),
    ("int8", DType::I8),
    ("uint64", DType::U64),
    ("uint32", DType::U32),
    ("uint16", DType::U16),
    ("uint8", DType::U8),
    ("bool", DType::Bool),
];

/// What training scripts put beside weights, and what becomes of it is nothing: such a call makes no value here.
const INERT: [(&str, &[&str]); 11] = [
    ("argparse", &["Namespace"]),
    ("pathlib", &["Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath", "PureWindowsPath"]),
    ("pathlib._local", &["Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath", "PureWindowsPath"]),
    ("numpy", &["dtype", "ndarray"]),
    ("numpy.core.multiarray", &["scalar", "_reconstruct"]),
    ("numpy._core.multiarray", &["scalar", "_reconstruct"]),
    ("_codecs", &["encode"]),
    ("datetime", &["datetime", "date", "timedelta", "timezone"]),
    ("torch.torch_version", &["TorchVersion"]),
    ("builtins", &BUILTINS),
    ("__builtin__", &BUILTINS),
];
const BUILTINS: [&str; 11] =
    ["list", "dict", "set", "frozenset", "tuple", "int", "float", "str", "bool", "complex", "slice"];

impl Name {
    /// The name, where it is one of those above. Those of a program are only known in one.
    pub(super) fn of(module: &str, name: &str, is_script: bool) -> Result<Self, Refusal> {
        let find = |list: &[(&str, DType)]| list.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype);
        let known = match (module, name) {
            ("collections", "OrderedDict") => Some(Self::Dict),
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Some(Self::Tensor),
            ("torch._utils", "_rebuild_tensor_v3") => Some(Self::TypedTensor),
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Some(Self::Parameter),
            ("torch" | "torch.storage", "UntypedStorage") => Some(Self::Storage(None)),
            ("torch", "Size") => Some(Self::Size),
            ("torch", "device") => Some(Self::Inert),
            ("torch" | "torch.cuda", _) => find(&STORAGES)
                .map(|dtype| Self::Storage(Some(dtype)))
                .or(find(&TYPES).map(Self::Type))
                .or(name.ends_with("Tensor").then_some(Self::Inert)),
            ("collections", "defaultdict" | "Counter") => Some(Self::AnyDict),
            ("torch.jit._pickle", _) if is_script && (name.starts_with("build_") || name == "restore_type_tag") => {
                Some(Self::Passed)
            }
            _ if is_script && (module == "__torch__" || module.starts_with("__torch__.")) => Some(Self::Class),
            _ => INERT.iter().any(|(of, names)| *of == module && names.contains(&name)).then_some(Self::Inert),
        };
        known.ok_or_else(|| {
            format!(
                "its pickle names {module}.{name}, expected tensors in dictionaries; nothing of it was run, save \
                 model.state_dict() alone with torch.save if you trust the file"
            )
        })
    }
}

/// What a persistent id stands for: a storage, or a tensor of the table.
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

/// `("storage", type, key, device, elements)`; before 1.6 with what part of it is meant: none, or `(key, first, elements)`.
fn storage(pickle: &Pickle, id: &Value) -> Option<Storage> {
    let [Value::Text(tag), Value::Name(Name::Storage(dtype)), Value::Text(key), _, Value::Int(n), part @ ..] =
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
    Some(Storage { key: key.clone(), dtype: *dtype, n_stored, first, n_elements })
}

/// What a call of `name` stands for: a value that is there already, or a new node.
pub(super) fn describe(pickle: &Pickle, name: Name, arguments: &Value) -> Result<Result<Value, Node>, Refusal> {
    let Some(Node::List(arguments)) = pickle.node(arguments) else { return Err(damaged()) };
    match (name, arguments.as_slice()) {
        (Name::Dict, []) => Ok(Err(Node::Dict(Vec::new()))),
        (Name::Dict, [items]) => {
            let items = dict_of(pickle, items).ok_or_else(damaged)?;
            Ok(Err(Node::Dict(items)))
        }
        (Name::Tensor, [storage, view @ ..]) => view_of(pickle, storage, view, None).map(Err),
        (Name::TypedTensor, [storage, view @ ..]) => match view.get(5) {
            Some(Value::Name(Name::Type(dtype))) => view_of(pickle, storage, view, Some(*dtype)).map(Err),
            _ => Err(damaged()),
        },
        (Name::Parameter | Name::Size, [value, ..]) => Ok(Ok(value.clone())),
        (Name::Passed, [value, ..]) => Ok(Ok(value.clone())),
        (Name::AnyDict, _) => Ok(Err(Node::Dict(Vec::new()))),
        (Name::Class, []) => Ok(Err(Node::Object(Value::Other))),
        (Name::Inert, _) => Ok(Ok(Value::Other)),
        _ => Err(damaged()),
    }
}

/// The items of an OrderedDict made from a list of pairs.
fn dict_of(pickle: &Pickle, items: &Value) -> Option<Vec<(Value, Value)>> {
    let Some(Node::List(items)) = pickle.node(items) else { return None };
    let pair = |item| match pickle.node(item) {
        Some(Node::List(pair)) => <&[Value; 2]>::try_from(pair.as_slice()).ok().map(|[a, b]| (a.clone(), b.clone())),
        _ => None,
    };
    items.iter().map(pair).collect()
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
    // One list can be the shape of every tensor: a long one would be copied for each.
    if items.len() <= MAX_RANK { items.iter().map(extent).collect() } else { None }
}
