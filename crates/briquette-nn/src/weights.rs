//! Going over the float parameters of a module, one at a time, with what is attached to each.

use crate::attached::FIELDS;
use crate::form::Form;
use crate::parameters::Trail;
use crate::{Attached, Packed, Parameter, parameters, view};
use briquette_core::{Decision, Error, Mask, QuantParams, Result, Rows, simulate};
use burn::module::{Module, ModuleVisitor, Param, Reparameterization};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use std::collections::BTreeMap;

/// A float parameter and what is attached to it, on the host.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) parameter: Parameter,
    pub(crate) dtype: DType,
    pub(crate) rows: Rows,
    /// What is stored beneath, as rows of outputs.
    pub(crate) values: Vec<f32>,
    /// What the module makes of it.
    pub(crate) decision: Decision,
    /// The grid it is to lie on, now or later.
    pub(crate) form: Option<Form>,
}

impl Weight {
    /// What the module computes with, as rows of outputs.
    pub(crate) fn effective(&self) -> Vec<f32> {
        simulate(&self.values, self.rows.n_rows, self.rows.n_cols, &self.decision)
    }
}

/// Reads a tensor to the host as f32.
pub(crate) fn read_f32<const D: usize>(tensor: Tensor<D>, path: &str) -> Result<Vec<f32>> {
    let data = tensor.without_autodiff().try_into_data().map_err(|error| unreadable(path, &error))?;
    data.convert::<f32>().try_into_vec().map_err(|error| unreadable(path, &error))
}

/// A device that does not hand out a tensor.
pub(crate) fn unreadable(path: &str, error: &impl std::fmt::Display) -> Error {
    Error {
        kind: briquette_core::ErrorKind::Io,
        ..Error::bug(format!("{path}: cannot be read from its device: {error}"))
    }
}

/// A parameter on the host.
#[derive(Debug)]
pub(crate) enum Item {
    Weight(Weight),
    /// Integers or truth values, as bytes; a truth value is one byte.
    Other {
        parameter: Parameter,
        dtype: DType,
        bytes: Vec<u8>,
    },
}

/// Calls `f` with every float parameter, in the order of the module. Stops at the first error.
pub(crate) fn for_each_weight<M: Module>(module: &M, f: impl FnMut(Weight) -> Result<()>) -> Result<()> {
    for_each_weight_in(module, |_| true, f)
}

/// As [`for_each_weight`], reading only the paths that are wanted.
pub(crate) fn for_each_weight_in<M: Module>(
    module: &M,
    wants: impl Fn(&str) -> bool,
    mut f: impl FnMut(Weight) -> Result<()>,
) -> Result<()> {
    visit_items(module, wants, |item| match item {
        Item::Weight(weight) => f(weight),
        Item::Other { .. } => Ok(()),
    })
}

/// Calls `f` with every parameter, in the order of the module. Stops at the first error.
pub(crate) fn for_each_item<M: Module>(module: &M, f: impl FnMut(Item) -> Result<()>) -> Result<()> {
    visit_items(module, |_| true, f)
}

fn visit_items<M: Module>(module: &M, wants: impl Fn(&str) -> bool, f: impl FnMut(Item) -> Result<()>) -> Result<()> {
    let wanted = parameters(module).into_iter().filter(|parameter| wants(&parameter.path));
    let known = wanted.map(|parameter| (parameter.path.clone(), parameter)).collect();
    let mut reader = Reader { f, known, trail: Trail::default(), pending: None, result: Ok(()) };
    module.visit(&mut reader);
    reader.result
}

struct Reader<F> {
    f: F,
    known: BTreeMap<String, Parameter>,
    trail: Trail,
    pending: Option<Pending>,
    result: Result<()>,
}

/// A parameter whose attached state is still to come.
struct Pending {
    weight: Weight,
    state: State,
}

/// The state of [`Attached`] on the host.
#[derive(Debug, Default, Clone)]
pub(crate) struct State {
    pub(crate) form: Option<Form>,
    pub(crate) dropped: Vec<bool>,
    pub(crate) scale: Vec<f32>,
    pub(crate) zero: Vec<f32>,
}

impl State {
    /// The decision that this state stands for.
    pub(crate) fn decision(self, rows: &Rows) -> Decision {
        let n_cols = rows.n_cols;
        let mask = (!self.dropped.is_empty()).then(|| {
            let dropped: Vec<u8> = self.dropped.into_iter().map(u8::from).collect();
            let dropped = view::to_rows(dropped, rows);
            Mask::from_fn(rows.n_rows, n_cols, |row, col| dropped[row * n_cols + col] == 0)
        });
        let quant = self.form.filter(|_| !self.scale.is_empty()).map(|form| {
            let zero = if self.zero.is_empty() { vec![0.0; self.scale.len()] } else { self.zero };
            QuantParams::new(form.grid, form.grouping, n_cols, view::affines_to_rows(self.scale, zero, rows))
        });
        Decision { mask, quant }
    }
}

