//! Decodes checkpoints of the compressed-tensors library: int-quantized, pack-quantized and the former
//! sparse-bitmask.

use crate::foreign::ForeignLayout;
use crate::plain::{PlainFiles, TensorsByName};
use crate::quantization::{self, ModuleScheme, WeightForm};
use crate::stored::{PartBytes, StoredDir, StoredTensor};
use crate::{ActivationRounding, InputFile, TensorInfo, TensorSource, ValueGrid};
use briquette_core::encoded::{Codes, Part, ScaleType};
use briquette_core::{Coding, DType, Error, GridKind, Grouping, Mask, OutputAxis, Result, Storage};
use half::{bf16, f16};
use std::collections::{BTreeMap, BTreeSet};

/// Endings of tensors that belong to codes.
const PARTS: [&str; 8] = [
    ".weight_packed",
    ".weight_scale",
    ".weight_zero_point",
    ".weight_shape",
    ".weight_g_idx",
    ".weight_global_scale",
    ".input_scale",
    ".input_zero_point",
];

/// Assembles tensors from the parts in a checkpoint.
struct TensorAssembler<'a> {
    found: TensorsByName<'a>,
    files: Vec<&'a InputFile>,
    schemes: Vec<ModuleScheme>,
    used: BTreeSet<String>,
    /// The fixed grids of layer inputs, by the names of weights.
    grids: BTreeMap<String, ValueGrid>,
}

/// Assembles the tensors of a compressed-tensors checkpoint from their parts.
///
/// # Errors
/// - Input: parts are missing or contradict each other, or a scheme is not supported.
/// - Io: a file cannot be read.
pub(crate) fn open(plain: PlainFiles, config: &serde_json::Value) -> Result<StoredDir> {
    let schemes = quantization::schemes_of(config)?;
    let mut parts = TensorAssembler {
        found: plain.by_name(),
        files: plain.files(),
        schemes,
        used: BTreeSet::new(),
        grids: BTreeMap::new(),
    };
    let mut coded = BTreeMap::new();
    for info in plain.tensors() {
        let tensor = parts.tensor(info).map_err(|error| error.at(format_args!("tensor {:?}", info.name)))?;
        if let Some(tensor) = tensor {
            coded.insert(info.name.as_str(), tensor);
        }
    }
    let mut tensors = Vec::new();
    for info in plain.tensors() {
        match coded.remove(info.name.as_str()) {
            Some(tensor) => tensors.push(tensor),
            None if parts.used.contains(info.name.as_str()) => {}
            None => tensors.push(parts.as_it_is(info)?),
        }
    }
    let mut names = BTreeSet::new();
    if let Some(StoredTensor { info, .. }) = tensors.iter().find(|tensor| !names.insert(&tensor.info.name)) {
        let message = "found both plain and as codes; the checkpoint is damaged";
        return Err(Error::input(message).at(format_args!("tensor {:?}", info.name)));
    }
    let grids = std::mem::take(&mut parts.grids);
    drop(parts);
    Ok(StoredDir { input_grids: grids, ..StoredDir::new(plain.into_files(), tensors) })
}

