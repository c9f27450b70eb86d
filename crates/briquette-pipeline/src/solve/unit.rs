//! A finished unit of work as a file.
//!
//! It has the updated weights of some tensors, and their input statistics.
//!
//! The file is safetensors. Each tensor `T` has:
//!
//! - `T.codes` I8, `T.scales` F32 and `T.zeros` I8 if its weights were rounded, else `T.values` F32
//! - `T.keep` U8, one bit per weight, if some are dropped
//! - `T.mean_square` and `T.rms` F32 of its inputs
//!
//! The header has figures of each tensor as JSON, and the hash of everything.

use crate::report::SolvedLayer;
use briquette_core::{Affine, DType, Decision, Error, Hash128, InputView, Result, TensorHasher};
use briquette_formats::{Checkpoint, TensorSource, draft, safetensors};
use std::collections::BTreeMap;
use std::path::Path;

/// The key of the hash in the header.
const HASH: &str = "hash";

/// The updated weights of a tensor.
#[derive(Default)]
pub(super) struct UpdatedTensor {
    /// The codes of rounded weights, one byte each.
    codes: Vec<u8>,
    /// The values of weights that were not rounded.
    values: Vec<f32>,
    /// The scales of the codes.
    affines: Vec<Affine>,
    /// One bit per weight, set if it is kept; empty if all are kept.
    keep: Vec<u8>,
    pub(super) figures: Option<SolvedLayer>,
}

impl UpdatedTensor {
    /// Appends rows of `n_cols`; rounded weights are on the grids of the decision.
    pub(super) fn push(&mut self, n_cols: usize, values: &[f32], decision: Decision) {
        if let Some(mask) = &decision.mask {
            self.keep.extend_from_slice(mask.as_bits());
        }
        let Some(quant) = decision.quant else { return self.values.extend_from_slice(values) };
        for (row, values) in values.chunks(n_cols).enumerate() {
            for (values, affine) in values.chunks(quant.group_size()).zip(quant.row(row)) {
                self.codes.extend(values.iter().map(|&value| affine.quantize(value, quant.grid) as u8));
            }
        }
        self.affines.extend(quant.affines);
    }
}

/// A unit that is being made.
#[derive(Default)]
pub(super) struct SolvedUnit {
    tensors: BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>,
    figures: BTreeMap<String, String>,
}

impl SolvedUnit {
    /// Adds the input statistics of a tensor.
    pub(super) fn add_inputs(&mut self, name: &str, view: &InputView) {
        self.add_floats(name, "mean_square", &view.mean_square);
        self.add_floats(name, "rms", &view.rms);
    }

    /// Adds the updated weights of a tensor.
    pub(super) fn add_updated(&mut self, name: &str, n_cols: usize, solved: UpdatedTensor) -> Result<()> {
        let UpdatedTensor { codes, values, affines, keep, figures } = solved;
        let n_rows = codes.len().max(values.len()) / n_cols.max(1);
        match values.is_empty() {
            true => {
                let (scales, zeros): (Vec<f32>, Vec<u8>) =
                    affines.iter().map(|affine| (affine.scale, affine.zero as u8)).unzip();
                self.add(name, "codes", DType::I8, vec![n_rows, n_cols], codes);
                self.add_floats(name, "scales", &scales);
                self.add(name, "zeros", DType::I8, vec![zeros.len()], zeros);
            }
            false => {
                self.add(name, "values", DType::F32, vec![n_rows, n_cols], bytemuck::cast_slice(&values).to_vec());
            }
        }
        if !keep.is_empty() {
            self.add(name, "keep", DType::U8, vec![n_rows, keep.len() / n_rows.max(1)], keep);
        }
        let text = serde_json::to_string(&figures).map_err(|error| Error::bug(format!("figures: {error}")))?;
        self.figures.insert(name.to_string(), text);
        Ok(())
    }

    fn add_floats(&mut self, name: &str, part: &str, values: &[f32]) {
        self.add(name, part, DType::F32, vec![values.len()], bytemuck::cast_slice(values).to_vec());
    }

