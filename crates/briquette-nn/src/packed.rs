//! Integer codes that replace the floats of a parameter.

use crate::coded::{Coded, PackedCodes, Use};
use crate::form::{axis_of, number_of};
use crate::module::{is_kept_turned, linear_shape};
use crate::packed_weights::{NAMES, PackedWeights};
use briquette_core::{ColumnScales, Error, OutputAxis, Result, Rows};
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
/// module with codes of the same `form`. Loaded floats are quantized. Codes with scales of columns are stored as floats.
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
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PackedForm {
    /// Index in [`NAMES`].
    pub(crate) name: usize,
    /// Bytes in memory.
    pub(crate) n_bytes: usize,
    /// Operation that uses the codes.
    pub(crate) what: Use,
    /// Axis of the parameter that counts outputs.
    pub(crate) axis: OutputAxis,
    /// Scales of columns, if there are any.
    pub(crate) columns: Option<ColumnScales>,
}

impl PackedForm {
    /// Encodes the form as numbers. The length depends on the use and on the scales of columns, since burn refuses records
    /// with other shapes.
    fn to_numbers(&self) -> Vec<i64> {
        let (kind, detail) = self.what.to_numbers();
        let mut numbers = vec![self.name as i64, self.n_bytes as i64, kind, detail, number_of(self.axis)];
        numbers.resize(N_NUMBERS + kind as usize, 0);
        numbers.extend(self.columns.iter().flat_map(|columns| columns.bytes().iter().map(|&byte| i64::from(byte))));
        numbers
    }

    pub(crate) fn from_numbers(numbers: &[i64], shape: &[usize]) -> Option<Self> {
        let &[name, n_bytes, kind, detail, axis, ..] = numbers else { return None };
        let what = Use::from_numbers(kind, detail, shape)?;
        let axis = axis_of(axis)?;
        let bytes = numbers.get(N_NUMBERS + usize::try_from(kind).ok()?..).unwrap_or_default();
        let bytes = bytes.iter().map(|&byte| u8::try_from(byte).ok()).collect::<Option<Vec<u8>>>()?;
        let columns = (!bytes.is_empty()).then(|| ColumnScales::of_bytes(bytes));
        Some(Self { name: usize::try_from(name).ok()?, n_bytes: usize::try_from(n_bytes).ok()?, what, axis, columns })
    }

    pub(crate) fn is_sparse(&self) -> bool {
        NAMES.get(self.name).is_some_and(|name| name.starts_with("sparse"))
    }
}

/// The numbers of a form, without those that follow for its use.
const N_NUMBERS: usize = 5;

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

    fn columns(&self) -> Option<&ColumnScales> {
        self.kept.columns()
    }

    fn form(&self, device: &Device) -> Tensor<1, Int> {
        let (name, n_bytes) = (self.kept.name(), self.kept.n_bytes());
        let form = PackedForm { name, n_bytes, what: self.what, axis: self.axis, columns: self.columns().cloned() };
        Tensor::from_data(TensorData::from(form.to_numbers().as_slice()), (device, DType::I64))
    }

    /// Returns the codes as rows of outputs, with the output axis of records.
    fn coded(&self, device: &Device) -> Result<Coded> {
        let weights = self.kept.rows();
        let [n_rows, n_cols] = weights.dims();
        let (codes, scales) = compressed::codes(&weights, device)?;
        let rows = Rows { axis: self.axis_in_records, run: self.run, ..Rows::plain(n_rows, n_cols) };
        Ok(Coded { rows, codes, scales, columns: self.columns().cloned(), is_sparse: self.is_sparse })
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
            true => Coded::of_tensor(own, held.axis, held.what, (held.columns(), held.is_sparse)),
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
        // The values that a copy loads replace its own tensor, which burn's quantized tensors hold without scales of columns.
        let columns = held.columns().filter(|_| !self.has_copies());
        let form = (columns, held.is_sparse);
        let loaded = Coded::of_tensor(tensor.clone(), held.axis_in_records, held.what, form);
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
    let is_sparse = form.is_sparse();
    let coded =
        Coded::of_tensor(param.transform_for_save().val(), in_records, form.what, (form.columns.as_ref(), is_sparse))?;
    Ok(coded.along(form.axis))
}

/// Returns whether layers on this device can multiply codes: on CPU and CUDA devices without autodiff.
pub fn holds_codes(device: &Device) -> bool {
    compressed::runs_on(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_cpu::ActivationGrid;

    #[test]
    fn a_form_is_read_back_with_its_scales_of_columns() {
        for what in [Use::Int8(Some(ActivationGrid::Symmetric)), Use::Int4 { group: 32 }] {
            for columns in [None, Some(ColumnScales::nearest([0.5, 2.0, 1.0]))] {
                let form = PackedForm { name: 0, n_bytes: 12, what, axis: OutputAxis::Last, columns };
                assert_eq!(PackedForm::from_numbers(&form.to_numbers(), &[3, 3]), Some(form));
            }
        }
    }

    #[test]
    fn codes_with_scales_of_columns_become_floats_and_codes_again() {
        let (device, what) = (Device::flex(), Use::Int8(Some(ActivationGrid::Asymmetric)));
        let columns = ColumnScales::nearest([0.25, 1.0, 3.0, 8.0]);
        let (codes, scales) = (vec![127, 1, -3, 4, 5, -127, 7, 0, 0, 9, 127, -2], vec![0.01, 0.5, 2.0]);
        let rows = Rows::plain(3, 4);
        let coded = Coded { rows, codes, scales, columns: Some(columns.clone()), is_sparse: false };
        let floats = coded.to_burn([3, 4], what, &device);
        assert_eq!(floats.dtype(), DType::F32);
        let values = floats.clone().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(values, coded.values());
        let again = Coded::of_tensor(floats, OutputAxis::First, what, (Some(&columns), false)).unwrap();
        assert_eq!((again.codes, again.columns), (coded.codes.clone(), Some(columns)));
        let quant = coded.decision(what).quant.unwrap();
        assert_eq!(quant.columns, coded.columns);
        let kept = coded.pack(what, &device).unwrap().kept;
        let decoded = compressed::decode(Tensor::<1>::ones([1], &device), &kept.rows());
        assert_eq!(decoded.into_data().try_to_vec::<f32>().unwrap(), values);
    }
}
