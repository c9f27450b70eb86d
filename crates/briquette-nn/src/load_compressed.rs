//! Fills a module from a compressed directory, and keeps codes as codes.

use crate::coded::{Coded, PackedCodes, StoredUse, Use};
use crate::load::{ParameterPlace, fill, places_of};
use crate::packed::Packed;
use crate::{Kind, NameMap, Parameter, holds_codes};
use briquette_core::encoded::Codes;
use briquette_core::{Error, GridKind, Grouping, Mask, OutputAxis, Result, Role, Rows};
use briquette_cpu::{ActivationGrid, MAX_DEPTH};
use briquette_formats::stored::StoredDir;
use briquette_formats::{ActivationRounding, Checkpoint, StoredTensor};
use briquette_ops::compressed;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// As [`load_into`](crate::load_into), but codes that layers can hold are put into them unchanged, and never become floats:
/// linear layers, convolutions and embeddings of up to 8 bits with one scale for each row, and 4-bit matrices in groups. All other tensors
/// are decoded.
///
/// Layers compute in integers only where the checkpoint promises int8 activations, by its manifest or by its
/// `quantization_config`; otherwise the codes of a linear layer become floats in registers, and those of a convolution become floats for
/// each use. Memory is that of the codes, and of one more tensor or a small one for each thread.
///
/// # Errors
/// As [`load_into`](crate::load_into); Refused where compressed-tensors would round activations in a way that is not run here.
pub fn load_compressed<M: Module>(module: M, checkpoint: &Checkpoint, names: &NameMap) -> Result<M> {
    let wanted = names.parameters(&module)?;
    let mut places = places_of(&wanted, checkpoint, names)?;
    let looks_up = module.devices().iter().all(compressed::looks_up);
    let (mut uses, mut of_codes) = (BTreeMap::new(), BTreeMap::new());
    for parameter in wanted {
        let holds_codes = parameter.reparameterized.as_deref() == Some(Packed::NAME);
        let Some(&place) = places.get(&parameter.path) else { continue };
        if parameter.reparameterized.is_some() && !holds_codes {
            continue;
        }
        let what = use_of(&parameter, place, checkpoint, looks_up);
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

/// Bytes that the parameters of a module will take once [`load_compressed`] has filled it, computed from headers; as floats, on a
/// device whose layers do not [hold codes](crate::holds_codes). Where the kernels lay codes out in whole panels it may be a little more.
///
/// # Errors
/// Input where the checkpoint does not fit.
pub fn predicted_bytes<M: Module>(module: &M, checkpoint: &Checkpoint, names: &NameMap) -> Result<u64> {
    let wanted = names.parameters(module)?;
    let places = places_of(&wanted, checkpoint, names)?;
    let holds_codes = module.devices().iter().all(holds_codes);
    let looks_up = module.devices().iter().all(compressed::looks_up);
    let held = |parameter: &Parameter| {
        let place = *places.get(&parameter.path).filter(|_| holds_codes)?;
        Some(use_of(parameter, place, checkpoint, looks_up)?.n_bytes(&checkpoint.stored()?.tensors[place.index]))
    };
    let n_elements = |parameter: &Parameter| parameter.shape.0.iter().product::<usize>();
    let plain = |parameter: &Parameter| n_elements(parameter) * if parameter.kind == Kind::Bool { 1 } else { 4 };
    Ok(wanted.iter().map(|parameter| held(parameter).unwrap_or_else(|| plain(parameter)) as u64).sum())
}

impl Use {
    /// Bytes of a tensor's codes, its scales, and what the kernels store besides.
    fn n_bytes(self, tensor: &StoredTensor) -> usize {
        let Rows { n_rows, n_cols, .. } = tensor.rows();
        let codes = match tensor.is_held_sparse() {
            false => n_rows * n_cols,
            true => n_rows * Mask::row_bytes(n_cols) + tensor.n_kept,
        };
        match self {
            // Besides the scale, the sum of codes is stored for each row.
            Self::Int8(_) | Self::Conv(..) => codes + 8 * n_rows,
            Self::Int4 { group } => n_rows * n_cols.div_ceil(2) + 4 * n_rows * n_cols.div_ceil(group.max(1)),
            // For a sparse table, the offset of each row is stored too.
            Self::Table | Self::Decoded if tensor.is_held_sparse() => codes + 12 * n_rows,
            Self::Table | Self::Decoded => codes + 4 * n_rows,
        }
    }
}

/// What a tensor's codes are used for, where layers can hold them; `looks_up` says whether rows are looked up in codes that are laid out
/// to be multiplied by.
fn use_of(parameter: &Parameter, place: ParameterPlace, checkpoint: &Checkpoint, looks_up: bool) -> Option<Use> {
    let tensor = checkpoint.stored()?.tensors.get(place.index)?;
    let Codes { bits, grid, grouping, .. } = tensor.coding.codes?;
    if grid == GridKind::Asymmetric || parameter.rows().n_cols == 0 {
        return None;
    }
    let (n_in, activations) = (parameter.rows().n_cols, activations_of(tensor));
    let is_by_row = !matches!(grouping, Grouping::Group(_));
    let as_product = || match (grouping, activations?) {
        (Grouping::Group(group), None) if bits <= 4 => Some(Use::Int4 { group }),
        (_, None) if is_by_row && bits <= 4 => Some(Use::Int4 { group: n_in }),
        (_, grid) if is_by_row && n_in <= MAX_DEPTH => Some(Use::Int8(grid)),
        _ => None,
    };
    if parameter.role == Role::Embedding {
        let in_panels = looks_up && parameter.runs_on_codes && (parameter.is_head || bits <= 4);
        let table = || is_by_row.then_some(Use::Table);
        let what = if in_panels { as_product().or_else(table) } else { table() };
        return what.filter(|_| tensor.axis == OutputAxis::First);
    }
    // In the file, rows count outputs whichever axis does in the tensor.
    let is_by_output = match parameter.conv_dims() {
        Some(_) => tensor.axis == OutputAxis::First && !place.is_turned,
        None => parameter.is_linear_weight() && place.is_turned == (tensor.axis == OutputAxis::First),
    };
    if !is_by_output {
        return None;
    }
    match (activations?, parameter.conv_dims()) {
        (Some(grid), Some(dims)) if is_by_row && n_in <= MAX_DEPTH => Some(Use::Conv(grid, dims)),
        (None, Some(_)) if is_by_row => Some(Use::Decoded),
        (_, Some(_)) => None,
        (_, None) => as_product(),
    }
}

/// How the activations of a tensor are rounded, within where they are not; `None` where that is not run here.
fn activations_of(tensor: &StoredTensor) -> Option<Option<ActivationGrid>> {
    Some(match tensor.activations {
        None => None,
        Some(ActivationRounding::Asymmetric) => Some(ActivationGrid::Asymmetric),
        Some(ActivationRounding::Symmetric) => Some(ActivationGrid::Symmetric),
        Some(ActivationRounding::SymmetricFull) => Some(ActivationGrid::SymmetricFull),
        Some(ActivationRounding::Other) => return None,
    })
}

/// Refuses codes that other programs would run on rounded activations and Briquette on floats: the results would differ.
fn check_activations(
    parameter: &Parameter,
    place: ParameterPlace,
    checkpoint: &Checkpoint,
    what: Option<Use>,
) -> Result<()> {
    let is_foreign = checkpoint.format().is_for_transformers();
    let Some(tensor) = checkpoint.stored().map(|stored| &stored.tensors[place.index]) else { return Ok(()) };
    let is_run = matches!(what, Some(Use::Int8(Some(_)) | Use::Conv(..)));
    if !is_foreign || is_run || tensor.activations.is_none() || !parameter.is_linear_weight() {
        return Ok(());
    }
    let what = match tensor.activations {
        Some(ActivationRounding::Other) => "in a way that is not int8 by the token",
        _ => "and its weights are not int8 with one scale for each output",
    };
    let message = format!("its activations are rounded {what}, which is not run here; run it with what will serve it");
    Err(Error::refused(message).at(format_args!("tensor {:?}", tensor.info.name)))
}

/// Warns of codes that become floats since the layer has more inputs than kernels take.
fn warn_of_depth(parameter: &Parameter, place: ParameterPlace, checkpoint: &Checkpoint, what: Option<Use>) {
    let n_inputs = parameter.rows().n_cols;
    let has_codes = checkpoint.stored().is_some_and(|stored| stored.tensors[place.index].coding.codes.is_some());
    if what.is_none() && has_codes && parameter.runs_on_codes && n_inputs > MAX_DEPTH {
        let path = &parameter.path;
        log::warn!(
            "{path}: its codes become floats, as {n_inputs} inputs are more than the {MAX_DEPTH} of int8 kernels"
        );
    }
}

/// Codes from which on all threads share a tensor, rather than that each takes one of its own.
const SMALL: usize = 1 << 22;

/// Lays out the codes of small tensors on the CPU, each thread one after the other: few blocks keep few threads busy.
fn pack_small(stored: &StoredDir, uses: &BTreeMap<String, StoredUse>, devices: &[Device]) -> Packings {
    let Some(device) = devices.first() else { return BTreeMap::new() };
    let is_small = |its: &StoredUse| stored.tensors[its.index].rows().n_elements() < SMALL;
    let small: Vec<(&String, &StoredUse)> = uses.iter().filter(|(_, its)| is_small(its)).collect();
    let packed = small.into_par_iter().map(|(path, its)| (path.clone(), Coded::pack_stored(stored, *its, device)));
    packed.collect()
}

/// What became of the codes of parameters.
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
