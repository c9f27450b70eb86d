//! Writes a model of a known family, or the network of an ONNX model with codes, as ONNX: a directory with `model.onnx`, the model's small files and `SHA256SUMS`.

mod bytes;
mod counts;
mod forms;
mod half_floats;
mod pack;
mod quantized;
mod static_int8;
mod verify;
mod weight_values;

pub use briquette_graph::to_onnx::OnnxFloat;
pub use quantized::DynamicInt8;
pub use static_int8::{StaticFigures, StaticInt8};
pub use verify::{OnnxVerified, is_onnx_output, verify_onnx};

use crate::onnx_network;
use briquette_core::{Error, Result, shown_path};
use briquette_formats::onnx_write::{
    LARGEST_FILE, MODEL_FILE, OnnxData, OnnxModel, OnnxTensor, OnnxType, OnnxValue, check_onnx, write_onnx,
};
use briquette_formats::{
    ActivationGrids, Checkpoint, Choice, Draft, InputFile, TensorSource, companions, model_config, model_dir, presence,
    sums,
};
use briquette_graph::onnx::{InputDims, RunnableModel, import_named};
use briquette_graph::to_onnx::static_int8::{StaticPlan, plan as plan_static};
use briquette_graph::to_onnx::{
    OnnxNetwork, WeightBytes, WeightForms, file_network, to_onnx, with_codes, with_factors,
};
use briquette_graph::{Extents, known_graph_of};
use briquette_writer::RunOptions;
use bytes::WeightReader;
use forms::StoredForms;
use quantized::QuantizedLayers;
use serde::Serialize;
use static_int8::FloatForms;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weight_values::CodeSource;

/// int8 codes that an export computes.
#[derive(Debug, Clone)]
pub enum OnnxInt8 {
    /// Linear layers and tables, with scales of activations from each input.
    Dynamic(DynamicInt8),
    /// Convolutions and linear layers, with fixed scales of activations.
    Static(Box<StaticInt8>),
}

/// A model to export, and how.
#[derive(Debug, Clone)]
pub struct OnnxRequest {
    /// The model.
    pub model: PathBuf,
    /// The entry of the file that is the model.
    pub choice: Choice,
    /// The directory to write.
    pub output: PathBuf,
    /// The type of floats.
    pub float: OnnxFloat,
    /// int8 codes that are computed from the weights, instead of the codes or floats of the model.
    pub int8: Option<OnnxInt8>,
    /// Whether codes in groups only need ONNX's own operators, which need opset 21, and not those of `com.microsoft`.
    pub has_own_operators: bool,
    /// The largest `model.onnx`; larger models keep their weights in a second file.
    pub largest_file: u64,
}

impl OnnxRequest {
    /// Requests a model in f32.
    pub fn new(model: &Path, output: &Path) -> Self {
        let (model, output) = (model.to_path_buf(), output.to_path_buf());
        let choice = Choice::default();
        let (float, int8, has_own_operators) = (OnnxFloat::F32, None, false);
        Self { model, choice, output, float, int8, has_own_operators, largest_file: LARGEST_FILE }
    }
}

/// A written ONNX model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OnnxExport {
    /// The directory.
    pub output: PathBuf,
    /// The version of ONNX's operators.
    pub opset: i64,
    /// Number of operators.
    pub n_nodes: usize,
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Number of weights in each form: `float`, `f16`, `int8`, `int8-dynamic`, `int8-static`, `blocks`.
    pub weights: BTreeMap<&'static str, usize>,
    /// Number of groups of layers whose inputs are multiplied by a vector from input statistics.
    pub n_input_scales: usize,
    /// Number of values that are rounded to a fixed grid.
    pub n_grids: usize,
    /// Figures of the calibration of static activations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<StaticFigures>,
    /// Bytes of `model.onnx`.
    pub model_bytes: u64,
    /// Bytes of the second file with weights; 0 if there is none.
    pub data_bytes: u64,
}

