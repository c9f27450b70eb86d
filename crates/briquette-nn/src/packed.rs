//! Integer codes that replace the floats of a parameter.

use crate::coded::{Coded, PackedCodes, Use};
use crate::form::{axis_of, number_of};
use crate::module::{is_kept_turned, linear_shape};
use crate::packed_weights::{NAMES, PackedWeights};
use briquette_core::{Error, OutputAxis, Result, Rows};
use briquette_ops::compressed;
use burn::module::{Module, Param, ParamId, Reparameterization};
use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};
use std::sync::{Arc, PoisonError, RwLock};

/// Integer codes that replace a parameter.
///
/// The parameter's own tensor is a single NaN, expanded to its shape. Reading its value decodes the codes; the
/// layers of [`crate::layers`] use the codes directly.
///
/// burn's records store the codes as a quantized tensor: one byte per weight, including zeros. burn's blocks
/// have at most 255 inputs, so the scale of an output is repeated. Such a record loads bit for bit into a
/// module with codes of the same `form`. Loaded floats are quantized.
///
/// Copies of a module share codes. A copy that loads a record gets burn's quantized tensor instead, which is
/// decoded for each use; the other copies keep their codes.
#[derive(Module, Debug)]
pub struct Packed {
    /// Form of the codes, as numbers that visitors can read: see [`PackedForm`].
    form: Param<Tensor<1, Int>>,
    #[module(skip)]
    held: SharedCodes,
}

/// The form of a [`Packed`], as visitors read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedForm {
    /// Index in [`NAMES`].
    pub(crate) name: usize,
    /// Bytes in memory.
    pub(crate) n_bytes: usize,
    /// Operation that uses the codes.
    pub(crate) what: Use,
    /// Axis of the parameter that counts outputs.
    pub(crate) axis: OutputAxis,
}

impl PackedForm {
    /// Encodes the form as numbers. The length depends on the use, since burn refuses records with other
    /// shapes.
    fn to_numbers(self) -> Vec<i64> {
        let (kind, detail) = self.what.to_numbers();
        let mut numbers = vec![self.name as i64, self.n_bytes as i64, kind, detail, number_of(self.axis)];
        numbers.resize(5 + kind as usize, 0);
        numbers
    }

    pub(crate) fn from_numbers(numbers: &[i64], shape: &[usize]) -> Option<Self> {
        let &[name, n_bytes, kind, detail, axis, ..] = numbers else { return None };
        let what = Use::from_numbers(kind, detail, shape)?;
        let axis = axis_of(axis)?;
        Some(Self { name: usize::try_from(name).ok()?, n_bytes: usize::try_from(n_bytes).ok()?, what, axis })
    }

    pub(crate) fn is_sparse(self) -> bool {
        NAMES.get(self.name).is_some_and(|name| name.starts_with("sparse"))
    }
}

/// Codes, their layout in the parameter, and their use.
#[derive(Debug, Clone)]
struct CodeLayout {
    kept: PackedWeights,
    /// Axis of the parameter that counts outputs.
    axis: OutputAxis,
    /// The same axis in records, which store some layers' matrices transposed.
    axis_in_records: OutputAxis,
    /// See [`Rows::run`].
    run: usize,
    what: Use,
    is_sparse: bool,
}

impl CodeLayout {
    fn new(PackedCodes { kept, rows, is_sparse }: PackedCodes, what: Use, axis_in_records: OutputAxis) -> Self {
        Self { kept, axis: rows.axis, axis_in_records, run: rows.run, what, is_sparse }
    }

    fn form(&self, device: &Device) -> Tensor<1, Int> {
        let (name, n_bytes) = (self.kept.name(), self.kept.n_bytes());
        let form = PackedForm { name, n_bytes, what: self.what, axis: self.axis };
        Tensor::from_data(TensorData::from(form.to_numbers().as_slice()), (device, DType::I64))
    }

    /// Returns the codes as rows of outputs, with the output axis of records.
    fn coded(&self, device: &Device) -> Result<Coded> {
        let weights = self.kept.rows();
        let [n_rows, n_cols] = weights.dims();
        let (codes, scales) = compressed::codes(&weights, device)?;
        let rows = Rows { axis: self.axis_in_records, run: self.run, ..Rows::plain(n_rows, n_cols) };
        Ok(Coded { rows, codes, scales, is_sparse: self.is_sparse })
    }
}

/// Codes shared by a module and by the load and save functions that burn stores with the parameter.
#[derive(Debug, Clone)]
struct SharedCodes(Arc<RwLock<CodeLayout>>);

/// Owners of one parameter's codes in one module: the [`Packed`], two functions to save and load, and one for
/// the form.
const N_HOLDERS: usize = 4;

