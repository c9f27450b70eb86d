//! Fills a module from a checkpoint, one tensor at a time.

mod tensor_data;

use crate::coded::{Coded, StoredUse};
use crate::module::{Trail, is_kept_turned};
use crate::{Kind, NameMap, Parameter};
use briquette_core::{DType, Error, OutputAxis, Result, Shape};
use briquette_formats::stored::StoredDir;
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, WeightLayout};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, DType as BurnDType, Device, Int, Tensor, TensorData};
use std::collections::{BTreeMap, BTreeSet};

/// Number of tensors of each kind that an error lists.
const N_LISTED: usize = 10;

/// Fills the parameters of a module from a checkpoint; compressed tensors are decoded to floats.
///
/// Reads every format of [`Checkpoint`]: safetensors, PyTorch, burnpack and compressed directories.
///
/// Weights take the type of the parameter. A parameter that is not initialized yet takes the device's default
/// type, and its random initialization never runs. Memory is the module plus a piece of one tensor, or the whole
/// tensor where a source cannot read a part of it. Masks and grids stay attached and keep their state. If a parameter is stored as codes, new
/// values are quantized to the same kind of codes.
///
/// burn's clones of a batch norm share running statistics. Do not load into a clone of a module that you still
/// need.
///
/// # Errors
/// - Input: tensors are missing, unknown or of another shape (the first ten of each are listed)
/// - Input: a tensor does not match its stored hash
/// - any error of reading the checkpoint
pub fn load_into<M: Module>(module: M, checkpoint: &Checkpoint, names: &NameMap) -> Result<M> {
    let places = places_of(&names.parameters(&module)?, checkpoint, names)?;
    let module = fill(module, checkpoint, places, BTreeMap::new())?;
    checkpoint.check_unchanged()?;
    Ok(module)
}

/// Like [`load_into`], for the parameters whose file name satisfies `is_chosen`.
///
/// Other parameters stay unchanged and take no memory if they are not initialized. `layout` is the source's
/// layout of Linear weights, if known.
///
/// # Errors
/// - Input: a chosen parameter is missing or of another shape
/// - any error of reading the source
pub fn load_some<M: Module>(
    module: M,
    source: &dyn TensorSource,
    layout: Option<WeightLayout>,
    names: &NameMap,
    is_chosen: &dyn Fn(&str) -> bool,
) -> Result<M> {
    let wanted = names.parameters(&module)?;
    let chosen: Vec<Parameter> =
        wanted.into_iter().filter(|parameter| is_chosen(&names.file_name(parameter))).collect();
    let source = WeightSource { tensors: source, layout, stored: None };
    let mut found = FoundPlaces::of(&chosen, &source, names);
    found.extra.clear();
    fill_from(module, source, found.places_or_error("the weights")?, BTreeMap::new())
}

/// Fills the parameters that `places` lists; the others stay unchanged. `uses` lists parameters that hold codes
/// and take the stored codes without requantization.
pub(crate) fn fill<M: Module>(
    module: M,
    checkpoint: &Checkpoint,
    places: BTreeMap<String, ParameterPlace>,
    uses: BTreeMap<String, StoredUse>,
) -> Result<M> {
    fill_from(module, WeightSource::of(checkpoint), places, uses)
}

fn fill_from<M: Module>(
    module: M,
    source: WeightSource,
    places: BTreeMap<String, ParameterPlace>,
    uses: BTreeMap<String, StoredUse>,
) -> Result<M> {
    let mut loader = Loader { source, places, uses, trail: Trail::default(), error: None };
    let module = module.map(&mut loader);
    match loader.error {
        Some(error) => Err(error),
        None => Ok(module),
    }
}

/// The source of the weights.
#[derive(Clone, Copy)]
struct WeightSource<'a> {
    tensors: &'a dyn TensorSource,
    /// Layout of Linear weights, if the source stores it.
    layout: Option<WeightLayout>,
    /// Codes and masks of an output directory.
    stored: Option<&'a StoredDir>,
}

impl<'a> WeightSource<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        Self { tensors: checkpoint, layout: checkpoint.layout(), stored: checkpoint.stored() }
    }

    /// Returns whether a tensor is a transposed matrix, by the file or else by the name map.
    fn is_turned(&self, index: usize, parameter: &Parameter, names: &NameMap) -> bool {
        let is_last = self.stored.is_some_and(|stored| stored.tensors[index].axis == OutputAxis::Last);
        names.is_turned(parameter, self.layout.unwrap_or(names.weight_layout())) && !is_last
    }
}

/// Place of a parameter's tensor in a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParameterPlace {
    /// Index of the tensor.
    pub(crate) index: usize,
    /// Whether the tensor must be transposed.
    pub(crate) is_turned: bool,
}

/// Finds the tensor of every parameter, or lists everything that does not fit.
pub(crate) fn places_of(
    wanted: &[Parameter],
    checkpoint: &Checkpoint,
    names: &NameMap,
) -> Result<BTreeMap<String, ParameterPlace>> {
    FoundPlaces::of(wanted, &WeightSource::of(checkpoint), names).places_or_error(checkpoint.path().display())
}

/// The matches of a module and a source, and the mismatches.
#[derive(Default)]
struct FoundPlaces {
    places: BTreeMap<String, ParameterPlace>,
    missing: Vec<String>,
    extra: Vec<String>,
    misfits: Vec<String>,
    /// Number of `misfits` that fit in the other layout.
    n_other_layout: usize,
}