/// Writes a model as ONNX. The directory appears when it is complete and was read again.
///
/// int8 codes with dynamic or fixed activations become integer products, int8 codes alone are dequantized in the model, and codes in groups
/// of 16, 32, 64, .. of 4 or 8 bits become `MatMulNBits` of `com.microsoft`; all codes are kept. Other weights are written as floats.
///
/// # Errors
/// - Input: no family knows the model, or an operation has no form in ONNX.
/// - Refused: the output exists, or f16 cannot hold a weight.
/// - Io: a file cannot be read or written.
pub fn export(request: &OnnxRequest, options: &RunOptions) -> Result<OnnxExport> {
    let checkpoint = Checkpoint::open_as(&request.model, &request.choice)?;
    let at_model = |error: Error| error.at(shown_path(&request.model));
    check_exportable(&checkpoint, request).map_err(at_model)?;
    let files = checkpoint.files();
    let inputs: Vec<&Path> = files.iter().map(|file| file.path()).chain([request.model.as_path()]).collect();
    let draft = Draft::create(&request.output, &inputs, options.force)?;
    let CodedNetwork { mut network, codes, calibration } = CodedNetwork::new(&checkpoint, request, options)?;
    let is_coded = network.weights.iter().any(|weight| weight.bytes.is_codes());
    if request.int8.is_some() && !is_coded {
        let message =
            "found no linear layer or table with a weight, expected one for int8-dynamic; use --quantize int8-static";
        return Err(draft.explain(at_model(Error::config(message))));
    }
    network.model.metadata.extend(metadata(&checkpoint, request)?);
    let reader = WeightReader::new(&checkpoint, &network, codes.as_deref())?;
    let written = fill(&draft, &checkpoint, &network, &reader, request, options);
    let found = written.map_err(|error| draft.explain(error))?;
    draft.publish()?;
    Ok(OnnxExport { calibration, ..found })
}

/// A network with the source of its codes.
struct CodedNetwork<'a> {
    network: OnnxNetwork,
    codes: Option<Box<dyn CodeSource + 'a>>,
    calibration: Option<StaticFigures>,
}

impl<'a> CodedNetwork<'a> {
    /// Converts a checkpoint in the forms that a request asks for.
    fn new(checkpoint: &'a Checkpoint, request: &OnnxRequest, options: &RunOptions) -> Result<Self> {
        if let Some(file) = checkpoint.network_file() {
            return Self::of_file(checkpoint, file, request, options);
        }
        // Embeddings of sentences are pooled from hidden states: sentence-transformers drops the pooler too.
        let is_sentence_encoder = presence::is_file(&checkpoint.directory().join("modules.json"))?;
        let build = |extents: Extents| {
            let graph = with_factors(known_graph_of(checkpoint, &extents.into())?, checkpoint.tensors());
            Ok(if is_sentence_encoder { graph.without_outputs_of("pooler") } else { graph })
        };
        let at_model = |error: Error| error.at(shown_path(&request.model));
        let of = |forms: &dyn WeightForms| to_onnx(&build, request.float, forms).map_err(at_model);
        match &request.int8 {
            None => {
                let network = of(&StoredForms::of(checkpoint, request.has_own_operators)?)?;
                let grids = ActivationGrids::of(checkpoint)?;
                if grids.are_of_layers() || grids.values.is_empty() {
                    return Ok(Self { network, codes: None, calibration: None });
                }
                let (network, layers) = static_int8::with_stored_codes(checkpoint, network, options)?;
                Ok(Self { network, codes: Some(layers), calibration: None })
            }
            Some(OnnxInt8::Dynamic(how)) => {
                let layers = QuantizedLayers::new(checkpoint, how, options)?;
                Ok(Self { network: of(&layers)?, codes: Some(Box::new(layers)), calibration: None })
            }
            Some(OnnxInt8::Static(how)) => {
                let plan = plan_static(of(&FloatForms)?).map_err(at_model)?;
                Self::fixed(checkpoint, plan, how, options)
            }
        }
    }

