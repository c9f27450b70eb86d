//! A module as a source of tensors, so that the writer treats it like a checkpoint.

use crate::weights::{ModuleItem, items};
use crate::{NameMap, Parameter};
use briquette_core::rows::transpose_bytes;
use briquette_core::{Affine, ColumnScales, DType, Decision, Error, Mask, OutputAxis, Result, Role, Rows};
use briquette_formats::burnpack::to_burn;
use briquette_formats::{InputFile, OutputFormat, TensorInfo, TensorSource, WeightLayout};
use briquette_methods::prune::Score;
use briquette_methods::quant::{QuantSpec, ScaleSearch};
use briquette_writer::known::{Known, Reason};
use briquette_writer::plan::Nonfinite;
use briquette_writer::ties::ties_of;
use briquette_writer::treatment::SharedTreatments;
use briquette_writer::{Cut, Plan, Pruning, Quant, Stop, Treatment};
use burn::module::Module;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of tensors cached on the host: about one per concurrent reader.
const N_KEPT: usize = 4;

/// The parameters of a module with the names and layouts of a file.
pub(crate) struct ModuleSource {
    infos: Vec<TensorInfo>,
    parameters: Vec<ModuleTensor>,
    recent: Mutex<VecDeque<(usize, Arc<OnHost>)>>,
}

/// A parameter and its layout in the file.
struct ModuleTensor {
    item: Mutex<ModuleItem>,
    /// The rows of the parameter in the module's order.
    rows: Rows,
    /// Whether the file stores the matrix transposed relative to burn.
    is_turned: bool,
    is_table: bool,
}

impl ModuleTensor {
    /// Converts elements from burn's order to the order of the file.
    fn in_file_order(&self, bytes: Vec<u8>, dtype: DType) -> Vec<u8> {
        if !self.is_turned {
            return bytes;
        }
        let mut turned = vec![0; bytes.len()];
        transpose_bytes(&bytes, &mut turned, self.rows.n_rows, self.rows.n_cols, dtype.n_bits() / 8);
        turned
    }
}

/// A parameter on the host.
struct OnHost {
    /// Elements in the order of the file.
    bytes: Vec<u8>,
    decision: Decision,
}

impl ModuleSource {
    /// Lists the parameters without reading weights.
    ///
    /// # Errors
    /// - Config: two parameters have one name
    /// - Refused: no file format can store the type
    pub(crate) fn new<M: Module>(module: &M, names: &NameMap) -> Result<Self> {
        let mut found: BTreeMap<String, (TensorInfo, ModuleTensor)> = BTreeMap::new();
        for item in items(module, names.parameters(module)?)? {
            let parameter = &item.parameter;
            let (mut shape, rows) = (parameter.shape.0.clone(), parameter.rows());
            let is_turned = names.is_turned(parameter, names.weight_layout());
            if is_turned {
                shape.reverse();
            }
            let info = TensorInfo::checked(names.file_name(parameter), dtype_of(&item)?, shape)?;
            let is_table = parameter.role == Role::Embedding;
            let tensor = ModuleTensor { rows, is_turned, is_table, item: Mutex::new(item) };
            if let Some((twice, _)) = found.insert(info.name.to_string(), (info, tensor)) {
                return Err(Error::config("two parameters have this name in the file; rename one").at(twice.name));
            }
        }
        let (infos, parameters) = found.into_values().unzip();
        Ok(Self { infos, parameters, recent: Mutex::default() })
    }

