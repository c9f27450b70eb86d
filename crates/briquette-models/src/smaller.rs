//! Creates smaller networks of the same family: some layers of a model, or other sizes.

use crate::config::Folder;
use crate::fresh::draw;
use crate::student_config::Smaller;
use crate::{Arch, GraphNet, LoadedModel};
use briquette_core::{DType, Error, Result};
use briquette_formats::{Checkpoint, TensorInfo, WeightLayout};
use briquette_nn::{NameMap, Parameter, parameters};
use burn::tensor::Device;
use serde_json::{Map, Value};

/// Creates a smaller network than `model`, which was loaded from `checkpoint`, and its config.json.
///
/// Random weights depend on the device's seed.
///
/// # Errors
/// - Config: the architecture lacks such layers or sizes, or inputs and outputs would differ from the model's
/// - Input: config.json is damaged
pub fn smaller(
    model: &LoadedModel,
    checkpoint: &Checkpoint,
    how: &Smaller,
    device: &Device,
) -> Result<(LoadedModel, Vec<u8>)> {
    let mut config = Folder::of(checkpoint).read("config.json")?.unwrap_or_default();
    let (network, names) = shrunk(model.arch, &model.network, &mut config, how, device)?;
    draw(&network);
    let json = serde_json::to_vec_pretty(&config).map_err(|error| Error::bug(format!("config.json: {error}")))?;
    Ok((LoadedModel { network, names, ..model.clone() }, json))
}

/// A network without weights, such as a planned student.
#[derive(Debug)]
pub struct Outline {
    arch: Arch,
    network: GraphNet,
    names: NameMap,
    config: Map<String, Value>,
}

impl Outline {
    /// Reads the headers of a checkpoint.
    ///
    /// # Errors
    /// - Config: the architecture is unknown
    /// - Input: config.json is damaged
    pub fn of(checkpoint: &Checkpoint, arch: Option<Arch>) -> Result<Self> {
        let arch = arch.map_or_else(|| Arch::detect(checkpoint), Ok)?;
        let (network, names) = GraphNet::blank(arch, checkpoint, &anywhere())?;
        let config = Folder::of(checkpoint).read("config.json")?.unwrap_or_default();
        Ok(Self { arch, network, names, config })
    }

    /// Returns the architecture.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Returns the number of layers that a student can choose from.
    pub fn n_layers(&self) -> Option<usize> {
        self.network.n_layers()
    }

    /// Returns the outline of the network that [`smaller`] creates.
    ///
    /// # Errors
    /// See [`smaller`].
    pub fn shrunk(mut self, how: &Smaller) -> Result<Self> {
        let (network, names) = shrunk(self.arch, &self.network, &mut self.config, how, &anywhere())?;
        Ok(Self { network, names, ..self })
    }

    /// Returns the tensors of the trained checkpoint, with `Linear` weights in this layout.
    ///
    /// # Errors
    /// Config: a size is too large.
    pub fn tensors(&self, layout: WeightLayout) -> Result<Vec<TensorInfo>> {
        let one = |parameter: Parameter| {
            let mut shape = parameter.shape.0.clone();
            if self.names.is_turned(&parameter, layout) {
                shape.reverse();
            }
            let name = self.names.file_name(&parameter);
            TensorInfo::checked(name, DType::F32, shape).map_err(|error| Error::config(error.message).at("student"))
        };
        parameters(&self.network).into_iter().map(one).collect()
    }
}

/// Returns a device for networks whose weights are never initialized.
fn anywhere() -> Device {
    crate::device("cpu").unwrap_or_default()
}

/// Creates a smaller network than `network` and its name map, and updates `config`.
fn shrunk(
    arch: Arch,
    network: &GraphNet,
    config: &mut Map<String, Value>,
    how: &Smaller,
    device: &Device,
) -> Result<(GraphNet, NameMap)> {
    network.smaller(arch.family(), config, how, device)
}
