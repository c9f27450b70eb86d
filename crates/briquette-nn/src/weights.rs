//! Visits the parameters of a module with the attached state.

use crate::coded::Coded;
use crate::form::Form;
use crate::module::{Trail, read_bools, read_f32, unreadable, view};
use crate::packed::{PackedForm, codes_of};
use crate::state::State;
use crate::{Attached, Packed, Parameter, parameters};
use briquette_core::{Decision, Error, Result, Rows, fake_quantize, rows};
use burn::module::{Module, ModuleVisitor, Param, Reparameterization};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use std::collections::BTreeMap;

/// A float parameter and its attached decision, on the host.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) parameter: Parameter,
    pub(crate) rows: Rows,
    /// Stored weights, as rows of outputs.
    pub(crate) values: Vec<f32>,
    /// Attached decision.
    pub(crate) decision: Decision,
}

impl Weight {
    /// Returns the weights that the module computes with, as rows of outputs.
    pub(crate) fn effective(&self) -> Vec<f32> {
        fake_quantize(&self.values, self.rows.n_rows, self.rows.n_cols, &self.decision)
    }
}

/// A function that reads numbers from their device.
type OnDevice<T> = Box<dyn Fn() -> Result<Vec<T>> + Send>;

/// A parameter that is still on its device.
pub(crate) struct ModuleItem {
    pub(crate) parameter: Parameter,
    pub(crate) dtype: DType,
    /// Elements in burn's order and type; a boolean is one byte.
    bytes: OnDevice<u8>,
    /// The same elements as f32, for a float parameter.
    values: Option<OnDevice<f32>>,
    /// Attached state.
    state: Option<StateOnDevice>,
    /// Codes that replace the parameter.
    codes: Option<CodesOnDevice>,
}

/// Reads the codes of a parameter of known form.
type ReadCodes = Box<dyn Fn(PackedForm) -> Result<Coded> + Send>;

/// Codes that replace a parameter, still on their device.
struct CodesOnDevice {
    form: Option<PackedForm>,
    read: ReadCodes,
}

impl CodesOnDevice {
    fn read(&self) -> Result<(Coded, PackedForm)> {
        let form = self.form.clone().ok_or_else(|| Error::bug("codes without a form"))?;
        Ok(((self.read)(form.clone())?, form))
    }
}

/// The state of [`Attached`], still on its device.
#[derive(Default)]
struct StateOnDevice {
    form: Option<Form>,
    dropped: Option<OnDevice<bool>>,
    scale: Option<OnDevice<f32>>,
    zero: Option<OnDevice<f32>>,
    rounded: Option<OnDevice<f32>>,
}

