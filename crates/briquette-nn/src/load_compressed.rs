//! Fills a module from a compressed directory without decoding the codes.

use crate::coded::{Coded, PackedCodes, StoredUse, Use};
use crate::load::{ParameterPlace, fill, places_of};
use crate::packed::Packed;
use crate::{Kind, NameMap, Parameter, holds_codes};
use briquette_core::encoded::Codes;
use briquette_core::{Error, GridKind, Grouping, Mask, OutputAxis, Result, Role, Rows};
use briquette_cpu::{ActivationGrid, CodeGrid, MAX_DEPTH};
use briquette_formats::stored::StoredDir;
use briquette_formats::{ActivationGrids, ActivationRounding, Checkpoint, StoredTensor};
use briquette_ops::compressed;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Like [`load_into`](crate::load_into), but layers that can run on codes take the stored codes unchanged.
///
/// This applies to linear layers, convolutions and embeddings of up to 8 bits with one scale per row, and to
/// 4-bit matrices in groups. All other tensors are decoded to floats.
///
/// Layers multiply integers only if the checkpoint declares int8 activations, in its manifest or in
/// `quantization_config`. Otherwise the codes of a linear layer are dequantized in registers, and those of a
/// convolution for each use. Memory is the codes, plus one large tensor or one small tensor per thread.
///
/// # Errors
/// Refused: compressed-tensors asks for an activation quantization that is not supported here. See
/// [`load_into`](crate::load_into) for other errors.
pub fn load_compressed<M: Module>(module: M, checkpoint: &Checkpoint, names: &NameMap) -> Result<M> {
    let wanted = names.parameters(&module)?;
    let mut places = places_of(&wanted, checkpoint, names)?;
    let looks_up = module.devices().iter().all(compressed::looks_up);
    let grids = ActivationGrids::of(checkpoint)?;
    let (mut uses, mut of_codes) = (BTreeMap::new(), BTreeMap::new());
    for parameter in wanted {
        let holds_codes = parameter.reparameterized.as_deref() == Some(Packed::NAME);
        let Some(&place) = places.get(&parameter.path) else { continue };
        if parameter.reparameterized.is_some() && !holds_codes {
            continue;
        }
        let what = use_of(&parameter, place, (checkpoint, &grids), looks_up);
        check_activations(&parameter, place, checkpoint, what)?;
        warn_of_depth(&parameter, place, checkpoint, what);
        if let Some(what) = what {
            places.remove(&parameter.path);
            let uses = if holds_codes { &mut of_codes } else { &mut uses };
            uses.insert(parameter.path, StoredUse { index: place.index, what, axis: parameter.axis });
        }
    }
    let mut module = fill(module, checkpoint, places, of_codes)?;
    let mut error = None;
    if let Some(stored) = checkpoint.stored() {
        let ready = if looks_up { pack_small(stored, &uses, &module.devices()) } else { BTreeMap::new() };
        module = module.apply_reparameterization(StoredPacker { stored, uses, ready, error: &mut error });
    }
    error.map_or(Ok(()), Err)?;
    checkpoint.check_unchanged()?;
    Ok(module)
}

/// Returns the bytes of a module's parameters after [`load_compressed`], computed from headers.
///
/// On a device whose layers do not [hold codes](crate::holds_codes), this is the size as floats. Kernels may
/// pad codes to whole panels and use slightly more.
///
/// # Errors
/// Input: the checkpoint does not fit the module.
pub fn predicted_bytes<M: Module>(module: &M, checkpoint: &Checkpoint, names: &NameMap) -> Result<u64> {
    let wanted = names.parameters(module)?;
    let places = places_of(&wanted, checkpoint, names)?;
    let holds_codes = module.devices().iter().all(holds_codes);
    let looks_up = module.devices().iter().all(compressed::looks_up);
    let grids = ActivationGrids::of(checkpoint)?;
    let held = |parameter: &Parameter| {
        let place = *places.get(&parameter.path).filter(|_| holds_codes)?;
        Some(
            use_of(parameter, place, (checkpoint, &grids), looks_up)?
                .n_bytes(&checkpoint.stored()?.tensors[place.index]),
        )
    };
    let n_elements = |parameter: &Parameter| parameter.shape.0.iter().product::<usize>();
    let plain = |parameter: &Parameter| n_elements(parameter) * if parameter.kind == Kind::Bool { 1 } else { 4 };
    Ok(wanted.iter().map(|parameter| held(parameter).unwrap_or_else(|| plain(parameter)) as u64).sum())
}