    /// Gives the network of an ONNX file the forms that a request asks for. Nodes without codes are kept as they are.
    fn of_file(
        checkpoint: &'a Checkpoint,
        file: &InputFile,
        request: &OnnxRequest,
        options: &RunOptions,
    ) -> Result<Self> {
        let at_model = |error: Error| error.at(shown_path(&request.model));
        let network = |imported| file_network(file, imported, checkpoint.tensors()).map_err(at_model);
        let plain = || import_named(file, &InputDims::default()).and_then(network);
        let cast = |network| match request.float {
            OnnxFloat::F32 => Ok(network),
            OnnxFloat::F16 => half_floats::cast(network, checkpoint, options).map_err(at_model),
        };
        match &request.int8 {
            None => {
                let forms = StoredForms::of(checkpoint, request.has_own_operators)?;
                let network = cast(with_codes(plain()?, &forms).map_err(at_model)?)?;
                Ok(Self { network, codes: None, calibration: None })
            }
            Some(OnnxInt8::Dynamic(how)) => {
                let layers = QuantizedLayers::new(checkpoint, how, options)?;
                let network = cast(with_codes(plain()?, &layers).map_err(at_model)?)?;
                Ok(Self { network, codes: Some(Box::new(layers)), calibration: None })
            }
            Some(OnnxInt8::Static(how)) => {
                // As the network runs, so that its values are those that are observed.
                let model = RunnableModel::read(InputFile::open(file.path())?).map_err(at_model)?;
                let network = network(model.named_graph(&Extents::EXAMPLE.into()).map_err(at_model)?)?;
                Self::fixed(checkpoint, plan_static(network).map_err(at_model)?, how, options)
            }
        }
    }

    fn fixed(checkpoint: &'a Checkpoint, plan: StaticPlan, how: &StaticInt8, options: &RunOptions) -> Result<Self> {
        let (network, layers, figures) = static_int8::quantize(checkpoint, plan, how, options)?;
        Ok(Self { network, codes: Some(layers), calibration: Some(figures) })
    }
}

/// Returns whether a model is an ONNX file, or an output of Briquette with one. Such a file is copied with new weights.
///
/// # Errors
/// See [`Checkpoint::open_as`].
pub fn is_onnx_model(model: &Path, choice: &Choice) -> Result<bool> {
    Ok(Checkpoint::open_as(model, choice)?.onnx_file().is_some())
}

/// Refuses codes of programs that this one does not decode, and other codes or types for a model with grids of activations.
fn check_exportable(checkpoint: &Checkpoint, request: &OnnxRequest) -> Result<()> {
    if let Some(method) = checkpoint.quantized_by() {
        let message = format!(
            "the model is already quantized ({method}), which Briquette cannot decode; start from the original weights"
        );
        return Err(Error::refused(message));
    }
    if request.int8.is_some() && checkpoint.has_codes_of_nodes()? {
        let message = "--quantize: the nodes of the model decode codes of weights already; start from the model that it was made from";
        return Err(Error::refused(message));
    }
    if checkpoint.static_weights().next().is_none() {
        return Ok(());
    }
    if request.int8.is_some() {
        let message = "--quantize: found a model with static int8 activations, expected a model without codes; remove --quantize to keep its codes, or export the original model";
        return Err(Error::config(message));
    }
    match request.float {
        OnnxFloat::F32 => Ok(()),
        OnnxFloat::F16 => {
            let message =
                "--cast: found f16 for a model with static int8 activations, whose other values are f32; remove it";
            Err(Error::config(message))
        }
    }
}

/// How the model was made: the recipe of an output of Briquette, and the format of the source.
fn metadata(checkpoint: &Checkpoint, request: &OnnxRequest) -> Result<Vec<(String, String)>> {
    let mut found = vec![("briquette.source".into(), checkpoint.format().to_string())];
    let how = request.int8.as_ref().map(|int8| match int8 {
        OnnxInt8::Dynamic(DynamicInt8 { statistics: Some(_) }) => "int8-dynamic, input scales from statistics".into(),
        OnnxInt8::Dynamic(DynamicInt8 { statistics: None }) => "int8-dynamic".into(),
        OnnxInt8::Static(how) => format!("int8-static, ranges by {}", how.range),
    });
    found.extend(how.map(|how| ("briquette.quantization".into(), how)));
    if let Some(manifest) = checkpoint.manifest() {
        let recipe = serde_json::to_string(&manifest.recipe).map_err(|error| Error::bug(format!("JSON: {error}")))?;
        found.push(("briquette.recipe".into(), recipe));
    }
    Ok(found)
}

