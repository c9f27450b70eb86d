//! A decision as part of a module: the one reparameterization.

use crate::form::Form;
use crate::parameters::Trail;
use crate::view::group_dims;
use briquette_core::Rows;
use burn::module::{Module, ModuleMapper, Param, ParamId, Reparameterization};
use burn::tensor::{Bool, DType, Device, FloatDType, Int, Tensor, TensorData};

/// A mask, a grid, or both, attached to a parameter: the module computes with
/// `v = (clamp(round(w·m / scale) + zero) - zero) * scale`, bit for bit what [`briquette_core::simulate`] says.
///
/// The gradient of `v` reaches the kept weights as if nothing were rounded: `v = q.detach() + (w·m - (w·m).detach())`
/// (the straight-through estimator; Bengio et al., 2013). Dropped weights get no gradient, and are exactly 0 whatever momentum or
/// weight decay do to the stored weights.
///
/// The state is part of the module's record: `form` says which grid (Int), `dropped` which weights are dropped (Bool, in the
/// parameter's own order), `scale` and `zero` hold the grid's numbers. Each is empty where it does not apply. A record of another scheme
/// does not load: its `form` has another length, which burn refuses.
#[derive(Module, Debug)]
pub struct Attached {
    form: Param<Tensor<1, Int>>,
    dropped: Param<Tensor<1, Bool>>,
    scale: Param<Tensor<1>>,
    zero: Param<Tensor<1>>,
    #[module(skip)]
    rows: Rows,
    #[module(skip)]
    known_form: Option<Form>,
    #[module(skip)]
    compute: Option<FloatDType>,
}

impl Attached {
    /// A blank state, which changes nothing yet.
    pub(crate) fn blank(rows: Rows, form: Option<Form>, compute: Option<FloatDType>, device: &Device) -> Self {
        let numbers = TensorData::from(Form::to_numbers(form.as_ref()).as_slice());
        Self {
            form: Param::initialized(ParamId::new(), Tensor::from_data(numbers, (device, DType::I64))),
            dropped: Param::initialized(ParamId::new(), bools(Vec::new(), device)),
            scale: Param::initialized(ParamId::new(), floats(Vec::new(), device)),
            zero: Param::initialized(ParamId::new(), floats(Vec::new(), device)),
            rows,
            known_form: form,
            compute,
        }
    }

    fn mask<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        if self.dropped.lazy_shape().num_elements() == 0 {
            return base;
        }
        let shape = base.shape();
        base.mask_fill(self.dropped.val().reshape(shape), 0.0)
    }

    /// The nearest points of the grid, in f32. The zero point only moves the bounds: `clamp(round(w / s) + z) - z` is
    /// `clamp(round(w / s), min - z, max - z)`.
    fn round<const D: usize>(&self, values: Tensor<D>, form: &Form) -> Tensor<D> {
        let (shape, dtype) = (values.shape(), values.dtype());
        let (dims, scale_dims) = group_dims(&self.rows, form.grouping);
        let scale = self.scale.val().without_autodiff().reshape(scale_dims);
        let steps = cast_to(values, DType::F32).reshape(dims).div(scale.clone());
        let (low, high) = (f32::from(form.grid.min_code()), f32::from(form.grid.max_code()));
        let steps = if form.grid.is_asymmetric() {
            let zero = self.zero.val().without_autodiff().reshape(scale_dims);
            let (low, high) = (zero.clone().neg().add_scalar(low), zero.neg().add_scalar(high));
            steps.max_pair(low.expand(dims)).min_pair(high.expand(dims))
        } else {
            steps.clamp(low, high)
        };
        // Adding 0 turns -0.0 into +0.0, as a code decodes to.
        cast_to(steps.round().mul(scale).add_scalar(0.0).reshape(shape), dtype)
    }
}

impl Reparameterization for Attached {
    const NAME: &'static str = "briquette";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let masked = self.mask(base);
        let value = match &self.known_form {
            Some(form) if self.scale.lazy_shape().num_elements() > 0 => {
                let plain = masked.clone().without_autodiff();
                let rounded = self.round(plain.clone(), form);
                if masked.is_autodiff() { (masked - plain) + rounded } else { rounded }
            }
            _ => masked,
        };
        match self.compute {
            Some(dtype) => value.cast(dtype),
            None => value,
        }
    }
}

/// Takes the grids away from a module and leaves the masks: gives the trained weights before rounding.
pub fn without_grids<M: Module>(module: M) -> M {
    module.map(&mut GridRemover(Trail::default()))
}

struct GridRemover(Trail);

impl ModuleMapper for GridRemover {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.0.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_grid =
            |(_, name, field): (String, &str, String)| name == Attached::NAME && (field == "scale" || field == "zero");
        if !self.0.reparameterized().is_some_and(is_grid) {
            return param;
        }
        let (id, device) = (param.id, param.lazy_device());
        Param::initialized(id, floats(Vec::new(), &device).reshape([0; D]))
    }
}

/// Booleans as a tensor on a device.
pub(crate) fn bools(values: Vec<bool>, device: &Device) -> Tensor<1, Bool> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}

/// Numbers as a tensor on a device, in f32 whatever the device's default type.
pub(crate) fn floats(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), (device, DType::F32))
}

fn cast_to<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}
