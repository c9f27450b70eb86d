//! From a checkpoint to the parameters of a module, one tensor at a time.

use crate::Arch;
use briquette_core::rows::{self, OutputAxis};
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, Format, TensorInfo, TensorSource};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeMap;

/// How many names an error lists of each kind.
const MAX_LISTED: usize = 10;

/// How the paths of a module's parameters become the names of a checkpoint's tensors.
#[derive(Debug, Clone)]
pub struct Naming {
    /// The architecture, for messages.
    pub arch: Arch,
    /// What stands before every name: `bert.` where a checkpoint of a whole task keeps the encoder under that name.
    pub prefix: &'static str,
    /// Whether a tensor that no parameter takes may be there all the same.
    pub may_be_extra: fn(&str) -> bool,
}

impl Naming {
    /// The name of the tensor for the parameter at `path`.
    ///
    /// `self_` is `self`, which Rust keeps for itself; the gain and offset of a norm, `gamma` and `beta` in burn, are
    /// `weight` and `bias`. A leading name of an enum's variant, as in `Bert.encoder`, is dropped.
    pub fn tensor_name(&self, path: &str) -> String {
        let segments =
            path.split('.').skip_while(|segment| segment.starts_with(char::is_uppercase) && *segment != "LayerNorm");
        let renamed = segments.map(|segment| match segment {
            "self_" => "self",
            "layer_norm" => "LayerNorm",
            "gamma" => "weight",
            "beta" => "bias",
            other => other,
        });
        format!("{}{}", self.prefix, renamed.collect::<Vec<_>>().join("."))
    }
}

/// A parameter, and how its tensor lies in the file.
struct Slot {
    name: String,
    /// The shape in PyTorch's order.
    shape: Vec<usize>,
    is_linear: bool,
}

/// The path walked to, with the kind of module at each step.
#[derive(Default)]
struct Path(Vec<(String, String)>);

impl Path {
    fn slot(&self, naming: &Naming, shape: &[usize]) -> Slot {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        let is_linear = shape.len() == 2 && self.0.last().is_some_and(|(_, kind)| kind == "Struct:Linear");
        let mut shape = shape.to_vec();
        if is_linear {
            shape.reverse();
        }
        Slot { name: naming.tensor_name(&names.join(".")), shape, is_linear }
    }

    fn enter(&mut self, name: &str, kind: &str) {
        self.0.push((name.into(), kind.into()));
    }
}

struct Slots<'a> {
    naming: &'a Naming,
    path: Path,
    found: Vec<Slot>,
}

impl ModuleVisitor for Slots<'_> {
    fn enter_module(&mut self, name: &str, kind: &str) {
        self.path.enter(name, kind);
    }

    fn exit_module(&mut self, _name: &str, _kind: &str) {
        self.path.0.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push(self.path.slot(self.naming, &param.lazy_shape()));
    }
}

/// Fills every float parameter of `module` from `checkpoint`, as f32, on the device the module is on.
///
/// Nothing is read before everything is known to fit. At most one tensor is in flight, so the peak is the model and
/// that tensor (twice that tensor for a `Linear`, which is transposed).
///
/// # Errors
/// Input where names or shapes do not fit, listing the first ten missing, extra and mis-shaped tensors; Io where the
/// file cannot be read.
pub fn load_into<M: Module>(module: M, checkpoint: &Checkpoint, naming: &Naming) -> Result<M> {
    let mut slots = Slots { naming, path: Path::default(), found: Vec::new() };
    module.visit(&mut slots);
    check_fit(checkpoint, naming, &slots.found)?;
    let mut filler = Filler { checkpoint, naming, path: Path::default(), index: index_of(checkpoint), error: None };
    let module = module.map(&mut filler);
    filler.error.map_or(Ok(module), Err)
}

fn index_of(checkpoint: &Checkpoint) -> BTreeMap<&str, usize> {
    checkpoint.tensors().iter().enumerate().map(|(index, info)| (info.name.as_str(), index)).collect()
}

/// Whether the outputs of a matrix are its last axis, as burn keeps them.
fn outputs_are_last(checkpoint: &Checkpoint, index: usize) -> bool {
    match checkpoint.stored() {
        Some(stored) => stored.tensors[index].axis == OutputAxis::Last,
        None => checkpoint.format() == Format::Burnpack,
    }
}