impl Use {
    /// Returns the bytes of a tensor's codes, scales and kernel data.
    fn n_bytes(self, tensor: &StoredTensor) -> usize {
        let Rows { n_rows, n_cols, .. } = tensor.rows();
        let codes = match tensor.is_held_sparse() {
            false => n_rows * n_cols,
            true => n_rows * Mask::row_bytes(n_cols) + tensor.n_kept,
        };
        match self {
            // Each row has a scale and the sum of its codes.
            Self::Int8(_) | Self::Conv(..) | Self::Fixed(_) => codes + 8 * n_rows,
            Self::Int4 { group } => n_rows * n_cols.div_ceil(2) + 4 * n_rows * n_cols.div_ceil(group.max(1)),
            // Each row also has the sum of its weights.
            Self::W4A8 { group, .. } => n_rows * n_cols.div_ceil(2) + 4 * n_rows * (1 + n_cols.div_ceil(group.max(1))),
            // A sparse table also has an offset per row.
            Self::Table | Self::Decoded if tensor.is_held_sparse() => codes + 12 * n_rows,
            Self::Table | Self::Decoded => codes + 4 * n_rows,
        }
    }
}

/// Returns how a layer rounds its inputs on the CPU when it runs on the codes of its tensor; `None` if they stay floats, or if the
/// network rounds them.
pub(crate) fn inputs_of(
    parameter: &Parameter,
    place: ParameterPlace,
    of_file: (&Checkpoint, &ActivationGrids),
) -> Option<ActivationGrid> {
    match use_of(parameter, place, of_file, true)? {
        Use::Int8(grid) => grid,
        Use::Conv(grid, _) | Use::W4A8 { grid, .. } => Some(grid),
        Use::Int4 { .. } | Use::Fixed(_) | Use::Table | Use::Decoded => None,
    }
}

/// Returns the use of a tensor's codes; `None` if its layer cannot hold them.
///
/// `looks_up` is true if rows can be looked up in codes that are packed for multiplication.
fn use_of(
    parameter: &Parameter,
    place: ParameterPlace,
    (checkpoint, grids): (&Checkpoint, &ActivationGrids),
    looks_up: bool,
) -> Option<Use> {
    let tensor = checkpoint.stored()?.tensors.get(place.index)?;
    let Codes { bits, grid, grouping, has_columns, .. } = tensor.coding.codes?;
    let is_linear = parameter.role != Role::Embedding && parameter.conv_dims().is_none();
    if grid == GridKind::Asymmetric || parameter.rows().n_cols == 0 || has_columns && !is_linear {
        return None;
    }
    let (n_in, activations) = (parameter.rows().n_cols, activations_of(tensor, grids));
    let is_by_row = !matches!(grouping, Grouping::Group(_));
    let as_product = || match (grouping, activations?) {
        (Grouping::Group(group), None) if bits <= 4 => Some(Use::Int4 { group }),
        (_, None) if is_by_row && bits <= 4 => Some(Use::Int4 { group: n_in }),
        (Grouping::Group(group), Some(grid)) if bits <= 4 && n_in <= MAX_DEPTH => Some(Use::W4A8 { grid, group }),
        (_, Some(grid)) if is_by_row && bits <= 4 && n_in <= MAX_DEPTH => Some(Use::W4A8 { grid, group: n_in }),
        (_, grid) if is_by_row && n_in <= MAX_DEPTH => Some(Use::Int8(grid)),
        _ => None,
    };
    if parameter.role == Role::Embedding {
        let in_panels = looks_up && parameter.runs_on_codes && (parameter.is_head || bits <= 4);
        let table = || is_by_row.then_some(Use::Table);
        let what = if in_panels { as_product().or_else(table) } else { table() };
        return what.filter(|_| tensor.axis == OutputAxis::First);
    }
    // In the file, rows are outputs, whichever axis of the tensor counts them.
    let is_by_output = match parameter.conv_dims() {
        Some(_) => tensor.axis == OutputAxis::First && !place.is_turned,
        None => parameter.is_linear_weight() && place.is_turned == (tensor.axis == OutputAxis::First),
    };
    if !is_by_output {
        return None;
    }
    let is_fixed = tensor.activations == Some(ActivationRounding::Fixed);
    match (activations?, parameter.conv_dims()) {
        (_, Some(dims)) if is_fixed && is_by_row && n_in <= MAX_DEPTH => Some(Use::Fixed(dims)),
        (Some(grid), Some(dims)) if is_by_row && n_in <= MAX_DEPTH => Some(Use::Conv(grid, dims)),
        (None, Some(_)) if is_by_row => Some(Use::Decoded),
        (_, Some(_)) => None,
        (_, None) => as_product(),
    }
}

