//! `export --to onnx`, and `verify` of its outputs.

use super::choice::ReadArgs;
use super::common::Common;
use super::options::options;
use super::show::show;
use super::tables;
use briquette::core::printable::printable;
use briquette::pipeline::onnx::{self, DynamicInt8, OnnxExport, OnnxFloat, OnnxInt8, OnnxRequest, StaticInt8};
use briquette::pipeline::recipe::raw;
use briquette::quant::{ActivationRange, activation_range::UnknownRange};
use briquette::{Error, Result};
use clap::Args;
use std::path::{Path, PathBuf};

/// The number of images that static scales are chosen from, unless a flag says otherwise.
const N_SAMPLES: usize = 256;

/// The name of the format.
pub(super) const FORMAT: &str = "onnx";

/// Flags that only ONNX has.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OnnxArgs {
    /// Compute codes for ONNX: int8-dynamic (linear layers and tables) or int8-static (convolutional networks); a model with codes keeps its own
    #[arg(long, value_name = "SCHEME")]
    quantize: Option<String>,
    /// Input statistics from `briquette calibrate`, to scale the inputs of int8-dynamic layers in ONNX
    #[arg(long, value_name = "FILE", requires = "quantize")]
    statistics: Option<PathBuf>,
    /// Type of floats in ONNX: f32 or f16; inputs and outputs stay f32
    #[arg(long, value_name = "TYPE")]
    cast: Option<String>,
    /// Operators for codes in groups in ONNX: microsoft (MatMulNBits, fast in onnxruntime) or standard (opset 21) [default: microsoft]
    #[arg(long, value_name = "SET")]
    operators: Option<String>,
    /// Images for int8-static, which fix the scales of activations: a folder of classes or an array
    #[arg(long, value_name = "PATH", requires = "quantize", help_heading = "Options of int8-static")]
    data: Option<PathBuf>,
    /// Largest number of images to run [default: 256]
    #[arg(long, value_name = "N", requires = "data", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Options of int8-static")]
    samples: Option<u64>,
    /// Seed that chooses the images [default: 0]
    #[arg(long, value_name = "SEED", requires = "data", help_heading = "Options of int8-static")]
    seed: Option<u64>,
    /// How the range of each activation is chosen: minmax, percentile, mse or entropy [default: mse]
    #[arg(long, value_name = "RANGE", requires = "data", help_heading = "Options of int8-static")]
    range: Option<String>,
    /// Scale the shorter side of images to this length, at most 16384
    #[arg(long, value_name = "PIXELS", requires = "data", help_heading = "Options of int8-static")]
    size: Option<usize>,
    /// Give weights 7 bits, for x86 CPUs without VNNI, whose sums of products may overflow
    #[arg(long, requires = "data", help_heading = "Options of int8-static")]
    reduce_range: bool,
}

impl OnnxArgs {
    /// Refuses the flags for another format.
    pub(super) fn refuse(&self) -> Result<()> {
        if self.quantize.as_deref() == Some("int8-static") {
            let message = "--quantize int8-static: only `--to onnx` has it; add `--to onnx`";
            return Err(Error::config(message));
        }
        if self.operators.is_some() {
            return Err(Error::config("--operators: only `--to onnx` of a model with codes has it; remove it"));
        }
        if self.quantize.is_some() {
            return Err(Error::config("--quantize: only `--to onnx` has it; use `briquette compress --quantize`"));
        }
        match self.cast.as_deref() {
            Some("f32") => Err(Error::config(
                "--cast f32: only `--to onnx` of a model that is not ONNX has it; remove it, or use `briquette compress --cast`",
            )),
            Some(_) => Err(Error::config("--cast: only `--to onnx` has it; use `briquette compress --cast`")),
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

    /// Returns whether codes in groups only need ONNX's own operators.
    fn has_own_operators(&self) -> Result<bool> {
        match self.operators.as_deref() {
            None | Some("microsoft") => Ok(false),
            Some("standard") => Ok(true),
            Some(other) => Err(Error::config(format!("--operators: found {other:?}, expected microsoft or standard"))),
        }
    }

    /// Returns the codes to compute.
    fn int8(&self) -> Result<Option<OnnxInt8>> {
        match (self.quantize.as_deref(), &self.data) {
            (None, _) => Ok(None),
            (Some("int8-dynamic"), Some(_)) => Err(Error::config(
                "--data: found it with int8-dynamic, which needs no data; remove it, or use --statistics",
            )),
            (Some("int8-dynamic"), None) => {
                Ok(Some(OnnxInt8::Dynamic(DynamicInt8 { statistics: self.statistics.clone() })))
            }
            (Some("int8-static"), data) => {
                self.fixed(data.as_deref()).map(|found| Some(OnnxInt8::Static(Box::new(found))))
            }
            (Some(other), _) => {
                let message = format!("--quantize: found {other:?}, expected int8-dynamic or int8-static");
                Err(Error::config(format!("{message}; quantize with `briquette compress`, then export its output")))
            }
        }
    }

    /// Returns the settings of int8-static.
    fn fixed(&self, data: Option<&Path>) -> Result<StaticInt8> {
        let flag = |message: &str| Err(Error::config(message));
        let Some(data) = data else {
            return flag(
                "--quantize int8-static: found no --data, expected images that fix the scales; add --data PATH",
            );
        };
        if self.statistics.is_some() {
            return flag("--statistics: found it with int8-static, which gathers its own; remove it");
        }
        if self.cast.as_deref().is_some_and(|cast| cast != "f32") {
            return flag("--cast: found f16 with int8-static, whose other values are f32; remove it");
        }
        let range = match &self.range {
            Some(name) => name.parse().map_err(|error: UnknownRange| Error::config(format!("--range: {error}")))?,
            None => ActivationRange::default(),
        };
        let data = raw::RawData { eval: Some(data.to_path_buf()), size: self.size, ..Default::default() };
        let n_samples = self.samples.map_or(N_SAMPLES, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let (seed, reduce_range) = (self.seed.unwrap_or(0), self.reduce_range);
        Ok(StaticInt8 { data, n_samples, seed, range, reduce_range })
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

/// Returns whether the graph of a model is to be written as ONNX. An ONNX model is copied unless flags ask for codes or f16.
pub(super) fn is_written_as_graph(to: &str, model: &Path, read: &ReadArgs, flags: &OnnxArgs) -> Result<bool> {
    if to != FORMAT {
        return Ok(false);
    }
    let is_changed = flags.quantize.is_some() || flags.float()? == OnnxFloat::F16;
    Ok(is_changed || !onnx::is_onnx_model(model, &read.choice())?)
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
    let (float, int8, has_own_operators) = (flags.float()?, flags.int8()?, flags.has_own_operators()?);
    let choice = read.choice();
    let request = OnnxRequest { choice, float, int8, has_own_operators, ..OnnxRequest::new(model, output) };
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
    let given = match found.n_grids {
        0 => String::new(),
        n => format!("activations: uint8, on {n} grids of the model\n"),
    };
    let calibration = found.calibration.as_ref().map_or(given, |of| {
        let skipped = if of.n_skipped > 0 { format!("; {} could not be decoded", of.n_skipped) } else { String::new() };
        format!("activations: uint8, {} ranges by {} from {} images{skipped}\n", of.n_ranges, of.range, of.n_items)
    });
    let forms: Vec<String> = found.weights.iter().map(|(form, n)| format!("{n} {form}")).collect();
    format!(
        "{output}/model.onnx: {}{data}, opset {}, {} operators\nweights: {}\n{calibration}{scales}inputs:  {}\noutputs: {}\n",
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