impl ModuleItem {
    /// Reads the parameter's bytes, in burn's order. Weights on a trellis are those of the last decision.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        if self.codes.is_some() {
            return Ok(bytemuck::cast_slice(&self.own_values()?).to_vec());
        }
        match self.rounded()? {
            Some(rounded) => {
                let n = rounded.len();
                Ok(TensorData::new(rounded, [n]).convert_dtype(self.dtype).as_bytes().to_vec())
            }
            None => (self.bytes)(),
        }
    }

    /// Reads the weights that the module computes with, in burn's order; `dtype` is the parameter's type.
    pub(crate) fn effective_bytes(&self, dtype: briquette_core::DType) -> Result<Vec<u8>> {
        let decision = self.decision()?;
        if decision == Decision::default() || (self.values.is_none() && self.codes.is_none()) {
            return self.bytes();
        }
        let rows = self.parameter.rows();
        let values = view::to_rows(self.own_values()?, &rows);
        let values = view::to_own(fake_quantize(&values, rows.n_rows, rows.n_cols, &decision), &rows);
        let mut bytes = vec![0; values.len() * dtype.n_bits() / 8];
        rows::from_f32(&values, dtype, &mut bytes);
        Ok(bytes)
    }

    /// Reads a float parameter as f32, in burn's order; codes are dequantized.
    fn own_values(&self) -> Result<Vec<f32>> {
        match (&self.codes, &self.values) {
            (Some(codes), _) => Ok(view::to_own(codes.read()?.0.values(), &self.parameter.rows())),
            (None, Some(values)) => self.rounded()?.map_or_else(values, Ok),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Reads the weights on a trellis, in burn's order; `None` without one, and before its rule has begun.
    fn rounded(&self) -> Result<Option<Vec<f32>>> {
        let Some(StateOnDevice { rounded: Some(rounded), scale: Some(scale), .. }) = &self.state else {
            return Ok(None);
        };
        scale()?.iter().any(|scale| *scale != 0.0).then(rounded).transpose()
    }

    /// Returns the grid attached to the parameter, even if its rule has not begun.
    pub(crate) fn form(&self) -> Option<Form> {
        let of_codes = |codes: &CodesOnDevice| {
            let what = codes.form.as_ref()?.what;
            let spec = what.spec(self.parameter.rows().n_cols);
            let (grid, grouping, scale) = (spec.grid, spec.grouping, spec.scale);
            Some(Form { grid, grouping, scale, activations: what.activations() })
        };
        self.codes.as_ref().map_or_else(|| self.state.as_ref().and_then(|state| state.form), of_codes)
    }

    /// Reads the attached decision.
    pub(crate) fn decision(&self) -> Result<Decision> {
        if let Some(codes) = &self.codes {
            return codes.read().map(|(coded, form)| coded.decision(form.what));
        }
        let Some(state) = &self.state else { return Ok(Decision::default()) };
        let read = State {
            form: state.form,
            dropped: state.dropped.as_ref().map_or(Ok(Vec::new()), |read| read())?,
            scale: state.scale.as_ref().map_or(Ok(Vec::new()), |read| read())?,
            zero: state.zero.as_ref().map_or(Ok(Vec::new()), |read| read())?,
        };
        read.decision(&self.parameter.rows()).map_err(|error| error.at(&self.parameter.path))
    }

    /// Reads the weight to the host; `None` unless the parameter has floats.
    fn weight(self) -> Result<Option<Weight>> {
        if self.values.is_none() {
            return Ok(None);
        }
        let rows = self.parameter.rows();
        let (values, decision) = (view::to_rows(self.own_values()?, &rows), self.decision()?);
        Ok(Some(Weight { parameter: self.parameter, rows, values, decision }))
    }
}

/// Calls `f` with every float parameter, in module order. Stops at the first error.
pub(crate) fn for_each_weight<M: Module>(module: &M, f: impl FnMut(Weight) -> Result<()>) -> Result<()> {
    for_each_weight_in(module, |_| true, f)
}

/// Like [`for_each_weight`], for paths that satisfy `wants`.
pub(crate) fn for_each_weight_in<M: Module>(
    module: &M,
    wants: impl Fn(&str) -> bool,
    mut f: impl FnMut(Weight) -> Result<()>,
) -> Result<()> {
    let wanted = parameters(module).into_iter().filter(|parameter| wants(&parameter.path));
    for item in items(module, wanted.collect())? {
        if let Some(weight) = item.weight()? {
            f(weight)?;
        }
    }
    Ok(())
}

/// Returns these parameters in module order, with their data still on the device.
///
/// # Errors
/// Refused: a parameter has another reparameterization.
pub(crate) fn items<M: Module>(module: &M, wanted: Vec<Parameter>) -> Result<Vec<ModuleItem>> {
    let known = wanted.into_iter().map(|parameter| (parameter.path.clone(), parameter)).collect();
    let mut collector = Collector { known, trail: Trail::default(), found: Vec::new(), result: Ok(()) };
    module.visit(&mut collector);
    collector.result.map(|()| collector.found)
}

struct Collector {
    known: BTreeMap<String, Parameter>,
    trail: Trail,
    found: Vec<ModuleItem>,
    result: Result<()>,
}

impl Collector {
    fn add<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<()> {
        let Some(parameter) = self.known.remove(&self.trail.path()) else { return Ok(()) };
        match parameter.reparameterized.as_deref() {
            None | Some(Attached::NAME) => {}
            Some(Packed::NAME) => {
                self.add_codes(parameter, param);
                return Ok(());
            }
            Some(name) => {
                let message = format!("is reparameterized by {name:?}; call materialize() on the module first");
                return Err(Error::refused(message).at(&parameter.path));
            }
        }
        let tensor = param.base().without_autodiff();
        let (dtype, path) = (tensor.dtype(), parameter.path.clone());
        let state = (parameter.reparameterized.as_deref() == Some(Attached::NAME)).then(StateOnDevice::default);
        let (own, own_path) = (tensor.clone(), path.clone());
        let bytes = move || {
            let data = own.clone().try_into_data().map_err(|error| unreadable(&own_path, &error))?;
            Ok(data.as_bytes().to_vec())
        };
        let values = move || read_f32(tensor.clone(), &path);
        let (bytes, values): (OnDevice<u8>, OnDevice<f32>) = (Box::new(bytes), Box::new(values));
        self.found.push(ModuleItem { parameter, dtype, bytes, values: Some(values), state, codes: None });
        Ok(())
    }

    /// Adds a parameter that is stored as codes; its form follows when the visitor reaches it.
    fn add_codes<const D: usize>(&mut self, parameter: Parameter, param: &Param<Tensor<D>>) {
        let param = param.clone();
        let read: ReadCodes = Box::new(move |form| codes_of(&param, form));
        let codes = Some(CodesOnDevice { form: None, read });
        let (bytes, values): (OnDevice<u8>, OnDevice<f32>) = (Box::new(|| Ok(Vec::new())), Box::new(|| Ok(Vec::new())));
        self.found.push(ModuleItem { parameter, dtype: DType::F32, bytes, values: Some(values), state: None, codes });
    }

    /// Inside a field of [`Attached`], returns the field's name and the state of its parameter.
    fn state(&mut self) -> Option<(String, &mut StateOnDevice)> {
        let (_, _, field) = self.trail.reparameterized()?;
        Some((field, self.item_of(Attached::NAME)?.state.as_mut()?))
    }

    /// Returns the item whose reparameterization of this name the visitor is in.
    fn item_of(&mut self, name: &str) -> Option<&mut ModuleItem> {
        let (path, found, _) = self.trail.reparameterized()?;
        let is_ours = found == name && self.result.is_ok();
        self.found.last_mut().filter(|item| is_ours && item.parameter.path == path)
    }

    /// Adds a parameter that does not have floats.
    fn add_other(&mut self, dtype: DType, data: impl Fn() -> Result<TensorData> + Send + 'static) {
        if let Some(parameter) = self.known.remove(&self.trail.path()).filter(|_| self.result.is_ok()) {
            let bytes = Box::new(move || Ok(data()?.as_bytes().to_vec()));
            self.found.push(ModuleItem { parameter, dtype, bytes, values: None, state: None, codes: None });
        }
    }
}

impl ModuleVisitor for Collector {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.trail.path();
        if let Some((field, state)) = self.state() {
            let tensor = param.base();
            let read: OnDevice<f32> = Box::new(move || read_f32(tensor.clone(), &path));
            match field.as_str() {
                "scale" => state.scale = Some(read),
                "rounded" => state.rounded = Some(read),
                _ => state.zero = Some(read),
            }
        } else if self.trail.reparameterized().is_none() && self.result.is_ok() {
            self.result = self.add(param);
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let (path, tensor) = (self.trail.path(), param.val());
        let (dtype, read) = (tensor.dtype(), tensor.clone());
        let data = move || read.clone().try_into_data().map_err(|error| unreadable(&path, &error));
        if let Some(item) = self.item_of(Packed::NAME) {
            match data() {
                Ok(data) => {
                    let (numbers, shape) = (data.iter::<i64>().collect::<Vec<_>>(), &item.parameter.shape.0);
                    let form = PackedForm::from_numbers(&numbers, shape);
                    if let (Some(codes), Some(form)) = (&mut item.codes, form) {
                        item.parameter.axis = form.axis;
                        codes.form = Some(form);
                    }
                }
                Err(error) => self.result = Err(error),
            }
            return;
        }
        let is_form = self.trail.reparameterized().is_some_and(|(_, _, field)| field == "form");
        let Some(item) = self.item_of(Attached::NAME) else { return self.add_other(dtype, data) };
        if !is_form {
            return;
        }
        match data() {
            Ok(data) => {
                let numbers: Vec<i64> = data.iter::<i64>().collect();
                item.parameter.axis = Form::axis(&numbers);
                item.state.iter_mut().for_each(|state| state.form = Form::from_numbers(&numbers));
            }
            Err(error) => self.result = Err(error),
        }
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let (path, tensor) = (self.trail.path(), param.val());
        if let Some((_, state)) = self.state() {
            state.dropped = Some(Box::new(move || read_bools(tensor.clone(), &path)));
            return;
        }
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        self.add_other(dtype, move || {
            read_bools(tensor.clone(), &path).map(|bools| TensorData::new(bools, shape.clone()))
        });
    }
}
