//! What a model is made of.

use crate::context::{RunOptions, Workers};
use crate::role::{Role, Roles};
use briquette_core::{Result, Storage};
use briquette_formats::{Checkpoint, Compressed, TensorSource};
use serde::Serialize;
use std::path::Path;

/// Bytes looked through at a time.
const PIECE: usize = 4 << 20;

/// A model, tensor by tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// Where it is.
    pub path: String,
    /// What it is made of.
    pub format: String,
    /// What has been done to it already: "none", "pruned" or "quantized".
    pub compressed: &'static str,
    /// Bytes of its weight files.
    pub file_bytes: u64,
    /// Bytes of its tensors as they stand for, decoded.
    pub tensor_bytes: u64,
    /// Elements of all tensors.
    pub n_elements: u64,
    /// Files that come along.
    pub companions: Vec<String>,
    /// The tensors.
    pub tensors: Vec<TensorInspection>,
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorInspection {
    /// Its name.
    pub name: String,
    /// What it is in its network, as `plan` will take it.
    pub role: Role,
    /// What shows that.
    pub why: &'static str,
    /// Its type.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes, decoded.
    pub n_bytes: u64,
    /// How it is kept.
    pub encoding: String,
    /// Elements that are zero, where they were counted.
    pub n_zeros: Option<u64>,
}

/// Looks at a model: headers only, or with `count_zeros` every element.
///
/// # Errors
/// Those of opening and reading.
pub fn inspect(path: &Path, count_zeros: bool, options: &RunOptions) -> Result<Inspection> {
    let checkpoint = Checkpoint::open(path)?;
    let zeros = if count_zeros { Some(zeros_of(&checkpoint, options)?) } else { None };
    let roles = Roles::of_model(&checkpoint, checkpoint.layout(), &[])?;
    let tensors = checkpoint.tensors().iter().enumerate().map(|(index, info)| {
        let known = roles.of(info);
        TensorInspection {
            name: info.name.clone(),
            role: known.role,
            why: known.why.words(),
            dtype: info.dtype.to_string(),
            shape: info.shape.0.clone(),
            n_bytes: info.n_bytes() as u64,
            encoding: encoding_of(&checkpoint, index),
            n_zeros: zeros.as_ref().map(|zeros| zeros[index]),
        }
    });
    let tensors: Vec<TensorInspection> = tensors.collect();
    Ok(Inspection {
        path: path.display().to_string(),
        format: checkpoint.format().to_string(),
        compressed: match checkpoint.compressed() {
            Compressed::No => "none",
            Compressed::Pruned => "pruned",
            Compressed::Quantized => "quantized",
        },
        file_bytes: checkpoint.weight_bytes(),
        tensor_bytes: tensors.iter().map(|tensor| tensor.n_bytes).sum(),
        n_elements: checkpoint.tensors().iter().map(|info| info.n_elements() as u64).sum(),
        companions: checkpoint.companions().iter().map(|path| path.display().to_string()).collect(),
        tensors,
    })
}

fn encoding_of(checkpoint: &Checkpoint, index: usize) -> String {
    let Some(stored) = checkpoint.stored() else { return "dense".into() };
    let coding = stored.tensors[index].coding;
    let values = coding.codes.map_or("dense".to_string(), |codes| format!("int{} {}", codes.bits, codes.grouping));
    if coding.storage == Storage::Bitmask { format!("{values}, bitmask") } else { values }
}

fn zeros_of(checkpoint: &Checkpoint, options: &RunOptions) -> Result<Vec<u64>> {
    let workers = Workers::new(options)?;
    let indices: Vec<usize> = (0..checkpoint.tensors().len()).collect();
    workers.begin("count zeros", checkpoint.tensors().iter().map(|info| info.n_bytes()).sum());
    workers.map(&indices, Vec::new, |bytes, &index| {
        let info = &checkpoint.tensors()[index];
        let width = (info.dtype.n_bits() / 8).max(1);
        let piece = if checkpoint.reads_ranges(index) { PIECE } else { info.n_bytes().max(1) };
        let mut n_zeros = 0;
        for start in (0..info.n_bytes()).step_by(piece) {
            bytes.resize(piece.min(info.n_bytes() - start), 0);
            checkpoint.read(index, start, bytes)?;
            n_zeros += bytes.chunks_exact(width).filter(|element| element.iter().all(|&byte| byte == 0)).count() as u64;
            workers.advance(bytes.len());
            workers.check_stop()?;
        }
        Ok(n_zeros)
    })
}
