//! A module straight to an output directory, as it computes.

use crate::weights::{Item, Weight, for_each_item};
use crate::{Layout, NameMap, Parameter, view};
use briquette_core::block::RowEncoder;
use briquette_core::encoded::{Part, Parts, quantize_row};
use briquette_core::{
    Coding, DType, Error, Grouping, Hash128, Mask, OutputAxis, Result, Rows, Storage, TensorHasher, rows, simd,
};
use briquette_formats::burnpack::to_burn;
use briquette_formats::stored::DecodeBuffers;
use briquette_formats::{
    Checkpoint, Draft, DraftFile, InputFile, Manifest, ManifestEntry, Profile, StoredDir, TensorInfo, companions,
    manifest, model_config, safetensors, sums,
};
use briquette_quant::Activations;
use burn::module::Module;
use burn::tensor::Device;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Writes a module as an output directory of profile `briquette`, the same that the command line makes: what it computes
/// with, masks and codes kept as such in the smaller of dense and sparse storage.
#[derive(Debug, Clone)]
pub struct Export {
    directory: PathBuf,
    names: NameMap,
    replace: bool,
    original: Option<PathBuf>,
    files: Vec<(PathBuf, Vec<u8>)>,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// Tensors of the model.
    pub n_tensors: usize,
    /// Bytes of the weight file.
    pub n_bytes: u64,
}

/// A tensor of the output, decided before anything is written.
struct Planned {
    info: TensorInfo,
    /// Whether the file has it the other way round than burn.
    is_turned: bool,
    axis: OutputAxis,
    coding: Coding,
    n_kept: usize,
    activations: Option<&'static str>,
    parts: BTreeMap<Part, u64>,
    hash: Hash128,
    tied_to: Option<String>,
}

/// What two parameters have in common where one stands for both.
type Likeness = (DType, Vec<usize>, Hash128);

impl Export {
    /// To this directory, under PyTorch's names and layouts.
    pub fn to(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self { directory, names: NameMap::torch(), replace: false, original: None, files: Vec::new() }
    }

    /// Under other names and layouts: those that the module was loaded by, to give back what came in.
    #[must_use]
    pub fn names(mut self, names: NameMap) -> Self {
        self.names = names;
        self
    }

    /// Takes the small files of the model that the module was loaded from along: config, tokenizer and their like.
    #[must_use]
    pub fn like(mut self, model: impl Into<PathBuf>) -> Self {
        self.original = Some(model.into());
        self
    }