impl FoundPlaces {
    fn of(wanted: &[Parameter], source: &WeightSource, names: &NameMap) -> Self {
        let tensors = source.tensors.tensors();
        let by_name: BTreeMap<&str, usize> =
            tensors.iter().enumerate().map(|(index, info)| (info.name.as_str(), index)).collect();
        let (mut found, mut used) = (Self::default(), BTreeSet::new());
        for parameter in wanted {
            let name = names.file_name(parameter);
            let Some(&index) = by_name.get(name.as_str()) else {
                if !names.is_optional(&parameter.path) {
                    found.missing.push(name);
                }
                continue;
            };
            used.insert(index);
            let is_turned = source.is_turned(index, parameter, names);
            match misfit(parameter, &tensors[index], is_turned, names) {
                Some(message) => {
                    let fits_turned =
                        parameter.is_linear_weight() && misfit(parameter, &tensors[index], !is_turned, names).is_none();
                    found.n_other_layout += usize::from(fits_turned);
                    found.misfits.push(message);
                }
                None => _ = found.places.insert(parameter.path.clone(), ParameterPlace { index, is_turned }),
            }
        }
        let is_extra = |index: &usize| !used.contains(index) && !names.is_ignored(&tensors[*index].name);
        found.extra = (0..tensors.len()).filter(is_extra).map(|index| tensors[index].name.to_string()).collect();
        found
    }

    fn places_or_error(self, culprit: impl std::fmt::Display) -> Result<BTreeMap<String, ParameterPlace>> {
        let complaints = [
            list("missing in the file", &self.missing),
            list("not in the module", &self.extra),
            list("of another shape", &self.misfits),
        ];
        let mut complaints: Vec<String> = complaints.into_iter().flatten().collect();
        if self.n_other_layout > 0 && self.n_other_layout == self.misfits.len() {
            complaints.push(
                "these fit in the other layout of Linear weights: set --layout (model.layout, or teacher_layout) to burn or torch"
                    .into(),
            );
        }
        match complaints.is_empty() {
            true => Ok(self.places),
            false => Err(Error::input(complaints.join("; ")).at(culprit)),
        }
    }
}

fn misfit(parameter: &Parameter, info: &TensorInfo, is_turned: bool, names: &NameMap) -> Option<String> {
    let mut expected = parameter.shape.0.clone();
    if is_turned {
        expected.reverse();
    }
    let fits = match parameter.kind {
        Kind::Float if names.takes_integers() => info.dtype.is_weight() || matches!(info.dtype, DType::I8 | DType::U8),
        Kind::Float => info.dtype.is_weight(),
        Kind::Int => matches!(info.dtype, DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U8),
        Kind::Bool => matches!(info.dtype, DType::Bool | DType::U8),
    };
    if info.shape.0 == expected && fits {
        return None;
    }
    let expected = Shape(expected);
    Some(format!("{} (found {} {}, expected {} of {:?})", info.name, info.dtype, info.shape, expected, parameter.kind))
}

fn list(what: &str, names: &[String]) -> Option<String> {
    let listed = names.iter().take(N_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(N_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{} {what}: {listed}{more}", names.len()))
}

struct Loader<'a> {
    source: WeightSource<'a>,
    places: BTreeMap<String, ParameterPlace>,
    uses: BTreeMap<String, StoredUse>,
    trail: Trail,
    error: Option<Error>,
}

impl Loader<'_> {
    /// Reads the data of the current parameter; `None` if it stays unchanged.
    fn next(&mut self) -> Option<TensorData> {
        if self.error.is_some() || self.trail.reparameterized().is_some() {
            return None;
        }
        let place = *self.places.get(&self.trail.path())?;
        match tensor_data::read(self.source.tensors, place.index, place.is_turned) {
            Ok(data) => Some(data),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}

impl Loader<'_> {
    /// Reads the codes of the current parameter as a quantized tensor of burn.
    fn next_codes<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        if self.error.is_some() || self.trail.reparameterized().is_some() {
            return None;
        }
        let stored = *self.uses.get(&self.trail.path())?;
        let axis = if is_kept_turned(param) { OutputAxis::First } else { stored.axis };
        match Coded::of_stored(self.source.stored?, stored) {
            Ok(coded) => Some(coded.along(axis).to_burn(param.lazy_shape().dims(), stored.what, &param.lazy_device())),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}

/// Creates a float tensor on a device, in `dtype` or the device's default type.
fn float_on<const D: usize>(data: TensorData, device: &Device, dtype: Option<BurnDType>) -> Tensor<D> {
    match dtype {
        Some(dtype) if dtype.is_float() => Tensor::from_data(data, (device, dtype)),
        _ => Tensor::from_data(data, device),
    }
}

impl ModuleMapper for Loader<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if let Some(codes) = self.next_codes(&param) {
            let id = param.id;
            return param.transform_for_load(codes, id);
        }
        let Some(data) = self.next() else { return param };
        let dtype = param.is_initialized().then(|| param.base().dtype());
        let (id, device) = (param.id, param.lazy_device());
        let tensor = float_on(data, &device, dtype);
        let is_turned = self.trail.is_linear_weight::<D>() && is_kept_turned(&param);
        param.transform_for_load(if is_turned { tensor.transpose() } else { tensor }, id)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let Some(data) = self.next() else { return param };
        let (id, device) = (param.id, param.lazy_device());
        param.transform_for_load(Tensor::from_data(data, &device), id)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let Some(data) = self.next() else { return param };
        let (id, device) = (param.id, param.lazy_device());
        param.transform_for_load(Tensor::from_data(data, &device), id)
    }
}