impl TensorAssembler<'_> {
    /// Assembles the tensor whose largest part is `main`; `None` if `main` is not a largest part.
    fn tensor(&mut self, main: &TensorInfo) -> Result<Option<StoredTensor>> {
        if let Some(module) = main.name.strip_suffix(".weight_packed") {
            let shape = self.shape(&format!("{module}.weight_shape"))?;
            return self.codes(main, &format!("{module}.weight"), shape).map(Some);
        }
        if main.dtype == DType::I8 && self.found.has(&format!("{}_scale", main.name)) {
            let shape = <[usize; 2]>::try_from(main.shape.0.as_slice());
            let shape = shape
                .map_err(|_| Error::input("found codes of a shape that is not a matrix; the checkpoint is damaged"))?;
            return self.codes(main, &main.name, shape).map(Some);
        }
        match main.name.strip_suffix(".compressed") {
            Some(name) if self.found.has(&format!("{name}.bitmask")) => self.sparse(main, name).map(Some),
            _ => Ok(None),
        }
    }

    /// Assembles a quantized tensor, by the one scheme that matches its parts.
    fn codes(&mut self, main: &TensorInfo, name: &str, shape: [usize; 2]) -> Result<StoredTensor> {
        let part = |suffix: &str| self.found.get(&format!("{name}{suffix}"));
        let (scale, ..) =
            part("_scale").ok_or_else(|| Error::input("its scales are missing; the checkpoint is damaged"))?;
        let zero = part("_zero_point").map(|(info, ..)| info);
        let is_packed = main.name != name;
        let fits = |scheme: &&ModuleScheme| {
            let scheme = &scheme.form;
            let n_words = shape[1].checked_mul(scheme.n_bits.into()).map(|n_bits| n_bits.div_ceil(32));
            let is_main =
                !is_packed || n_words.is_some_and(|n| main.shape.0 == [shape[0], n] && main.dtype == DType::I32);
            scheme.is_packed == is_packed && is_main && fits_scales(scheme.grouping, shape, &scale.shape.0)
        };
        let fitting = quantization::by_module(self.schemes.iter().filter(fits).collect(), name);
        let mut forms: Vec<WeightForm> = fitting.iter().map(|scheme| scheme.form).collect();
        forms.dedup();
        let [scheme] = forms.as_slice() else {
            return Err(misfit(main, scale, forms.len()));
        };
        let grid = if zero.is_some() { GridKind::Asymmetric } else { GridKind::SymmetricFull };
        let scale_type = if scale.dtype == DType::F16 { ScaleType::F16 } else { ScaleType::F32 };
        let codes =
            Codes { bits: scheme.n_bits, grid, grouping: scheme.grouping, scale: scale_type, has_columns: false };
        let info = TensorInfo::checked(name.into(), scale.dtype, shape.to_vec())?;
        let mut tensor = stored(info, Coding { storage: Storage::Dense, codes: Some(codes) });
        tensor.activations = quantization::activations_of(&fitting);
        if tensor.activations == Some(ActivationRounding::Fixed) {
            let has_zero = fitting.iter().any(|scheme| scheme.has_input_zeros);
            let grid = self.grid(name.strip_suffix(".weight").unwrap_or(name), has_zero)?;
            self.grids.insert(name.to_string(), grid);
        }
        let n_groups = scheme.grouping.per_row(shape[1]).unwrap_or(1);
        let layout = zero.map(|zero| zero_layout(zero, scheme, shape[0], n_groups)).transpose()?.flatten();
        let of_codes = match (is_packed, scheme.n_bits) {
            (true, n_bits) => Some(ForeignLayout::words(n_bits, shape[1])),
            (false, 4) => Some(ForeignLayout::SignedBytes { n_cols: shape[1] }),
            (false, _) => None,
        };
        self.put(&mut tensor, Part::Codes, &main.name, of_codes)?;
        self.put(&mut tensor, Part::Scale, &format!("{name}_scale"), scale_layout(scale)?)?;
        if zero.is_some() {
            self.put(&mut tensor, Part::Zero, &format!("{name}_zero_point"), layout)?;
        }
        Ok(tensor)
    }

    /// Reads the fixed grid of a layer's inputs: `input_scale`, and `input_zero_point` if it is not symmetric.
    fn grid(&mut self, module: &str, has_zero: bool) -> Result<ValueGrid> {
        let missing = |part: &str| Error::input(format!("its {part} is missing; the checkpoint is damaged"));
        let scale = self.number(&format!("{module}.input_scale"))?.ok_or_else(|| missing("input_scale"))?;
        let zero = self.number(&format!("{module}.input_zero_point"))?;
        if has_zero && zero.is_none() {
            return Err(missing("input_zero_point"));
        }
        let zero = zero.unwrap_or(0.0);
        if !((scale as f32).is_normal() && scale > 0.0) {
            return Err(Error::input(format!(
                "found input_scale {scale}, expected a number above 0; the checkpoint is damaged"
            )));
        }
        Ok(ValueGrid { scale, zero: (zero + 128.0).clamp(0.0, 255.0) as u8 })
    }

    /// Reads a tensor of one number; `None` if there is no such tensor.
    fn number(&mut self, name: &str) -> Result<Option<f64>> {
        let Some((info, file, offset)) = self.found.get(name) else { return Ok(None) };
        let bad = || {
            Error::input(format!(
                "its part {name:?} is not one number of F32, F16, BF16 or I8; the checkpoint is damaged"
            ))
        };
        if info.n_elements() != 1 {
            return Err(bad());
        }
        let mut bytes = [0; 4];
        let bytes = bytes.get_mut(..info.n_bytes()).ok_or_else(bad)?;
        self.files.get(file).ok_or_else(bad)?.read_at(offset, bytes)?;
        let number = match (info.dtype, &*bytes) {
            (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).into(),
            (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).into(),
            (DType::I8, &[byte]) => i8::from_le_bytes([byte]).into(),
            _ => return Err(bad()),
        };
        self.used.insert(name.to_string());
        Ok(Some(number))
    }

    /// Assembles a sparse tensor from its kept values and its bitmask.
    fn sparse(&mut self, values: &TensorInfo, name: &str) -> Result<StoredTensor> {
        let shape = self.shape(&format!("{name}.shape"))?;
        let info = TensorInfo::checked(name.into(), values.dtype, shape.to_vec())?;
        let [n_kept] = values.shape.0.as_slice() else {
            return Err(Error::input(format!(
                "found values {}, expected one axis; the checkpoint is damaged",
                values.shape
            )));
        };
        if !values.dtype.is_weight() || *n_kept > info.n_elements() {
            return Err(Error::input(format!(
                "found {n_kept} values of {}, which do not fit {}; the checkpoint is damaged",
                values.dtype, info.shape
            )));
        }
        let mut tensor = stored(info, Coding { storage: Storage::Bitmask, codes: None });
        tensor.n_kept = *n_kept;
        self.put(&mut tensor, Part::Values, &values.name, None)?;
        let bitmask = (Part::Bitmask, "bitmask", DType::U8, vec![shape[0], Mask::row_bytes(shape[1])]);
        let offsets = (Part::RowOffsets, "row_offsets", DType::I64, vec![shape[0]]);
        for (part, suffix, dtype, expected) in [bitmask, offsets] {
            let part_name = format!("{name}.{suffix}");
            let found = self.found.get(&part_name).map(|(info, ..)| info);
            if !found.is_some_and(|info| info.dtype == dtype && info.shape.0 == expected) {
                return Err(Error::input(format!(
                    "its part {part_name:?} is missing or has another shape; the checkpoint is damaged"
                )));
            }
            self.put(&mut tensor, part, &part_name, None)?;
        }
        Ok(tensor)
    }

    /// Reads a matrix shape from a tensor of shape `[2]`.
    fn shape(&mut self, name: &str) -> Result<[usize; 2]> {
        let bad = || {
            Error::input(format!(
                "its part {name:?} is missing or not the shape of a matrix; the checkpoint is damaged"
            ))
        };
        let (info, file, offset) = self.found.get(name).ok_or_else(bad)?;
        if info.dtype != DType::I64 || info.shape.0 != [2] {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        self.files.get(file).ok_or_else(bad)?.read_at(offset, &mut bytes)?;
        self.used.insert(name.to_string());
        let extent = |bytes: &[u8; 8]| usize::try_from(i64::from_le_bytes(*bytes)).map_err(|_| bad());
        match bytes.as_chunks::<8>().0 {
            [rows, cols] => Ok([extent(rows)?, extent(cols)?]),
            _ => Err(bad()),
        }
    }

    /// Records the location of a part of a tensor.
    fn put(&mut self, tensor: &mut StoredTensor, part: Part, name: &str, layout: Option<ForeignLayout>) -> Result<()> {
        let place = self.found.get(name).map(|(_, file, offset)| (file, offset));
        let (file, offset) =
            place.ok_or_else(|| Error::input(format!("its part {name:?} is missing; the checkpoint is damaged")))?;
        let bytes = match layout {
            Some(layout) => PartBytes::Foreign { file, offset, layout: Box::new(layout) },
            None => PartBytes::File { file, offset },
        };
        tensor.parts.push((part, bytes));
        self.used.insert(name.to_string());
        Ok(())
    }

    /// Returns a tensor stored as it is, without parts.
    fn as_it_is(&mut self, info: &TensorInfo) -> Result<StoredTensor> {
        if let Some(part) = PARTS.iter().find(|part| info.name.ends_with(*part)) {
            let message = format!(
                "found a {} without its codes; the checkpoint is damaged or its scheme is not supported",
                &part[1..]
            );
            return Err(Error::input(message).at(format_args!("tensor {:?}", info.name)));
        }
        let mut tensor = stored(info.clone(), Coding::DENSE);
        self.put(&mut tensor, Part::Weight, &info.name, None)?;
        Ok(tensor)
    }
}