/// Returns the activation grid of a tensor (inner `None`: float activations); `None` if it is not supported
/// here.
fn activations_of(tensor: &StoredTensor, grids: &ActivationGrids) -> Option<Option<ActivationGrid>> {
    Some(match tensor.activations {
        None => None,
        // Without a grid of the layer, the network rounds its inputs.
        Some(ActivationRounding::Fixed) => {
            let grid = grids.layers.get(tensor.info.name.as_str());
            grid.map(|grid| ActivationGrid::Fixed(CodeGrid { scale: grid.scale as f32, zero: grid.zero }))
        }
        Some(ActivationRounding::Asymmetric) => Some(ActivationGrid::Asymmetric),
        Some(ActivationRounding::Symmetric) => Some(ActivationGrid::Symmetric),
        Some(ActivationRounding::SymmetricFull) => Some(ActivationGrid::SymmetricFull),
        Some(ActivationRounding::Other) => return None,
    })
}

/// Refuses codes that other programs run with quantized activations and Briquette would run with floats:
/// results would differ.
fn check_activations(
    parameter: &Parameter,
    place: ParameterPlace,
    checkpoint: &Checkpoint,
    what: Option<Use>,
) -> Result<()> {
    let is_foreign = checkpoint.format().is_for_transformers();
    let Some(tensor) = checkpoint.stored().map(|stored| &stored.tensors[place.index]) else { return Ok(()) };
    let is_run = matches!(what, Some(Use::Int8(Some(_)) | Use::Conv(..) | Use::W4A8 { .. }));
    if !is_foreign || is_run || tensor.activations.is_none() || !parameter.is_linear_weight() {
        return Ok(());
    }
    let what = match tensor.activations {
        Some(ActivationRounding::Other) => "are not int8 per token",
        _ => "are int8, but its weights are neither int4 nor int8 with one scale per output",
    };
    let message = format!("its activations {what}, which is not supported here; run the model in transformers or vLLM");
    Err(Error::refused(message).at(format_args!("tensor {:?}", tensor.info.name)))
}

/// Warns about codes that become floats because the layer has more inputs than the kernels support.
fn warn_of_depth(parameter: &Parameter, place: ParameterPlace, checkpoint: &Checkpoint, what: Option<Use>) {
    let n_inputs = parameter.rows().n_cols;
    let has_codes = checkpoint.stored().is_some_and(|stored| stored.tensors[place.index].coding.codes.is_some());
    if what.is_none() && has_codes && parameter.runs_on_codes && n_inputs > MAX_DEPTH {
        let path = &parameter.path;
        log::warn!("{path}: codes become floats: {n_inputs} inputs, int8 kernels support at most {MAX_DEPTH}");
    }
}

/// From this number of codes on, all threads share one tensor.
const SMALL: usize = 1 << 22;

/// Packs the codes of small tensors on the CPU, one tensor per thread: their few blocks would not occupy all
/// threads.
fn pack_small(stored: &StoredDir, uses: &BTreeMap<String, StoredUse>, devices: &[Device]) -> Packings {
    let Some(device) = devices.first() else { return BTreeMap::new() };
    let is_small = |its: &StoredUse| stored.tensors[its.index].rows().n_elements() < SMALL;
    let small: Vec<(&String, &StoredUse)> = uses.iter().filter(|(_, its)| is_small(its)).collect();
    let packed = small.into_par_iter().map(|(path, its)| (path.clone(), Coded::pack_stored(stored, *its, device)));
    packed.collect()
}

/// Packed codes by parameter path.
type Packings = BTreeMap<String, Result<PackedCodes>>;

struct StoredPacker<'a> {
    stored: &'a StoredDir,
    uses: BTreeMap<String, StoredUse>,
    ready: Packings,
    error: &'a mut Option<Error>,
}

impl Reparameterizer for StoredPacker<'_> {
    type Reparam = Packed;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Packed>) {
        let Some(stored) = self.uses.remove(path).filter(|_| self.error.is_none()) else {
            return (param, None);
        };
        let codes = self.ready.remove(path);
        let codes = codes.unwrap_or_else(|| Coded::pack_stored(self.stored, stored, &param.lazy_device()));
        let (param, packed) = Packed::replace_or_keep(codes, stored.what, param, self.error);
        if packed.is_none() {
            let name = &self.stored.tensors[stored.index].info.name;
            *self.error = self.error.take().map(|error| error.at(format_args!("tensor {name:?}")));
        }
        (param, packed)
    }
}