    /// Plans every parameter: effective weights, in dense or sparse storage, whichever is smaller.
    ///
    /// Equal weights with equal decisions are stored once.
    ///
    /// # Errors
    /// Io: a device does not return a tensor.
    pub(crate) fn plan(&self, layout: WeightLayout) -> Result<Plan<'_>> {
        let mut plan = Plan::unchanged(&self.infos, OutputFormat::Briquette, Nonfinite::Unchanged);
        plan.layout = layout;
        let mut shared = SharedTreatments::default();
        for tensor in &mut plan.tensors {
            tensor.treat(Arc::new(self.treatment(tensor.index())?));
            tensor.share(&mut shared);
        }
        for (group, main) in self.ties()? {
            group.into_iter().for_each(|index| plan.tensors[index].tie_to(Some(main)));
        }
        Ok(plan)
    }

    fn treatment(&self, index: usize) -> Result<Treatment> {
        let (info, tensor) = (&self.infos[index], &self.parameters[index]);
        let item = tensor.item.lock().unwrap_or_else(PoisonError::into_inner);
        if !info.dtype.is_weight() {
            let known = Known::new(Role::Other, Reason::NoWeight);
            return Ok(Treatment::none(known, Rows::of_bytes(info.n_bytes())));
        }
        let decision = item.decision()?;
        let Parameter { role, axis, .. } = item.parameter;
        let axis = if tensor.is_turned { OutputAxis::First } else { axis };
        let prune = decision.mask.is_some().then_some(Pruning { score: Score::Magnitude, cut: Cut::Given });
        // A tensor without elements has no codes to scale.
        let params = decision.quant.as_ref().filter(|_| info.n_elements() > 0);
        let params = params.map(|quant| (quant.grid, quant.columns.is_some()));
        let quant = item.form().zip(params).map(|(form, (grid, has_columns))| Quant {
            // The scales are given, so this range is never used.
            spec: QuantSpec {
                grid,
                grouping: form.grouping,
                range: ScaleSearch::AbsMax,
                scale: form.scale,
                has_columns,
                has_trellis: false,
            },
            activations: form.activations,
            is_given: true,
            inputs: None,
        });
        let rows = if prune.is_some() || quant.is_some() { axis } else { OutputAxis::First };
        let known = Known { role, axis, why: Reason::Told };
        Ok(Treatment { prune, quant, ..Treatment::none(known, Rows::of(&info.shape, rows)) })
    }

    /// Returns groups of equal tensors and the member that each is stored as: an embedding table, or else the
    /// first.
    fn ties(&self) -> Result<Vec<(Vec<usize>, usize)>> {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, first) in ties_of(self, &Stop::default())? {
            groups.entry(first).or_insert_with(|| vec![first]).push(index);
        }
        let mut ties = Vec::new();
        for group in groups.into_values() {
            let main = *group.iter().find(|&&index| self.parameters[index].is_table).unwrap_or(&group[0]);
            let expected = self.on_host(main)?;
            let mut same = Vec::new();
            for index in group.into_iter().filter(|&index| index != main) {
                if self.on_host(index)?.decision == expected.decision {
                    same.push(index);
                }
            }
            ties.push((same, main));
        }
        Ok(ties)
    }

    /// Returns the weights of a parameter that the module computes with, in the order of the file.
    pub(crate) fn effective(&self, index: usize) -> Result<Vec<u8>> {
        let (tensor, dtype) = (&self.parameters[index], self.infos[index].dtype);
        let item = tensor.item.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(tensor.in_file_order(item.effective_bytes(dtype)?, dtype))
    }

    /// Returns a parameter on the host, from the cache or its device.
    fn on_host(&self, index: usize) -> Result<Arc<OnHost>> {
        let lock = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = lock().iter().find(|(of, _)| *of == index) {
            return Ok(known.clone());
        }
        let (tensor, info) = (&self.parameters[index], &self.infos[index]);
        let item = tensor.item.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = tensor.in_file_order(item.bytes()?, info.dtype);
        let read = Arc::new(OnHost { bytes, decision: item.decision()? });
        let mut recent = lock();
        recent.truncate(N_KEPT - 1);
        recent.push_front((index, read.clone()));
        Ok(read)
    }
}

impl TensorSource for ModuleSource {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(&self.on_host(index)?.bytes[start..start + out.len()]);
        Ok(())
    }

    fn reads_ranges(&self, _index: usize) -> bool {
        false
    }

    fn affines(&self, index: usize, rows: std::ops::Range<usize>) -> Result<Vec<Affine>> {
        let read = self.on_host(index)?;
        let Some(quant) = &read.decision.quant else { return Ok(Vec::new()) };
        Ok(match quant.grouping {
            briquette_core::Grouping::Tensor => quant.affines.clone(),
            _ => rows.flat_map(|row| quant.row(row)).copied().collect(),
        })
    }

    fn columns(&self, index: usize) -> Result<Option<ColumnScales>> {
        Ok(self.on_host(index)?.decision.quant.as_ref().and_then(|quant| quant.columns.clone()))
    }

    fn keep(&self, index: usize, rows: std::ops::Range<usize>) -> Result<Vec<u8>> {
        let read = self.on_host(index)?;
        let Some(mask) = &read.decision.mask else { return Ok(Vec::new()) };
        let row_bytes = Mask::row_bytes(mask.dim().1);
        Ok(mask.as_bits()[rows.start * row_bytes..rows.end * row_bytes].to_vec())
    }

    fn files(&self) -> Vec<&InputFile> {
        Vec::new()
    }
}

fn dtype_of(item: &ModuleItem) -> Result<DType> {
    if item.dtype.is_bool() {
        return Ok(DType::Bool);
    }
    DType::ALL.into_iter().find(|&ours| to_burn(ours) == Some(item.dtype)).ok_or_else(|| {
        Error::refused(format!("{:?} cannot be exported; dequantize it first", item.dtype)).at(&item.parameter.path)
    })
}
