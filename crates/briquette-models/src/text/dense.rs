//! The Dense module of sentence-transformers: a linear layer after pooling.

use crate::config::Folder;
use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_nn::layers::{Linear, LinearConfig};
use briquette_nn::safetensors::tensor::{Dtype, TensorView};
use briquette_nn::{NameMap, load_into, safetensors};
use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The class of the module in `modules.json`.
pub const DENSE_CLASS: &str = "sentence_transformers.models.Dense";
/// Largest width of an embedding.
const MAX_WIDTH: usize = 1 << 16;

/// A linear layer after pooling, `y = a(x Wᵀ + b)`, with an activation a.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseModule {
    /// W, `[in, out]`: burn's layout.
    weight: Arc<[f32]>,
    /// b, `[out]`.
    bias: Option<Arc<[f32]>>,
    settings: DenseSettings,
}

/// The module's config.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct DenseSettings {
    in_features: usize,
    out_features: usize,
    bias: bool,
    activation_function: String,
}

/// The weights of a Dense module, under the names of its file.
#[derive(Module, Debug)]
struct DenseWeights {
    linear: Linear,
}

/// Classes of activations that Dense modules have.
const IDENTITY: &str = "torch.nn.modules.linear.Identity";
const TANH: &str = "torch.nn.modules.activation.Tanh";

impl DenseModule {
    /// Creates a module without bias and activation from weights `[in, out]`.
    pub fn new(weight: Vec<f32>, [in_features, out_features]: [usize; 2]) -> Self {
        let settings =
            DenseSettings { in_features, out_features, bias: false, activation_function: IDENTITY.to_string() };
        Self { weight: weight.into(), bias: None, settings }
    }

    /// Reads the module from its directory `path` inside a model's directory.
    pub(crate) fn read(folder: &Folder, path: &str) -> Result<Self> {
        let config = format!("{path}/config.json");
        let at = folder.file(&config);
        let missing = || Error::input("it is missing; a Dense module needs it").at(at.display());
        let settings: DenseSettings = folder.read(&config)?.ok_or_else(missing)?;
        for width in [settings.in_features, settings.out_features] {
            if !(1..=MAX_WIDTH).contains(&width) {
                let message = format!("found a width of {width}, expected 1 to {MAX_WIDTH}");
                return Err(Error::input(message).at(at.display()));
            }
        }
        if ![IDENTITY, TANH].contains(&settings.activation_function.as_str()) {
            let message =
                format!("found activation_function {:?}, expected {IDENTITY} or {TANH}", settings.activation_function);
            return Err(Error::input(message).at(at.display()));
        }
        // burn's default device is a GPU in a build with CUDA, even if there is none.
        let device = crate::device("cpu")?;
        let linear = LinearConfig::new(settings.in_features, settings.out_features).with_bias(settings.bias);
        let weights = DenseWeights { linear: linear.init(&device) };
        let checkpoint = Checkpoint::open(&folder.file(path))?;
        let DenseWeights { linear } = load_into(weights, &checkpoint, &NameMap::torch())?;
        let weight = values(linear.weight.val())?.into();
        let bias = linear.bias.map(|bias| values(bias.val())).transpose()?.map(Arc::from);
        Ok(Self { weight, bias, settings })
    }

    /// Returns the widths of inputs and outputs.
    pub fn widths(&self) -> [usize; 2] {
        [self.settings.in_features, self.settings.out_features]
    }

    /// Returns the module's files, `config.json` and `model.safetensors`, by name.
    ///
    /// # Errors
    /// Bug: a file cannot be serialized.
    pub fn files(&self) -> Result<[(&'static str, Vec<u8>); 2]> {
        let [n_in, n_out] = self.widths();
        let by_output = (0..n_out).flat_map(|row| (0..n_in).map(move |column| self.weight[column * n_out + row]));
        let weight: Vec<u8> = by_output.flat_map(f32::to_le_bytes).collect();
        let bias: Option<Vec<u8>> =
            self.bias.as_ref().map(|bias| bias.iter().flat_map(|value| value.to_le_bytes()).collect());
        let view = |shape: Vec<usize>, bytes| TensorView::new(Dtype::F32, shape, bytes);
        let weight = Some(("linear.weight", view(vec![n_out, n_in], &weight)));
        let bias = bias.as_ref().map(|bias| ("linear.bias", view(vec![n_out], bias)));
        let tensors = weight.into_iter().chain(bias).map(|(name, view)| view.map(|view| (name, view)));
        let failed = |error: &dyn std::fmt::Display| Error::bug(format!("the Dense module: {error}"));
        let tensors: Vec<_> = tensors.collect::<Result<_, _>>().map_err(|error| failed(&error))?;
        let file = safetensors::serialize(tensors, None).map_err(|error| failed(&error))?;
        let config = serde_json::to_vec_pretty(&self.settings).map_err(|error| failed(&error))?;
        Ok([("config.json", config), ("model.safetensors", file)])
    }

    /// Applies the layer to pooled states `[batch, in]`.
    pub(crate) fn apply(&self, pooled: Tensor<2>) -> Tensor<2> {
        let device = pooled.device();
        let [n_in, n_out] = self.widths();
        let weight = Tensor::<2>::from_data(TensorData::new(self.weight.to_vec(), [n_in, n_out]), &device);
        let mapped = pooled.matmul(weight);
        let mapped = match &self.bias {
            Some(bias) => mapped + Tensor::<2>::from_data(TensorData::new(bias.to_vec(), [1, n_out]), &device),
            None => mapped,
        };
        if self.settings.activation_function == TANH { mapped.tanh() } else { mapped }
    }
}

/// Reads the values of a parameter.
fn values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    briquette_nn::module::read_f32(tensor, "linear")
}