fn stored(info: TensorInfo, coding: Coding) -> StoredTensor {
    let n_kept = info.n_elements();
    StoredTensor { info, axis: OutputAxis::First, coding, n_kept, activations: None, parts: Vec::new() }
}

/// Returns the error for parts that match `n` schemes, not exactly one.
fn misfit(main: &TensorInfo, scale: &TensorInfo, n: usize) -> Error {
    let message = format!(
        "found {} {} with scales {}, which fits {n} of the schemes in {}, expected one; the checkpoint is damaged",
        main.dtype,
        main.shape,
        scale.shape,
        quantization::KEY
    );
    Error::input(message)
}

/// Returns whether scales of this shape are one per group.
///
/// Scales of channels and tensors may have extra axes of length 1.
fn fits_scales(grouping: Grouping, [n_rows, n_cols]: [usize; 2], scales: &[usize]) -> bool {
    match grouping {
        Grouping::Tensor => scales.iter().all(|&extent| extent == 1),
        Grouping::Row => scales == [n_rows, 1] || scales == [n_rows],
        Grouping::Group(_) => grouping.per_row(n_cols).is_some_and(|n| scales == [n_rows, n]),
    }
}

fn scale_layout(scale: &TensorInfo) -> Result<Option<ForeignLayout>> {
    match scale.dtype {
        DType::F32 | DType::F16 => Ok(None),
        DType::BF16 => Ok(Some(ForeignLayout::Bf16)),
        other => {
            Err(Error::input(format!("found scales of {other}, expected F32, F16 or BF16; this type is not supported")))
        }
    }
}

/// Returns how zero points are stored: one byte each, or packed into words along the rows.
fn zero_layout(
    zero: &TensorInfo,
    scheme: &WeightForm,
    n_rows: usize,
    n_groups: usize,
) -> Result<Option<ForeignLayout>> {
    let n_bits = usize::from(scheme.n_bits);
    let n_scales = if scheme.grouping == Grouping::Tensor { 1 } else { n_rows * n_groups };
    let n_rows = if scheme.grouping == Grouping::Tensor { 1 } else { n_rows };
    if zero.dtype == DType::I8 && zero.n_elements() == n_scales {
        return Ok(None);
    }
    if n_groups > 0 && zero.dtype == DType::I32 && zero.shape.0 == [(n_rows * n_bits).div_ceil(32), n_groups] {
        return Ok(Some(ForeignLayout::ZeroColumns { n_groups, n_bits }));
    }
    Err(Error::input(format!(
        "found zero points {} {}, expected one per scale; the checkpoint is damaged",
        zero.dtype, zero.shape
    )))
}
