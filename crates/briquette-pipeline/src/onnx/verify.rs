//! Verifies an ONNX output: every file by its SHA-256, then the model's structure.

use crate::verify::check_files;
use briquette_core::Result;
use briquette_formats::onnx_write::{MODEL_FILE, check_onnx};
use briquette_formats::{model_dir, presence};
use briquette_writer::RunOptions;
use serde::Serialize;
use std::path::Path;

/// The result of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OnnxVerified {
    /// Number of operators.
    pub n_nodes: usize,
    /// Number of constant tensors.
    pub n_tensors: usize,
    /// Bytes of all constant tensors.
    pub n_bytes: u64,
}

/// Returns whether a directory is an ONNX output of Briquette.
///
/// # Errors
/// Io: the directory cannot be read.
pub fn is_onnx_output(directory: &Path) -> Result<bool> {
    presence::exists(&directory.join(model_dir::ONNX_MARK))
}

/// Verifies an ONNX output.
///
/// # Errors
/// - Input: a file or tensor differs; the message has the first one.
/// - Io: a file cannot be read.
pub fn verify_onnx(directory: &Path, options: &RunOptions) -> Result<OnnxVerified> {
    check_files(directory, options)?;
    let found = check_onnx(directory, MODEL_FILE, &|| options.stop.check())?;
    Ok(OnnxVerified { n_nodes: found.n_nodes, n_tensors: found.n_tensors, n_bytes: found.n_bytes })
}
