//! Names of classes and functions that are allowed in a pickle.

use super::refusal::Refusal;
use briquette_core::DType;

/// A name that is allowed in a pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PickleName {
    /// `collections.OrderedDict`.
    Dict,
    /// `torch._utils._rebuild_tensor` and `_rebuild_tensor_v2`: the type is that of the storage.
    Tensor,
    /// `torch._utils._rebuild_tensor_v3`: the type is an argument.
    TypedTensor,
    /// `torch._utils._rebuild_parameter`: a trainable tensor.
    Parameter,
    /// A typed storage such as `torch.FloatStorage`; `None` for untyped bytes.
    Storage(Option<DType>),
    /// A type such as `torch.float32`.
    Type(DType),
    /// `torch.Size`: a tuple.
    Size,
    /// A TorchScript function that returns its first argument, such as `build_intlist`.
    Passed,
    /// `collections.defaultdict` and `Counter`: dictionaries, whatever their arguments.
    AnyDict,
    /// A class of a TorchScript program.
    Class,
    /// A class of a TorchScript program that is a transposed convolution, such as `ConvTranspose2d`.
    TransposedConv,
    /// Settings and counters beside weights. Calls have no result.
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

/// Classes and functions of values that training scripts save beside weights. They are not needed, so calls are
/// ignored.
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

impl PickleName {
    /// Returns the name if it is allowed. TorchScript classes and functions are allowed in programs only.
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
            _ if is_script && (module == "__torch__" || module.starts_with("__torch__.")) => {
                Some(if name.starts_with("ConvTranspose") { Self::TransposedConv } else { Self::Class })
            }
            _ => INERT.iter().any(|(of, names)| *of == module && names.contains(&name)).then_some(Self::Inert),
        };
        known.ok_or_else(|| {
            format!(
                "its pickle refers to {module}.{name}, expected only tensors in dictionaries; no code was run; \
                 if you trust the file, save only model.state_dict() with torch.save"
            )
        })
    }
}
