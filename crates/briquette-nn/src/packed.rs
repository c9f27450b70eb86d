//! Weights held as codes in place of a parameter's floats.

use crate::coded::{Coded, PackedCodes, Use};
use crate::form::{axis_of, number_of};
use crate::module::{is_kept_turned, linear_shape};
use crate::packed_weights::{NAMES, PackedWeights};
use briquette_core::{Error, OutputAxis, Result, Rows};
use briquette_ops::compressed;
use burn::module::{Module, Param, ParamId, Reparameterization};
use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};
use std::sync::{Arc, PoisonError, RwLock};

/// Codes that replace a parameter. The parameter's own tensor is a single NaN, stretched to its shape; its value is decoded from the
/// codes each time it is asked for, and the layers of [`crate::layers`] do not ask for it.
///
/// Codes are part of burn's records, as one of burn's quantized tensors: a byte for each weight, zeros too, and the scale of an output
/// for each block of at most 255 inputs that burn knows. They load again, bit for bit, into a module that holds codes of the same kind, for
/// which `form` stands; floats that are loaded are quantized. Copies of a module share codes: what is loaded into one of several stays
/// a quantized tensor of burn's, which is decoded for each use, and the others keep what they had.
#[derive(Module, Debug)]
pub struct Packed {
    /// What is held, as numbers that visitors can read: see [`PackedForm`].
    form: Param<Tensor<1, Int>>,
    #[module(skip)]
    held: SharedCodes,
}

/// What a [`Packed`] holds, as a visitor sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedForm {
    /// An index of [`NAMES`].
    pub(crate) name: usize,
    /// Bytes in memory.
    pub(crate) n_bytes: usize,
    /// What the codes are used for.
    pub(crate) what: Use,
    /// Which axis of the parameter counts outputs.
    pub(crate) axis: OutputAxis,
}

impl PackedForm {
    /// The numbers, and as many zeros as tell one use from another: burn refuses a record whose shapes differ, and so codes of
    /// another kind.
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

/// Codes, how they lie in the parameter, and what they are used for.
#[derive(Debug, Clone)]
struct CodeLayout {
    kept: PackedWeights,
    /// The axis that counts outputs in the parameter.
    axis: OutputAxis,
    /// The same in records, which hold the matrix of some layers transposed.
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

    /// The codes as rows of outputs, which lie as they do in records.
    fn coded(&self, device: &Device) -> Result<Coded> {
        let weights = self.kept.rows();
        let [n_rows, n_cols] = weights.dims();
        let (codes, scales) = compressed::codes(&weights, device)?;
        let rows = Rows { axis: self.axis_in_records, run: self.run, ..Rows::plain(n_rows, n_cols) };
        Ok(Coded { rows, codes, scales, is_sparse: self.is_sparse })
    }
}

/// Codes that a module shares with what loads and saves them: functions that burn keeps with the parameter.
#[derive(Debug, Clone)]
struct SharedCodes(Arc<RwLock<CodeLayout>>);

/// Holders of the codes of one parameter of one module: its [`Packed`], and the functions that load and save it and its form.
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

    /// The codes as a quantized tensor of burn's.
    ///
    /// # Panics
    /// If the device does not hand out the codes: saving has no way to hand an error on.
    fn saved<const D: usize>(&self, own: Tensor<D>) -> Tensor<D> {
        let (held, device, shape) = (self.get(), own.device(), own.dims());
        let coded = match is_loaded(&own) {
            true => Coded::of_tensor(own, held.axis, held.what, held.is_sparse),
            false => held.coded(&device),
        };
        let coded = coded.unwrap_or_else(|error| panic!("{error}")).along(held.axis_in_records);
        coded.to_burn(shape, held.what, &device)
    }

    /// Takes over what is loaded, and returns what stands for it in the parameter: the stretched NaN, or a quantized tensor of
    /// burn's where there are copies. What is of another shape is returned as it is.
    fn loaded<const D: usize>(&self, shape: [usize; D], tensor: Tensor<D>) -> Tensor<D> {
        let (held, device) = (self.get(), tensor.device());
        if tensor.dims() != shape {
            return if held.axis == held.axis_in_records { tensor } else { tensor.transpose() };
        }
        let taken = Coded::of_tensor(tensor.clone(), held.axis_in_records, held.what, held.is_sparse);
        let taken = taken.map(|coded| coded.along(held.axis));
        if self.has_copies() {
            return taken.map_or(tensor, |coded| coded.to_burn(shape, held.what, &device));
        }
        match taken.and_then(|coded| coded.pack(held.what, &device)) {
            Ok(laid_out) => {
                self.set(CodeLayout::new(laid_out, held.what, held.axis_in_records));
                stretched_nan(shape, &device, DType::F32)
            }
            Err(_) => tensor,
        }
    }
}

/// Whether a parameter's own tensor is a quantized one of burn's, which was loaded beside codes that others share.
fn is_loaded<const D: usize>(own: &Tensor<D>) -> bool {
    matches!(own.dtype(), DType::QFloat(_))
}

fn stretched_nan<const D: usize>(shape: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::<D>::full([1; D], f32::NAN, (device, dtype)).expand(shape)
}

impl Packed {
    /// Replaces a parameter by codes, and frees its floats. If there are none, keeps the parameter and stores the reason in `error`.
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
        let (saves, loads, tells) = (held.clone(), held.clone(), held.clone());
        let param = Param::initialized(id, stretched_nan(shape, &device, dtype))
            .save_mapper(move |own| saves.saved(own))
            .load_mapper(move |tensor| loads.loaded(shape, tensor));
        let form = Param::initialized(ParamId::new(), form).load_mapper(move |form| tells.get().form(&form.device()));
        (param, Self { form, held })
    }
}

/// Records hold the matrix of some layers transposed. Only of square ones codes can be told from floats by nothing else: others burn
/// refuses by their shape.
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

/// The codes of a parameter, where they are laid out for kernels of `device`.
pub(crate) fn kept_on<const D: usize>(param: &Param<Tensor<D>>, device: &Device) -> Option<PackedWeights> {
    let kept = param.reparameterization::<Packed>()?.held.get().kept;
    (kept.rows().runs_on(device) && !is_loaded(&param.base())).then_some(kept)
}

/// The codes of a parameter, whose reparameterization a visitor does not see.
///
/// # Errors
/// Io, where the device does not hand them out; a bug, where the parameter has no codes.
pub(crate) fn codes_of<const D: usize>(param: &Param<Tensor<D>>, form: PackedForm) -> Result<Coded> {
    let in_records = if is_kept_turned(param) { OutputAxis::First } else { form.axis };
    let coded = Coded::of_tensor(param.transform_for_save().val(), in_records, form.what, form.is_sparse())?;
    Ok(coded.along(form.axis))
}

/// Whether layers on this device run on codes rather than decode them for each use: on the CPU, and where autodiff is off.
pub fn holds_codes(device: &Device) -> bool {
    compressed::runs_on(device)
}