    /// Replaces an older output.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.replace = true;
        self
    }

    /// A small file that belongs to the module: its configuration, its tokenizer.
    #[must_use]
    pub fn file(mut self, name: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), bytes.into()));
        self
    }

    /// Writes the module and reads it back: the directory is there whole and verified, or not at all. One tensor is in
    /// memory at a time; weights that are equal under two names are written once.
    ///
    /// # Errors
    /// Refused where the output exists, Config where two parameters would have one name, Io for devices and files.
    pub fn write<M: Module>(&self, module: &M) -> Result<Exported> {
        if module.devices().iter().any(Device::is_autodiff) {
            // burn keeps the last update of running statistics aside while a module trains; this puts it in place.
            drop(module.valid());
        }
        let original = self.original.as_ref().map(|path| Checkpoint::open(path)).transpose()?;
        let inputs: Vec<&Path> = self.original.iter().map(PathBuf::as_path).collect();
        let draft = Draft::create(&self.directory, &inputs, self.replace)?;
        let mut planned = self.plan_all(module)?;
        let name = Profile::Briquette.file_name(0, 1);
        let (file, n_bytes) = create(&draft, &name, &mut planned)?;
        for_each_item(module, |item| {
            let plan = planned.get_mut(&self.names.file_name(item.parameter()));
            let plan = plan.ok_or_else(|| Error::bug("a parameter appeared while exporting"))?;
            let (parts, hash) = encode(&item, plan)?;
            plan.hash = hash;
            plan.parts.iter().try_for_each(|(&part, &start)| file.write_at(start, &parts[part]))
        })?;
        file.sync()?;
        if let Some(original) = &original {
            copy_companions(&draft, original)?;
        }
        self.files.iter().try_for_each(|(name, bytes)| draft.write_file(name, bytes))?;
        finish(draft, &name, &planned, self.names.layout())?;
        Ok(Exported { n_tensors: planned.len(), n_bytes })
    }

    /// Decides how each parameter is kept, and which stands for which: a matrix for those after it that are equal.
    fn plan_all<M: Module>(&self, module: &M) -> Result<BTreeMap<String, Planned>> {
        let (mut planned, mut first) = (BTreeMap::<String, Planned>::new(), BTreeMap::<Likeness, String>::new());
        for_each_item(module, |item| {
            let mut plan = self.plan(&item)?;
            let name = plan.info.name.clone();
            if let Some(likeness) = likeness(&item, &plan) {
                let main = first.entry(likeness).or_insert_with(|| name.clone());
                let parts = |of: &Planned| (of.coding, of.axis, of.n_kept, of.activations);
                let is_alike = |main: &&Planned| parts(main) == parts(&plan);
                plan.tied_to = planned.get(main).filter(is_alike).map(|main| main.info.name.clone());
            }
            match planned.insert(name, plan) {
                Some(twice) => {
                    Err(Error::config("two parameters would have this name; rename one").at(twice.info.name))
                }
                None => Ok(()),
            }
        })?;
        Ok(planned)
    }

    fn plan(&self, item: &Item) -> Result<Planned> {
        let parameter = item.parameter();
        let mut shape = parameter.shape.0.clone();
        let is_turned = parameter.is_linear_weight() && self.names.layout() == Layout::Torch;
        if is_turned {
            shape.reverse();
        }
        let info = TensorInfo::checked(self.names.file_name(parameter), item.dtype()?, shape)?;
        let mut plan = Planned {
            n_kept: info.n_elements(),
            info,
            is_turned,
            axis: OutputAxis::First,
            coding: Coding::DENSE,
            activations: None,
            parts: BTreeMap::new(),
            hash: Hash128(0),
            tied_to: None,
        };
        if let Item::Weight(weight) = item
            && (weight.decision.mask.is_some() || weight.decision.quant.is_some())
        {
            let form = weight.form.filter(|_| weight.decision.quant.is_some());
            let Rows { n_rows, n_cols, axis } = weight.rows;
            plan.n_kept = kept(weight).n_kept();
            plan.coding = Coding::smallest(form.map(|form| form.codes()), plan.info.dtype, n_rows, n_cols, plan.n_kept);
            if plan.coding != Coding::DENSE && !is_turned {
                plan.axis = axis;
            }
            plan.activations = form.and_then(|form| match form.activations {
                Activations::Float => None,
                Activations::DynamicSymmetric => Some("int8-dynamic-symmetric"),
                Activations::DynamicAsymmetric => Some("int8-dynamic-asymmetric"),
            });
        }
        Ok(plan)
    }
}

impl Item {
    fn parameter(&self) -> &Parameter {
        match self {
            Self::Weight(weight) => &weight.parameter,
            Self::Other { parameter, .. } => parameter,
        }
    }

    fn dtype(&self) -> Result<DType> {
        let dtype = match self {
            Self::Weight(weight) => weight.dtype,
            Self::Other { dtype, .. } => *dtype,
        };
        if dtype.is_bool() {
            return Ok(DType::Bool);
        }
        DType::ALL.into_iter().find(|&ours| to_burn(ours) == Some(dtype)).ok_or_else(|| {
            Error::refused(format!("{dtype:?} cannot be exported; dequantize it first")).at(&self.parameter().path)
        })
    }
}

/// Of weights of rank 2 and more, what tied ones share: type, shape and the values computed with.
fn likeness(item: &Item, plan: &Planned) -> Option<Likeness> {
    let Item::Weight(weight) = item else { return None };
    let is_tied = plan.info.shape.rank() >= 2 && plan.info.n_elements() > 0;
    let values = || Hash128::of_block(bytemuck::cast_slice(&in_file_order(weight, plan)));
    is_tied.then(|| (plan.info.dtype, plan.info.shape.0.clone(), values()))
}

/// What the module computes with, in the order of the file.
fn in_file_order(weight: &Weight, plan: &Planned) -> Vec<f32> {
    // Rows are outputs, as in PyTorch's files.
    if plan.is_turned { weight.effective() } else { view::to_own(weight.effective(), &weight.rows) }
}

