//! The reparameterization that attaches a mask and a grid to a parameter.

use crate::form::Form;
use crate::module::view::{group_dims, n_scales};
use crate::rules::Fingerprint;
use briquette_core::{OutputAxis, Rows};
use briquette_ops::fused::masked::{ScaledGrid, ops};
use burn::module::{Module, Param, ParamId, Reparameterization};
use burn::tensor::{Bool, DType, Device, FloatDType, Int, Tensor, TensorData};

/// A mask, a grid, or both, attached to a parameter.
///
/// The module computes with `v = (clamp(round(w·m / scale) + zero) - zero) * scale`, bit for bit equal to
/// [`briquette_core::fake_quantize`].
///
/// Gradients pass to the kept weights as if nothing were rounded (straight-through estimator; Bengio et al.,
/// 2013). Dropped weights get no gradient. They stay exactly 0 in the computation, whatever momentum or weight
/// decay do to the stored weights. On the CPU, one fused pass handles f32 weights. Other devices and types, and
/// transposed convolutions, use burn's operations.
///
/// The state is part of the module's record:
///
/// - `form` (Int): the grid, and the step of the last decision
/// - `dropped` (Bool): the dropped weights, in the parameter's own order
/// - `scale`, `zero`: scales and zero points of the grid
/// - `rounded`: the weights on a trellis as of the last decision, in the parameter's own order
///
/// On a [trellis](briquette_core::entropy::trellis), a code depends on the codes above it. The module computes with `rounded` then,
/// which changes only when the rules are refreshed.
///
/// Their shapes follow from the rules alone: before a rule begins, nothing is dropped and scales are 0. So a
/// record of any step loads into a module with the same rules.
///
/// `rules` has no elements. Its extents are a hash of all settings of the rules for the parameter. burn refuses
/// a record with other extents, so it refuses a record of other rules. Older records have no such tensor;
/// [`load_record`](crate::load_record) loads them.
#[derive(Module, Debug)]
pub struct Attached {
    rules: Param<Tensor<4, Int>>,
    form: Param<Tensor<1, Int>>,
    dropped: Param<Tensor<1, Bool>>,
    scale: Param<Tensor<1>>,
    zero: Param<Tensor<1>>,
    rounded: Option<Param<Tensor<1>>>,
    #[module(skip)]
    rows: Rows,
    #[module(skip)]
    known_form: Option<Form>,
    #[module(skip)]
    compute: Option<FloatDType>,
    #[module(skip)]
    is_learned: bool,
}

/// The settings of the rules for a parameter, before anything is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestedRules {
    pub(crate) rows: Rows,
    pub(crate) form: Option<Form>,
    pub(crate) has_mask: bool,
    pub(crate) is_learned: bool,
    pub(crate) has_trellis: bool,
    pub(crate) rules: Fingerprint,
}

impl Attached {
    /// Returns a state that changes nothing yet.
    pub(crate) fn blank(requested: RequestedRules, compute: Option<FloatDType>, device: &Device) -> Self {
        let RequestedRules { rows, form, has_mask, is_learned, has_trellis, rules } = requested;
        let n = form.map_or(0, |form| n_scales(&rows, form.grouping));
        let n_zeros = if form.is_some_and(|form| form.grid.is_asymmetric()) { n } else { 0 };
        let dropped = vec![false; if has_mask { rows.n_elements() } else { 0 }];
        let plain = |n| floats(vec![0.0; n], device);
        Self {
            rules: Param::initialized(ParamId::new(), rules_tensor(rules, device)),
            form: Param::initialized(ParamId::new(), form_tensor(form.as_ref(), rows.axis, 0, device)),
            dropped: Param::initialized(ParamId::new(), bools(dropped, device)),
            scale: if is_learned { Param::from_tensor(plain(n)) } else { Param::initialized(ParamId::new(), plain(n)) },
            zero: Param::initialized(ParamId::new(), plain(n_zeros)),
            rounded: has_trellis.then(|| Param::initialized(ParamId::new(), plain(rows.n_elements()))),
            rows,
            known_form: form,
            compute,
            is_learned,
        }
    }

