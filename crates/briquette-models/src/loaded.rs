//! A model that can be run: its network, and what it needs to read its inputs.

use crate::text::TextTokenizer;
use crate::{Arch, Input, Network};
use briquette_core::{Error, ErrorKind, Result};
use briquette_formats::Checkpoint;
use briquette_nn::{NameMap, ToDType, held, load_compressed, load_into};
use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};
use std::path::Path;

/// A model with its weights.
#[derive(Debug, Clone)]
pub struct LoadedModel {
    /// Its architecture.
    pub arch: Arch,
    /// Its network, in the state it was loaded; `valid()` where it is on an autodiff device and only run.
    pub network: Network,
    /// What it takes in.
    pub input: Input,
    /// How the paths of its parameters relate to the names of the checkpoint it came from, for exporting it again.
    pub names: NameMap,
    /// What its network computes in, in between inputs and outputs in f32: see [`LoadedModel::computing_in`].
    pub compute: FloatDType,
}

impl LoadedModel {
    /// The same model computing in another type: its weights are cast, and so is what goes in and comes out.
    ///
    /// # Errors
    /// Config where weights are held as codes: on those, layers compute in f32.
    pub fn computing_in(self, compute: FloatDType) -> Result<Self> {
        let floats = ["f32", "f16", "bf16"];
        if let Some(kind) = held(&self.network).keys().find(|kind| !floats.contains(&kind.as_str())) {
            let message = format!("memory.dtype: weights are held as {kind}, which computes in f32; leave it at f32");
            return Err(Error::config(message));
        }
        Ok(Self { network: self.network.to_dtype(compute), compute, ..self })
    }

    /// Class scores of images, both in f32.
    ///
    /// # Panics
    /// If it is no classifier.
    pub fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.network.classify(images.cast(self.compute)).cast(FloatDType::F32)
    }

    /// The same model as it is run, not trained: off the autodiff device, with all that only trains switched off.
    #[must_use]
    pub fn for_running(&self) -> Self {
        Self { network: self.network.valid(), ..self.clone() }
    }

    /// Opens a file, an index or a directory and loads it on `device`. On the CPU, off autodiff, compressed
    /// weights stay codes where layers run on those; elsewhere they are decoded.
    ///
    /// # Errors
    /// Config where the architecture cannot be told; Input where files are damaged or do not fit it; Io.
    pub fn open(path: &Path, arch: Option<Arch>, device: &Device) -> Result<Self> {
        Self::load(&Checkpoint::open(path)?, arch, device)
    }

    /// As [`LoadedModel::open`], of an open checkpoint.
    ///
    /// # Errors
    /// As [`LoadedModel::open`].
    pub fn load(checkpoint: &Checkpoint, arch: Option<Arch>, device: &Device) -> Result<Self> {
        let arch = arch.map_or_else(|| Arch::detect(checkpoint), Ok)?;
        let (network, names) = Network::blank(arch, checkpoint, device)?;
        let network = filled(network, arch, checkpoint, &names)?;
        let input = arch.input(checkpoint)?;
        Ok(Self { arch, network, input, names, compute: FloatDType::F32 })
    }

    /// The tokenizer of a model that takes text.
    ///
    /// # Errors
    /// Input where its directory has none; Config where it takes images.
    pub fn tokenizer(&self) -> Result<&TextTokenizer> {
        self.input.tokenizer()
    }

    /// Cuts texts at `max_length` tokens from now on.
    ///
    /// # Errors
    /// Config where the model has fewer positions or that leaves no room; as [`LoadedModel::tokenizer`] elsewhere.
    pub fn set_max_length(&mut self, max_length: usize) -> Result<()> {
        self.input.set_max_length(max_length)
    }
}

/// Loads a network, codes as codes where they will run; where it does not fit, says whose names the checkpoint has.
fn filled(network: Network, arch: Arch, checkpoint: &Checkpoint, names: &NameMap) -> Result<Network> {
    let holds_codes = network.devices().iter().all(briquette_nn::holds_codes);
    let found = match holds_codes {
        true => load_compressed(network, checkpoint, names),
        false => load_into(network, checkpoint, names),
    };
    found.map_err(|error| match Arch::by_names(checkpoint) {
        Some(other) if other != arch && error.kind == ErrorKind::Input => {
            let message = format!("{}; its names are those of {other}: set arch = \"{other}\"", error.message);
            Error::input(message)
        }
        _ => error,
    })
}