/// The small files of the original; its config.json says nothing of codes that are no longer there.
fn copy_companions(draft: &Draft, original: &Checkpoint) -> Result<()> {
    companions::copy_into(draft, original, &|| Ok(()))?;
    let config = model_config::with_quantization(model_config::read(original)?, None, &original.directory())?;
    config.map_or(Ok(()), |config| draft.write_file(Path::new(model_config::FILE_NAME), &config))
}

/// The mask, or what is not zero where there is none.
fn kept(weight: &Weight) -> Mask {
    let Rows { n_rows, n_cols, .. } = weight.rows;
    let is_nonzero = |row: usize, col: usize| weight.values[row * n_cols + col].to_bits() != 0;
    weight.decision.mask.clone().unwrap_or_else(|| Mask::from_fn(n_rows, n_cols, is_nonzero))
}

/// Lays out and creates the weight file. Parts lie by the width of their elements, widest first, then by name.
fn create(draft: &Draft, name: &str, planned: &mut BTreeMap<String, Planned>) -> Result<(DraftFile, u64)> {
    let mut parts = Vec::new();
    let mut metadata = BTreeMap::from([("format".to_string(), "briquette".to_string())]);
    for (name, plan) in planned.iter().filter(|(_, plan)| plan.tied_to.is_none()) {
        for part in Profile::Briquette.file_parts(&plan.info, plan.axis, plan.coding, plan.n_kept, None)? {
            parts.push((name.clone(), part));
        }
        if plan.coding != Coding::DENSE {
            let meaning = serde_json::json!({
                "dtype": plan.info.dtype, "shape": plan.info.shape, "coding": plan.coding,
            });
            metadata.insert(format!("tensor {name}"), meaning.to_string());
        }
    }
    parts.sort_by(|(_, a), (_, b)| (b.info.dtype.n_bits(), &a.info.name).cmp(&(a.info.dtype.n_bits(), &b.info.name)));
    let infos: Vec<TensorInfo> = parts.iter().map(|(_, part)| part.info.clone()).collect();
    let (header, starts) = safetensors::write_header(&infos, &metadata);
    let mut n_bytes = header.len() as u64;
    for ((name, part), start) in parts.iter().zip(starts) {
        if let (Some(kind), Some(plan)) = (part.part, planned.get_mut(name)) {
            plan.parts.insert(kind, start);
        }
        n_bytes = n_bytes.max(start + part.info.n_bytes() as u64);
    }
    draft.check_space(n_bytes)?;
    let file = draft.create_file(Path::new(name), n_bytes)?;
    file.write_at(0, &header)?;
    Ok((file, n_bytes))
}

/// The bytes of a tensor's parts, and the hash of what they stand for.
fn encode(item: &Item, plan: &Planned) -> Result<(Parts, Hash128)> {
    let weight = match item {
        Item::Other { bytes, .. } => {
            let mut parts = Parts::default();
            parts[Part::Weight].extend_from_slice(bytes);
            return Ok((parts, hash(bytes, 1, &Rows::of_bytes(bytes.len()))));
        }
        Item::Weight(weight) => weight,
    };
    let dtype = plan.info.dtype;
    if plan.coding == Coding::DENSE {
        let bytes = to_bytes(&in_file_order(weight, plan), dtype);
        let hash = hash(&bytes, dtype.n_bits() / 8, &Rows::of(&plan.info.shape, OutputAxis::First));
        let mut parts = Parts::default();
        parts[Part::Weight] = bytes;
        return Ok((parts, hash));
    }
    let (mut parts, effective) = (Parts::default(), weight.effective());
    encode_rows(weight, &effective, plan.coding, dtype, &mut parts);
    let hash = match plan.coding.codes {
        Some(_) => hash(bytemuck::cast_slice(&effective), 4, &weight.rows),
        None => hash(&to_bytes(&effective, dtype), dtype.n_bits() / 8, &weight.rows),
    };
    Ok((parts, hash))
}