    fn add(&mut self, name: &str, part: &str, dtype: DType, shape: Vec<usize>, bytes: Vec<u8>) {
        self.tensors.insert(format!("{name}.{part}"), (dtype, shape, bytes));
    }

    /// Writes the file atomically.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut said = self.figures.clone();
        let parts = self.tensors.iter().map(|(name, (.., bytes))| (name.as_str(), Hash128::of_block(bytes)));
        said.insert(HASH.into(), hash_of(parts, &self.figures).to_string());
        draft::replace_file(path, &safetensors::to_file_saying(&self.tensors, &said)?)
    }

    /// Opens a file of [`write`](Self::write).
    ///
    /// # Errors
    /// - Input: the file is damaged.
    /// - Io: the file cannot be read.
    pub(super) fn open(path: &Path) -> Result<Checkpoint> {
        let file = Checkpoint::open(path)?;
        let mut parts = BTreeMap::new();
        for (index, info) in file.tensors().iter().enumerate() {
            let mut bytes = vec![0; info.n_bytes()];
            file.read(index, 0, &mut bytes)?;
            parts.insert(info.name.as_str(), Hash128::of_block(&bytes));
        }
        let mut figures = file.metadata();
        let expected = figures.remove(HASH).unwrap_or_default();
        match hash_of(parts.into_iter(), &figures).to_string() == expected {
            true => Ok(file),
            false => Err(Error::input("is damaged: its hash does not match").at(path.display())),
        }
    }
}

/// Returns the hash of all parts and figures with their names.
fn hash_of<'a>(parts: impl Iterator<Item = (&'a str, Hash128)>, figures: &BTreeMap<String, String>) -> Hash128 {
    let mut hasher = TensorHasher::default();
    for (name, digest) in parts {
        hasher.push(Hash128::of_block(name.as_bytes()));
        hasher.push(digest);
    }
    for (name, text) in figures {
        hasher.push(Hash128::of_block(format!("{name}\n{text}").as_bytes()));
    }
    hasher.finish()
}

/// Returns the index of a tensor's part in a file, if it exists.
pub(super) fn place(file: &Checkpoint, name: &str, part: &str) -> Option<usize> {
    let name = format!("{name}.{part}");
    file.tensors().iter().position(|info| info.name == name)
}

fn floats(file: &Checkpoint, name: &str, part: &str) -> Result<Option<Vec<f32>>> {
    let Some(index) = place(file, name, part) else { return Ok(None) };
    let mut values = vec![0.0_f32; file.tensors()[index].n_elements()];
    file.read(index, 0, bytemuck::cast_slice_mut(&mut values))?;
    Ok(Some(values))
}

/// Returns the input statistics of a tensor in a file.
pub(super) fn view(file: &Checkpoint, name: &str) -> Result<Option<InputView>> {
    let found = floats(file, name, "mean_square")?.zip(floats(file, name, "rms")?);
    Ok(found.map(|(mean_square, rms)| InputView { rms, mean_square }))
}

/// Returns the figures of a tensor in a file.
pub(super) fn figures(file: &Checkpoint, name: &str) -> Result<Option<SolvedLayer>> {
    let Some(text) = file.metadata().remove(name) else { return Ok(None) };
    let damaged = |error| Error::input(format!("figures of {name:?}: {error}")).at(file.path().display());
    serde_json::from_str(&text).map(Some).map_err(damaged)
}

/// Returns all scales of a tensor; empty if it was not rounded.
pub(super) fn affines(file: &Checkpoint, name: &str) -> Result<Vec<Affine>> {
    let Some((scales, at)) = floats(file, name, "scales")?.zip(place(file, name, "zeros")) else {
        return Ok(Vec::new());
    };
    let mut zeros = vec![0_u8; scales.len()];
    file.read(at, 0, &mut zeros)?;
    Ok(scales.into_iter().zip(zeros).map(|(scale, zero)| Affine { scale, zero: zero as i8 }).collect())
}