fn check_fit(checkpoint: &Checkpoint, naming: &Naming, slots: &[Slot]) -> Result<()> {
    let index = index_of(checkpoint);
    let mut missing = Vec::new();
    let mut misfits = Vec::new();
    for slot in slots {
        match index.get(slot.name.as_str()) {
            None => missing.push(slot.name.clone()),
            Some(&at) => misfits.extend(misfit(slot, &checkpoint.tensors()[at], outputs_are_last(checkpoint, at))),
        }
    }
    let wanted: std::collections::BTreeSet<&str> = slots.iter().map(|slot| slot.name.as_str()).collect();
    let names = checkpoint.tensors().iter().map(|info| info.name.as_str());
    let extra = names.filter(|name| !wanted.contains(name) && !(naming.may_be_extra)(name));
    let extra: Vec<String> = extra.map(String::from).collect();
    if missing.is_empty() && misfits.is_empty() && extra.is_empty() {
        return Ok(());
    }
    let lists = [("missing", missing), ("mis-shaped", misfits), ("extra", extra)];
    let listed: Vec<String> = lists.iter().filter_map(|(what, names)| list(what, names)).collect();
    let message = format!("does not fit {}: {}{}", naming.arch, listed.join("; "), suggestion(checkpoint, naming.arch));
    Err(Error::input(message).at(checkpoint.path().display()))
}

fn misfit(slot: &Slot, info: &TensorInfo, outputs_are_last: bool) -> Option<String> {
    let mut found = info.shape.0.clone();
    if slot.is_linear && outputs_are_last {
        found.reverse();
    }
    let name = &slot.name;
    if found != slot.shape {
        return Some(format!("{name} is {:?}, expected {:?}", found, slot.shape));
    }
    (!info.dtype.is_weight()).then(|| format!("{name} is of {}, expected floats", info.dtype))
}

fn list(what: &str, names: &[String]) -> Option<String> {
    let shown = names.iter().take(MAX_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if names.len() > MAX_LISTED { ", …" } else { "" };
    (!names.is_empty()).then(|| format!("{} {what} ({shown}{more})", names.len()))
}

fn suggestion(checkpoint: &Checkpoint, asked: Arch) -> String {
    match Arch::by_names(checkpoint) {
        Some(arch) if arch != asked => format!("; its names are those of {arch}: set arch = \"{arch}\""),
        _ => "; check arch and config.json".into(),
    }
}

struct Filler<'a> {
    checkpoint: &'a Checkpoint,
    naming: &'a Naming,
    path: Path,
    index: BTreeMap<&'a str, usize>,
    error: Option<Error>,
}

impl Filler<'_> {
    fn values(&self, slot: &Slot) -> Result<Vec<f32>> {
        let index = self.index[slot.name.as_str()];
        let values = read_f32(self.checkpoint, index)?;
        Ok(match slot.shape.as_slice() {
            [n_out, n_in] if slot.is_linear && !outputs_are_last(self.checkpoint, index) => {
                let mut turned = vec![0.0_f32; values.len()];
                let (from, to) = (bytemuck::cast_slice(&values), bytemuck::cast_slice_mut(&mut turned));
                rows::transpose_bytes(from, to, *n_in, *n_out, 4);
                turned
            }
            _ => values,
        })
    }
}

impl ModuleMapper for Filler<'_> {
    fn enter_module(&mut self, name: &str, kind: &str) {
        self.path.enter(name, kind);
    }

    fn exit_module(&mut self, _name: &str, _kind: &str) {
        self.path.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.lazy_shape();
        let slot = self.path.slot(self.naming, &shape);
        if self.error.is_some() {
            return param;
        }
        match self.values(&slot) {
            Ok(values) => with_value(&param, TensorData::new(values, shape)),
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}

/// The same parameter with another value; its own, still to be initialized, is never made.
fn with_value<const D: usize>(param: &Param<Tensor<D>>, data: TensorData) -> Param<Tensor<D>> {
    let device: Device = param.lazy_device();
    let tensor = device.memory_persistent_allocations(data, |data| Tensor::<D>::from_data(data, &device));
    Param::initialized(param.id, tensor).set_require_grad(true)
}

/// Reads a tensor of any float type as f32.
///
/// # Errors
/// Io where the file cannot be read, Input where it is not what it declared.
pub fn read_f32(source: &dyn TensorSource, index: usize) -> Result<Vec<f32>> {
    let info = &source.tensors()[index];
    let mut values = vec![0.0_f32; info.n_elements()];
    if info.dtype == briquette_core::DType::F32 {
        source.read(index, 0, bytemuck::cast_slice_mut(&mut values))?;
    } else {
        let mut bytes = vec![0; info.n_bytes()];
        source.read(index, 0, &mut bytes)?;
        rows::to_f32(&bytes, info.dtype, &mut values);
    }
    Ok(values)
}