impl SharedCodes {
    fn get(&self) -> CodeLayout {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, codes: CodeLayout) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = codes;
    }

    fn has_copies(&self) -> bool {
        Arc::strong_count(&self.0) > N_HOLDERS
    }

    /// Returns the codes as a quantized tensor of burn.
    ///
    /// # Panics
    /// If the device does not return the codes: burn's saving cannot return errors.
    fn saved<const D: usize>(&self, own: Tensor<D>) -> Tensor<D> {
        let (held, device, shape) = (self.get(), own.device(), own.dims());
        let coded = match is_loaded(&own) {
            true => Coded::of_tensor(own, held.axis, held.what, held.is_sparse),
            false => held.coded(&device),
        };
        let coded = coded.unwrap_or_else(|error| panic!("{error}")).along(held.axis_in_records);
        coded.to_burn(shape, held.what, &device)
    }

    /// Stores loaded values as codes and returns the parameter's new tensor.
    ///
    /// That is the expanded NaN or, if copies share the codes, a quantized tensor of burn. A tensor of another
    /// shape is returned unchanged.
    fn loaded<const D: usize>(&self, shape: [usize; D], tensor: Tensor<D>) -> Tensor<D> {
        let (held, device) = (self.get(), tensor.device());
        if tensor.dims() != shape {
            return if held.axis == held.axis_in_records { tensor } else { tensor.transpose() };
        }
        let loaded = Coded::of_tensor(tensor.clone(), held.axis_in_records, held.what, held.is_sparse);
        let loaded = loaded.map(|coded| coded.along(held.axis));
        if self.has_copies() {
            return loaded.map_or(tensor, |coded| coded.to_burn(shape, held.what, &device));
        }
        match loaded.and_then(|coded| coded.pack(held.what, &device)) {
            Ok(laid_out) => {
                self.set(CodeLayout::new(laid_out, held.what, held.axis_in_records));
                stretched_nan(shape, &device, DType::F32)
            }
            Err(_) => tensor,
        }
    }
}

/// Returns whether a parameter's own tensor is quantized by burn: it was loaded while copies shared the codes.
fn is_loaded<const D: usize>(own: &Tensor<D>) -> bool {
    matches!(own.dtype(), DType::QFloat(_))
}

fn stretched_nan<const D: usize>(shape: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::<D>::full([1; D], f32::NAN, (device, dtype)).expand(shape)
}

impl Packed {
    /// Replaces a parameter by codes and frees its floats. On an error, keeps the parameter and stores the
    /// error.
    pub(crate) fn replace_or_keep<const D: usize>(
        codes: Result<PackedCodes>,
        what: Use,
        param: Param<Tensor<D>>,
        error: &mut Option<Error>,
    ) -> (Param<Tensor<D>>, Option<Self>) {
        match codes {
            Ok(laid_out) => {
                let in_records = axis_in_records(&param, &laid_out.rows);
                let (param, packed) = Self::replace(CodeLayout::new(laid_out, what, in_records), param);
                (param, Some(packed))
            }
            Err(found) => {
                *error = Some(found);
                (param, None)
            }
        }
    }

    fn replace<const D: usize>(codes: CodeLayout, param: Param<Tensor<D>>) -> (Param<Tensor<D>>, Self) {
        let (id, device) = (param.id, param.lazy_device());
        let is_matrix = D == 2 && codes.axis == OutputAxis::Last;
        let dims = if is_matrix { linear_shape(&param) } else { param.lazy_shape().to_vec() };
        let shape: [usize; D] = Shape::from(dims).dims();
        let dtype = Some(&param).filter(|param| param.is_initialized()).map(|param| param.base().dtype());
        let dtype = dtype.filter(DType::is_float).unwrap_or(DType::F32);
        let form = codes.form(&device);
        let held = SharedCodes(Arc::new(RwLock::new(codes)));
        let (saves, loads, reads) = (held.clone(), held.clone(), held.clone());
        let param = Param::initialized(id, stretched_nan(shape, &device, dtype))
            .save_mapper(move |own| saves.saved(own))
            .load_mapper(move |tensor| loads.loaded(shape, tensor));
        let form = Param::initialized(ParamId::new(), form).load_mapper(move |form| reads.get().form(&form.device()));
        (param, Self { form, held })
    }
}

/// Returns the output axis in records, which store some layers' matrices transposed.
///
/// Only square matrices need this: for others, burn refuses the record by its shape.
fn axis_in_records<const D: usize>(param: &Param<Tensor<D>>, rows: &Rows) -> OutputAxis {
    let is_turned = rows.axis == OutputAxis::Last && rows.n_rows == rows.n_cols && is_kept_turned(param);
    if is_turned { OutputAxis::First } else { rows.axis }
}

impl Reparameterization for Packed {
    const NAME: &'static str = "packed";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        if is_loaded(&base) {
            return base.dequantize();
        }
        let CodeLayout { kept, axis, .. } = self.held.get();
        let mut shape: [usize; D] = base.dims();
        if axis.is_turned() {
            shape.swap(0, 1);
        }
        let values = compressed::decode(base, &kept.rows()).reshape::<D, _>(Shape::from(shape));
        if axis.is_turned() { values.swap_dims(0, 1) } else { values }
    }
}

/// Returns the codes of a parameter if they are packed for kernels of `device`.
pub(crate) fn kept_on<const D: usize>(param: &Param<Tensor<D>>, device: &Device) -> Option<PackedWeights> {
    let kept = param.reparameterization::<Packed>()?.held.get().kept;
    (kept.rows().runs_on(device) && !is_loaded(&param.base())).then_some(kept)
}

/// Returns the codes of a parameter, for visitors, which cannot access its reparameterization.
///
/// # Errors
/// - Io: the device does not return the codes
/// - Bug: the parameter has no codes
pub(crate) fn codes_of<const D: usize>(param: &Param<Tensor<D>>, form: PackedForm) -> Result<Coded> {
    let in_records = if is_kept_turned(param) { OutputAxis::First } else { form.axis };
    let coded = Coded::of_tensor(param.transform_for_save().val(), in_records, form.what, form.is_sparse())?;
    Ok(coded.along(form.axis))
}

/// Returns whether layers on this device can multiply codes: on CPU and CUDA devices without autodiff.
pub fn holds_codes(device: &Device) -> bool {
    compressed::runs_on(device)
}