impl<F: FnMut(Item) -> Result<()>> Reader<F> {
    fn read<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<()> {
        let Some(parameter) = self.known.remove(&self.trail.path()) else { return Ok(()) };
        match parameter.reparameterized.as_deref() {
            None | Some(Attached::NAME) => {}
            Some(Packed::NAME) => {
                let message = "its weights are held as codes; materialize the module first";
                return Err(Error::config(message).at(&parameter.path));
            }
            Some(name) => {
                let message = format!("is reparameterized ({name:?}) by something else; materialize the module first");
                return Err(Error::refused(message).at(&parameter.path));
            }
        }
        let (rows, tensor) = (parameter.rows(), param.base());
        let dtype = tensor.dtype();
        let values = view::to_rows(read_f32(tensor, &parameter.path)?, &rows);
        let is_attached = parameter.reparameterized.as_deref() == Some(Attached::NAME);
        let weight = Weight { parameter, dtype, rows, values, decision: Decision::default(), form: None };
        if is_attached {
            self.pending = Some(Pending { weight, state: State::default() });
            return Ok(());
        }
        (self.f)(Item::Weight(weight))
    }

    /// The field of our own state where the visitor is, while a parameter waits for it.
    fn field(&self) -> Option<String> {
        let (_, name, field) = self.trail.reparameterized()?;
        (name == Attached::NAME && self.pending.is_some() && self.result.is_ok()).then_some(field)
    }

    /// Hands on a parameter that is no weight.
    fn pass_on(&mut self, dtype: DType, data: impl FnOnce() -> Result<TensorData>) {
        if self.result.is_err() {
            return;
        }
        if let Some(parameter) = self.known.remove(&self.trail.path()) {
            let outcome = data().map(|data| Item::Other { parameter, dtype, bytes: data.as_bytes().to_vec() });
            self.result = outcome.and_then(&mut self.f);
        }
    }

    fn keep(&mut self, outcome: Result<()>) {
        if self.result.is_ok() {
            self.result = outcome;
        }
    }

    fn take_floats(&mut self, field: &str, values: Vec<f32>) -> Result<()> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        match field {
            "scale" => pending.state.scale = values,
            _ => pending.state.zero = values,
        }
        if Some(&field) != FIELDS.last() {
            return Ok(());
        }
        let Some(Pending { mut weight, state }) = self.pending.take() else { return Ok(()) };
        weight.form = state.form;
        weight.decision = state.decision(&weight.rows);
        (self.f)(Item::Weight(weight))
    }
}

impl<F: FnMut(Item) -> Result<()>> ModuleVisitor for Reader<F> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.result.is_err() {
            return;
        }
        let outcome = match self.field() {
            Some(field) => {
                read_f32(param.base(), &self.trail.path()).and_then(|values| self.take_floats(&field, values))
            }
            None if self.trail.reparameterized().is_some() => Ok(()),
            None => self.read(param),
        };
        self.keep(outcome);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let path = self.trail.path();
        if self.field().is_none() {
            self.pass_on(param.val().dtype(), || {
                param.val().try_into_data().map_err(|error| unreadable(&path, &error))
            });
            return;
        }
        let data = param.val().try_into_data().map_err(|error| unreadable(&path, &error));
        let numbers = data.map(|data| data.iter::<i64>().collect::<Vec<_>>());
        match (numbers, &mut self.pending) {
            (Ok(numbers), Some(pending)) => pending.state.form = Form::from_numbers(&numbers),
            (Err(error), _) => self.keep(Err(error)),
            _ => {}
        }
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let path = self.trail.path();
        if self.field().is_none() {
            let data = || read_bools(param.val(), &path).map(|bools| TensorData::new(bools, param.val().shape()));
            self.pass_on(param.val().dtype(), data);
            return;
        }
        let dropped = read_bools(param.val(), &path);
        match (dropped, &mut self.pending) {
            (Ok(dropped), Some(pending)) => pending.state.dropped = dropped,
            (Err(error), _) => self.keep(Err(error)),
            _ => {}
        }
    }
}

/// Reads truth values to the host, however the device keeps them.
pub(crate) fn read_bools<const D: usize>(tensor: Tensor<D, Bool>, path: &str) -> Result<Vec<bool>> {
    let data: TensorData = tensor.try_into_data().map_err(|error| unreadable(path, &error))?;
    Ok(data.iter::<bool>().collect())
}