    /// Returns the grid and the activation quantization; `None` without a grid.
    pub(crate) fn form(&self) -> Option<&Form> {
        self.known_form.as_ref().filter(|_| self.scale.lazy_shape().num_elements() > 0)
    }

    /// Returns the weights as rows of outputs.
    pub(crate) fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Returns the scales: all 0 before quantization begins.
    pub(crate) fn scales(&self) -> Tensor<1> {
        self.scale.val().without_autodiff()
    }

    fn has_mask(&self) -> bool {
        self.dropped.lazy_shape().num_elements() > 0
    }

    fn fake_quantize<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        if let Some(rounded) = &self.rounded {
            return self.on_trellis(base, rounded.val().without_autodiff());
        }
        if self.rows.axis == OutputAxis::Second || !ops::fake_quantizes(&base) {
            return self.fake_quantize_by_tensors(base);
        }
        let is_learned = self.learns_from(&base);
        let scale = if is_learned { self.scale.val() } else { self.scales() };
        let has_begun = || ops::with_floats(&scale, |scales| scales.iter().any(|scale| *scale != 0.0)).unwrap_or(true);
        let form = self.form().filter(|_| has_begun());
        if form.is_none() && !self.has_mask() {
            return base;
        }
        let grid = form.map(|form| ScaledGrid { grid: form.grid, grouping: form.grouping, rows: self.rows });
        let zero = self.zero.val().without_autodiff();
        ops::fake_quantize(base, self.dropped.val(), [scale, zero], grid, is_learned)
    }

    /// Replaces weights by their values on a trellis; gradients pass straight through.
    fn on_trellis<const D: usize>(&self, base: Tensor<D>, rounded: Tensor<1>) -> Tensor<D> {
        let (shape, dtype) = (base.shape(), base.dtype());
        let plain = base.clone().without_autodiff();
        let is_unset = self.is_unset().reshape([1; D]).expand(shape.clone());
        let rounded = cast_to(rounded.reshape(shape), dtype).mask_where(is_unset, plain.clone());
        if base.is_autodiff() { (base - plain) + rounded } else { rounded }
    }

    /// Returns whether scales are trained along with these weights; scales of a frozen layer stay constant.
    fn learns_from<const D: usize>(&self, base: &Tensor<D>) -> bool {
        self.is_learned && base.is_tracked()
    }

    /// Computes the fused pass with burn's operations.
    fn fake_quantize_by_tensors<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let (shape, is_learned) = (base.shape(), self.learns_from(&base));
        let masked = if self.has_mask() { base.mask_fill(self.dropped.val().reshape(shape), 0.0) } else { base };
        let Some(form) = self.form() else { return masked };
        if is_learned {
            return self.round_learned(masked, form);
        }
        let plain = masked.clone().without_autodiff();
        let rounded = self.round(plain.clone(), form);
        if masked.is_autodiff() { (masked - plain) + rounded } else { rounded }
    }

    /// Rounds to the nearest points of the grid, in f32.
    ///
    /// The zero point only shifts the bounds: `clamp(round(w / s) + z) - z` is `clamp(round(w / s), min - z,
    /// max - z)`.
    fn round<const D: usize>(&self, values: Tensor<D>, form: &Form) -> Tensor<D> {
        let (shape, dtype) = (values.shape(), values.dtype());
        let (dims, scale_dims) = group_dims(&self.rows, form.grouping);
        let (scale, is_unset) = (positive(self.scales()).reshape(scale_dims), self.is_unset());
        let plain = cast_to(values, DType::F32).reshape(dims);
        let steps = plain.clone().div(scale.clone());
        let (low, high) = (f32::from(form.grid.min_code()), f32::from(form.grid.max_code()));
        let steps = if form.grid.is_asymmetric() {
            let zero = self.zero.val().without_autodiff().reshape(scale_dims);
            let (low, high) = (zero.clone().neg().add_scalar(low), zero.neg().add_scalar(high));
            steps.max_pair(low.expand(dims)).min_pair(high.expand(dims))
        } else {
            steps.clamp(low, high)
        };
        // Adding 0 turns -0.0 into +0.0, the value that the code decodes to.
        let rounded = steps.round().mul(scale).add_scalar(0.0).mask_where(is_unset.expand(dims), plain);
        cast_to(rounded.reshape(shape), dtype)
    }

    /// Quantizes with learned scales: see [`briquette_ops::fused::masked::learned_grads`].
    fn round_learned<const D: usize>(&self, masked: Tensor<D>, form: &Form) -> Tensor<D> {
        let (shape, dtype) = (masked.shape(), masked.dtype());
        let (dims, scale_dims) = group_dims(&self.rows, form.grouping);
        let (low, high) = (f32::from(form.grid.min_code()), f32::from(form.grid.max_code()));
        let n_sharing = dims.iter().product::<usize>() / scale_dims.iter().product::<usize>().max(1);
        let factor = 1.0 / (n_sharing as f32 * high).sqrt();
        let (scale, is_unset) = (positive(self.scale.val()), self.is_unset());
        // Keeps the value of the scale and multiplies its gradient by the factor.
        let scaled = scale.clone().mul_scalar(factor);
        let scale = ((scaled.clone() - scaled.detach()) + scale.detach()).reshape(scale_dims);
        let plain = cast_to(masked, DType::F32).reshape(dims);
        let steps = plain.clone().div(scale.clone()).clamp(low, high);
        let nearest = steps.clone().detach().round().add_scalar(0.0);
        let steps = (steps.clone() - steps.detach()) + nearest;
        cast_to(steps.mul(scale).mask_where(is_unset.expand(dims), plain).reshape(shape), dtype)
    }

    /// Returns one boolean on the device: whether quantization has not begun.
    fn is_unset(&self) -> Tensor<3, Bool> {
        self.scales().abs().max().equal_elem(0.0).reshape([1, 1, 1])
    }
}

