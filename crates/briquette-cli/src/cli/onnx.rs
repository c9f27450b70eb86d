//! `export --to onnx`, and `verify` of its outputs.

use super::choice::ReadArgs;
use super::common::Common;
use super::options::options;
use super::show::show;
use super::tables;
use briquette::core::printable::printable;
use briquette::pipeline::onnx::{self, DynamicInt8, OnnxExport, OnnxFloat, OnnxRequest};
use briquette::{Error, Result};
use clap::Args;
use std::path::{Path, PathBuf};

/// The name of the format.
pub(super) const FORMAT: &str = "onnx";

/// Flags that only ONNX has.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OnnxArgs {
    /// Quantize linear layers and tables for ONNX: int8-dynamic. Outputs with codes need no flag
    #[arg(long, value_name = "SCHEME")]
    quantize: Option<String>,
    /// Input statistics from `briquette calibrate`, to scale the inputs of int8-dynamic layers in ONNX
    #[arg(long, value_name = "FILE", requires = "quantize")]
    statistics: Option<PathBuf>,
    /// Type of floats in ONNX: f32 or f16; inputs and outputs stay f32
    #[arg(long, value_name = "TYPE")]
    cast: Option<String>,
}

impl OnnxArgs {
    /// Refuses the flags for another format.
    pub(super) fn refuse(&self) -> Result<()> {
        let flags = [("--quantize", self.quantize.is_some()), ("--cast", self.cast.is_some())];
        match flags.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(Error::config(format!(
                "{flag}: only `--to onnx` of a model that is not ONNX has it; use `briquette compress {flag}`"
            ))),
            None => Ok(()),
        }
    }

    fn float(&self) -> Result<OnnxFloat> {
        match self.cast.as_deref() {
            None | Some("f32") => Ok(OnnxFloat::F32),
            Some("f16") => Ok(OnnxFloat::F16),
            Some(other) => Err(Error::config(format!("--cast: found {other:?}, expected f32 or f16"))),
        }
    }

    fn dynamic(&self) -> Result<Option<DynamicInt8>> {
        match self.quantize.as_deref() {
            None => Ok(None),
            Some("int8-dynamic") => Ok(Some(DynamicInt8 { statistics: self.statistics.clone() })),
            Some(other) => {
                let message = format!("--quantize: found {other:?}, expected int8-dynamic");
                Err(Error::config(format!("{message}; quantize with `briquette compress`, then export its output")))
            }
        }
    }
}

/// Refuses flags that have no meaning for ONNX.
pub(super) fn refuse_others(storage: Option<&str>, allow_untested: bool) -> Result<()> {
    match (storage, allow_untested) {
        (Some(_), _) => Err(Error::config("--storage: found it with --to onnx, which has no such storage; remove it")),
        (None, true) => {
            Err(Error::config("--allow-untested: found it with --to onnx, which needs no such flag; remove it"))
        }
        (None, false) => Ok(()),
    }
}

/// Returns whether the graph of a model is to be written as ONNX; an ONNX model has its own graph, and is copied.
pub(super) fn is_written_as_graph(to: &str, model: &Path, read: &ReadArgs) -> Result<bool> {
    Ok(to == FORMAT && !onnx::is_onnx_model(model, &read.choice())?)
}

/// Writes a model as ONNX.
pub(super) fn export(
    common: &Common,
    model: &Path,
    output: &Path,
    flags: &OnnxArgs,
    read: &ReadArgs,
    force: bool,
) -> Result<u8> {
    let (float, dynamic) = (flags.float()?, flags.dynamic()?);
    let request = OnnxRequest { choice: read.choice(), float, dynamic, ..OnnxRequest::new(model, output) };
    let found = onnx::export(&request, &options(common, force)?)?;
    show(common, &found, || Ok(exported_text(&found)))
}

fn exported_text(found: &OnnxExport) -> String {
    let output = printable(&found.output.display().to_string()).to_string();
    let data = match found.data_bytes {
        0 => String::new(),
        n_bytes => format!(" and {} in model.onnx_data", tables::bytes(n_bytes)),
    };
    let scales = match (found.weights.contains_key("int8-dynamic"), found.n_input_scales) {
        (false, _) => "",
        (true, 0) => {
            "inputs of int8-dynamic layers are rounded as they are; --quantize int8-dynamic with --statistics scales them\n"
        }
        (true, _) => "inputs of int8-dynamic layers are scaled by their statistics\n",
    };
    let forms: Vec<String> = found.weights.iter().map(|(form, n)| format!("{n} {form}")).collect();
    format!(
        "{output}/model.onnx: {}{data}, opset {}, {} operators\nweights: {}\n{scales}inputs:  {}\noutputs: {}\n",
        tables::bytes(found.model_bytes),
        found.opset,
        found.n_nodes,
        forms.join(", "),
        found.inputs.join(", "),
        found.outputs.join(", ")
    )
}

/// Returns whether a directory is an ONNX output of Briquette.
pub(super) fn is_onnx_output(directory: &Path) -> Result<bool> {
    onnx::is_onnx_output(directory)
}

/// Verifies an ONNX output.
pub(super) fn verify(common: &Common, output: &Path, is_against: bool) -> Result<u8> {
    if is_against {
        return Err(Error::config("--against: found it for an ONNX output, which is not recomputed; remove it"));
    }
    let found = onnx::verify_onnx(output, &options(common, false)?)?;
    show(common, &found, || {
        let output = printable(&output.display().to_string()).to_string();
        let (nodes, tensors, bytes) = (found.n_nodes, found.n_tensors, tables::bytes(found.n_bytes));
        Ok(format!("{output}: {nodes} operators and {tensors} tensors are unchanged ({bytes})\n"))
    })
}