fn encode_rows(weight: &Weight, effective: &[f32], coding: Coding, dtype: DType, parts: &mut Parts) {
    let (n_cols, mask) = (weight.rows.n_cols, kept(weight));
    let mut encoder = RowEncoder::new(coding, dtype, 0);
    let (mut row_kept, mut codes) = (vec![0.0; n_cols], vec![0; n_cols]);
    for row in 0..weight.rows.n_rows {
        let (range, keep) = (row * n_cols..(row + 1) * n_cols, mask.row(row));
        match &weight.decision.quant {
            Some(quant) if coding.codes.is_some() => {
                simd::copy_kept(&weight.values[range], keep, &mut row_kept);
                quantize_row(&row_kept, quant.grid, quant.row(row), &mut codes);
                encoder.push_codes(&codes, Some(keep), parts);
                if row == 0 || quant.grouping != Grouping::Tensor {
                    encoder.push_scales(quant.row(row), parts);
                }
            }
            _ => encoder.push_floats(&to_bytes(&effective[range], dtype), Some(keep), parts),
        }
    }
    encoder.finish(parts);
}

fn to_bytes(values: &[f32], dtype: DType) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.n_bits() / 8];
    rows::from_f32(values, dtype, &mut bytes);
    bytes
}

fn hash(bytes: &[u8], width: usize, rows: &Rows) -> Hash128 {
    let mut hasher = TensorHasher::default();
    let row_bytes = rows.n_cols * width;
    rows.blocks().for_each(|block| {
        hasher.push(Hash128::of_block(&bytes[block.start * row_bytes..block.end * row_bytes]));
    });
    hasher.finish()
}

/// The manifest, the check of what was written, the sums, and the step into place.
fn finish(draft: Draft, file: &str, planned: &BTreeMap<String, Planned>, layout: Layout) -> Result<()> {
    let entry = |plan: &Planned| ManifestEntry {
        dtype: plan.info.dtype,
        shape: plan.info.shape.clone(),
        output_axis: plan.axis,
        coding: plan.coding,
        n_kept: (plan.coding.storage == Storage::Bitmask).then_some(plan.n_kept),
        activations: plan.activations.map(str::to_string),
        file: file.to_string(),
        hash: plan.hash,
        tied_to: plan.tied_to.clone(),
    };
    let tensors = planned.iter().map(|(name, plan)| (name.clone(), entry(plan))).collect();
    let manifest = Manifest {
        format: "briquette".into(),
        version: manifest::version_of(&tensors),
        producer: concat!("briquette-nn ", env!("CARGO_PKG_VERSION")).into(),
        profile: Profile::Briquette,
        recipe: match layout {
            Layout::Torch => serde_json::json!({ "stage": [] }),
            Layout::Burn => serde_json::json!({ "model": { "layout": "burn" }, "stage": [] }),
        },
        tensors,
    };
    draft.write_file(Path::new(manifest::FILE_NAME), &manifest.to_json()?)?;
    let written = Checkpoint::open(draft.path())?;
    let stored = written.stored().ok_or_else(|| Error::bug("the draft is no directory of ours"))?;
    verify(stored, planned)?;
    let sum = |path: PathBuf| {
        let sum = sums::sha256_of(&InputFile::open(&draft.path().join(&path))?, true, &|| Ok(()))?;
        Ok((path.to_string_lossy().into_owned(), sum))
    };
    let sums = sums::files_below(draft.path())?.into_iter().map(sum).collect::<Result<BTreeMap<_, _>>>()?;
    draft.write_file(Path::new(sums::FILE_NAME), sums::to_lines(&sums).as_bytes())?;
    draft.publish()
}

/// Decodes every tensor and compares the hash of its values with that of the module's.
fn verify(stored: &StoredDir, planned: &BTreeMap<String, Planned>) -> Result<()> {
    let mut scratch = DecodeBuffers::default();
    for (index, tensor) in stored.tensors.iter().enumerate() {
        let (row_view, mut hasher) = (tensor.rows(), TensorHasher::default());
        for block in row_view.blocks() {
            let n_bytes = block.len() * row_view.n_cols * tensor.value_width();
            let mut values = vec![0_u32; n_bytes.div_ceil(4)];
            let bytes = &mut bytemuck::cast_slice_mut(&mut values)[..n_bytes];
            stored.decode_rows(index, block, &mut scratch, bytes)?;
            hasher.push(Hash128::of_block(bytes));
        }
        if planned.get(&tensor.info.name).map(|plan| plan.hash) != Some(hasher.finish()) {
            return Err(Error::bug("what was written differs from the module").at(&tensor.info.name));
        }
    }
    Ok(())
}