impl Reparameterization for Attached {
    const NAME: &'static str = "briquette";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let value = self.fake_quantize(base);
        match self.compute {
            Some(dtype) => value.cast(dtype),
            None => value,
        }
    }
}

/// Converts stored numbers to scales: see [`briquette_ops::fused::masked::scale_of`].
fn positive(stored: Tensor<1>) -> Tensor<1> {
    let is_zero = stored.clone().equal_elem(0.0);
    stored.abs().mask_fill(is_zero, f32::MIN_POSITIVE)
}

/// Replaces the numbers of a vector and keeps its length and `require_grad`.
pub(crate) fn replaced<const D: usize>(
    param: Param<Tensor<D>>,
    numbers: impl FnOnce(usize) -> Vec<f32>,
) -> Param<Tensor<D>> {
    let device = param.lazy_device();
    param.map(|old| {
        let new = floats(numbers(old.shape().num_elements()), &device).reshape([-1; D]);
        if old.is_require_grad() { new.require_grad() } else { new }
    })
}

/// Returns a tensor without elements whose extents are the fingerprint of the rules.
fn rules_tensor(Fingerprint(extents): Fingerprint, device: &Device) -> Tensor<4, Int> {
    Tensor::from_data(TensorData::new(Vec::<i64>::new(), extents), (device, DType::I64))
}

/// Encodes a form, the step of the last decision and the output axis as a tensor.
pub(crate) fn form_tensor(form: Option<&Form>, axis: OutputAxis, step: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::from(Form::to_numbers(form, axis, step).as_slice()), (device, DType::I64))
}

/// Returns booleans as a tensor on a device.
pub(crate) fn bools(values: Vec<bool>, device: &Device) -> Tensor<1, Bool> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}

/// Returns numbers as an f32 tensor, whatever the device's default type.
pub(crate) fn floats(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), (device, DType::F32))
}

fn cast_to<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