fn fill(
    draft: &Draft,
    checkpoint: &Checkpoint,
    network: &OnnxNetwork,
    reader: &WeightReader,
    request: &OnnxRequest,
    options: &RunOptions,
) -> Result<OnnxExport> {
    let check_stop = || options.stop.check();
    let OnnxNetwork { model, weights, .. } = network;
    let n_bytes = streamed(model).map(OnnxTensor::n_bytes).sum::<Result<u64>>()?;
    options.progress.begin("write", n_bytes);
    let types: BTreeMap<usize, OnnxType> =
        streamed(model).filter_map(|tensor| Some((place(tensor)?, tensor.dtype))).collect();
    let written = write_onnx(model, draft, request.largest_file, &mut |index, to| {
        reader.stream(weights[index], types[&index], &mut |bytes| {
            options.progress.advance(bytes.len() as u64);
            check_stop().and_then(|()| to(bytes))
        })
    })?;
    options.progress.begin("verify", n_bytes);
    check_onnx(draft.path(), MODEL_FILE, &check_stop)?;
    companions::copy_into(draft, checkpoint, &check_stop)?;
    for (name, bytes) in onnx_network::settings(checkpoint)? {
        draft.write_file(&name, &bytes)?;
    }
    let config = model_config::with_quantization(model_config::read(checkpoint)?, None, &checkpoint.directory())?;
    if let Some(config) = config {
        draft.write_file(Path::new(model_config::FILE_NAME), &config)?;
    }
    write_mark(draft, model)?;
    write_sums(draft, &check_stop)?;
    checkpoint.check_unchanged()?;
    options.progress.end();
    Ok(OnnxExport {
        output: request.output.clone(),
        opset: model.opset,
        n_nodes: model.nodes.len(),
        inputs: names(&model.inputs),
        outputs: names(&model.outputs),
        weights: counts::counts(network),
        n_input_scales: weights.iter().filter(|weight| weight.bytes == WeightBytes::InputScales).count(),
        n_grids: counts::n_grids(model),
        calibration: None,
        model_bytes: written.model_bytes,
        data_bytes: written.data_bytes,
    })
}

fn names(values: &[OnnxValue]) -> Vec<String> {
    values.iter().map(|value| value.name.clone()).collect()
}

fn streamed(model: &OnnxModel) -> impl Iterator<Item = &OnnxTensor> {
    model.tensors.iter().filter(|tensor| place(tensor).is_some())
}

/// Returns the place of a streamed tensor among the weights.
fn place(tensor: &OnnxTensor) -> Option<usize> {
    if let OnnxData::Streamed(index) = tensor.data { Some(index) } else { None }
}

/// Marks the directory as an output of Briquette, which may be replaced and verified.
fn write_mark(draft: &Draft, model: &OnnxModel) -> Result<()> {
    let mark = serde_json::json!({
        "format": "briquette-onnx",
        "version": 1,
        "producer": concat!("briquette ", env!("CARGO_PKG_VERSION")),
        "opset": model.opset,
    });
    draft.write_file(Path::new(model_dir::ONNX_MARK), format!("{mark:#}\n").as_bytes())
}

fn write_sums(draft: &Draft, check_stop: &dyn Fn() -> Result<()>) -> Result<()> {
    let mut found = BTreeMap::new();
    for path in sums::files_below(draft.path())? {
        let name = path.to_string_lossy().into_owned();
        if !sums::is_uncovered(&name) {
            let file = InputFile::open(&draft.path().join(&path))?;
            found.insert(name, sums::sha256_of(&file, true, check_stop)?);
        }
    }
    draft.write_file(Path::new(sums::FILE_NAME), sums::to_lines(&found).as_bytes())
}