#[cfg(all(test, feature = "flex"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use briquette_methods::quant::Scheme;
    use burn::tensor::Distribution;

    /// Returns a state that drops a third of the weights and quantizes the rest, some beyond the ends of the
    /// grid.
    fn state(scheme: &str, rows: Rows, is_learned: bool, device: &Device) -> Attached {
        let form = Form::of(&scheme.parse::<Scheme>().unwrap());
        let requested = RequestedRules {
            rows,
            form: Some(form),
            has_mask: true,
            is_learned,
            has_trellis: false,
            rules: Fingerprint::of(scheme),
        };
        let blank = Attached::blank(requested, None, device);
        let n = blank.scale.lazy_shape().num_elements();
        let n_zeros = blank.zero.lazy_shape().num_elements();
        let dropped = (0..rows.n_elements()).map(|i| i % 3 == 1).collect();
        Attached {
            dropped: blank.dropped.map(|_| bools(dropped, device)),
            scale: replaced(blank.scale, |_| (0..n).map(|i| 0.05 + (i % 5) as f32 * 0.01).collect()),
            zero: replaced(blank.zero, |_| (0..n_zeros).map(|i| (i % 5) as f32 - 2.0).collect()),
            ..blank
        }
    }

    fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.without_autodiff().into_data().try_into_vec().unwrap()
    }

    #[test]
    fn burn_operations_equal_the_fused_pass_and_its_gradients() {
        let device = Device::flex().autodiff();
        let schemes = [("int4", false), ("int4-asym", false), ("int3-g4", false), ("int4", true), ("int3-g4", true)];
        for ((scheme, is_learned), axis) in
            schemes.into_iter().flat_map(|case| [OutputAxis::First, OutputAxis::Last].map(|axis| (case, axis)))
        {
            let rows = Rows { axis, ..Rows::plain(7, 12) };
            let dims = if axis == OutputAxis::Last { [12, 7] } else { [7, 12] };
            let weights = Tensor::<2>::random(dims, Distribution::Normal(0.0, 0.3), &device).require_grad();
            let factors = Tensor::<2>::random(dims, Distribution::Normal(0.0, 1.0), &device);
            let attached = state(scheme, rows, is_learned, &device);
            let both = [attached.fake_quantize(weights.clone()), attached.fake_quantize_by_tensors(weights.clone())];
            let bits = |value: &Tensor<2>| numbers(value.clone()).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(&both[0]), bits(&both[1]), "{scheme} {is_learned} {axis:?}");
            let grads = both.map(|value| {
                let grads = (value * factors.clone()).sum().backward();
                (numbers(weights.grad(&grads).unwrap()), attached.scale.val().grad(&grads).map(numbers))
            });
            let [(one, of_scales), (other, by_tensors)] = grads;
            let is_near = |(one, other): (&f32, &f32)| (one - other).abs() <= 1e-6 * other.abs();
            assert!(one.iter().zip(&other).all(is_near), "{scheme} {is_learned} {axis:?}");
            assert_eq!((of_scales.is_some(), by_tensors.is_some()), (is_learned, is_learned));
            for (one, other) in of_scales.iter().flatten().zip(by_tensors.iter().flatten()) {
                assert!((one - other).abs() < 1e-4 * (1.0 + other.abs()), "{scheme} {axis:?}: {one} {other}");
            }
        }
    }

    #[test]
    fn a_blank_state_changes_nothing() {
        let device = Device::flex();
        let rows = Rows::plain(5, 8);
        let weights = Tensor::<2>::random([5, 8], Distribution::Normal(0.0, 0.3), &device);
        for (scheme, is_learned) in [("int4", false), ("int4-asym", false), ("int4-g4", true)] {
            let form = Some(Form::of(&scheme.parse::<Scheme>().unwrap()));
            let requested = RequestedRules {
                rows,
                form,
                has_mask: true,
                is_learned,
                has_trellis: false,
                rules: Fingerprint::of(""),
            };
            let blank = Attached::blank(requested, None, &device);
            for value in [blank.fake_quantize(weights.clone()), blank.fake_quantize_by_tensors(weights.clone())] {
                assert_eq!(numbers(value), numbers(weights.clone()), "{scheme}");
            }
        }
    }
}
