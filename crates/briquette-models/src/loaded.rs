//! A model that can run: its network, tokenizer and input settings.

use crate::memory::{packed_bytes, scratch_bytes};
use crate::text::TextTokenizer;
use crate::{Arch, GraphNet, Input};
use briquette_core::{Error, ErrorKind, Result};
use briquette_formats::Checkpoint;
use briquette_graph::Extents;
use briquette_nn::{NameMap, ToDType, held};
use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};
use std::path::Path;

/// A model with its weights.
#[derive(Debug, Clone)]
pub struct LoadedModel {
    /// Architecture of the model.
    pub arch: Arch,
    /// The network as it was loaded. To run it from an autodiff device, use `valid()`.
    pub network: GraphNet,
    /// Input of the network.
    pub input: Input,
    /// Map between parameter paths and checkpoint names, for export.
    pub names: NameMap,
    /// Type of the computation; inputs and outputs are f32: see [`LoadedModel::computing_in`].
    pub compute: FloatDType,
}

impl LoadedModel {
    /// Casts the weights of the model, so that it computes in another type.
    ///
    /// # Errors
    /// Config: weights are stored as codes, with which layers compute in f32.
    pub fn computing_in(self, compute: FloatDType) -> Result<Self> {
        if self.arch.is_onnx() && compute != FloatDType::F32 {
            return Err(Error::config("memory.dtype: found an ONNX model, which computes in f32; use f32"));
        }
        let floats = ["f32", "f16", "bf16"];
        if let Some(kind) = held(&self.network).keys().find(|kind| !floats.contains(&kind.as_str())) {
            let message = format!("memory.dtype: weights are stored as {kind}, which computes in f32; use f32");
            return Err(Error::config(message));
        }
        Ok(Self { network: self.network.to_dtype(compute), compute, ..self })
    }

    /// Maps images to logits, both in f32.
    ///
    /// # Panics
    /// If the model is not a classifier.
    pub fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.network.classify(images.cast(self.compute)).cast(FloatDType::F32)
    }

    /// Predicts the bytes that a first run on the CPU takes beside weights: its values, and what a product of floats takes.
    ///
    /// 0 on other devices.
    pub fn run_bytes(&self, extents: Extents) -> u64 {
        if crate::device_name(&self.network.device()) != "cpu" {
            return 0;
        }
        let has_codes = held(&self.network).keys().any(|form| form.contains("int"));
        let of_product = if has_codes { 0 } else { scratch_bytes() + packed_bytes(self.network.graph()) };
        self.network.run_sizes().whole(extents) + of_product
    }

    /// Returns the model for inference: off the autodiff device, without training-only behaviour.
    #[must_use]
    pub fn for_running(&self) -> Self {
        Self { network: self.network.valid(), ..self.clone() }
    }

    /// Opens a file, an index or a directory and loads it on `device`.
    ///
    /// Compressed weights stay codes on devices whose layers run on codes; otherwise they are decoded.
    ///
    /// # Errors
    /// - Config: the architecture is unknown
    /// - Input: files are damaged or do not fit the architecture
    /// - Io: a file cannot be read
    pub fn open(path: &Path, arch: Option<Arch>, device: &Device) -> Result<Self> {
        Self::load(&Checkpoint::open(path)?, arch, device)
    }

    /// Like [`LoadedModel::open`], for an open checkpoint.
    ///
    /// # Errors
    /// See [`LoadedModel::open`].
    pub fn load(checkpoint: &Checkpoint, arch: Option<Arch>, device: &Device) -> Result<Self> {
        let arch = arch.map_or_else(|| Arch::detect(checkpoint), Ok)?;
        let (network, names) = filled(arch, checkpoint, device)?;
        let input = arch.input(checkpoint)?;
        Ok(Self { arch, network, input, names, compute: FloatDType::F32 })
    }

    /// Like [`LoadedModel::load`], for an input that was read before.
    ///
    /// # Errors
    /// See [`LoadedModel::open`].
    pub fn load_with(checkpoint: &Checkpoint, arch: Arch, input: Input, device: &Device) -> Result<Self> {
        let (network, names) = filled(arch, checkpoint, device)?;
        Ok(Self { arch, network, input, names, compute: FloatDType::F32 })
    }

    /// Returns the tokenizer of a model that takes text.
    ///
    /// # Errors
    /// - Input: the directory has no tokenizer
    /// - Config: the model takes images
    pub fn tokenizer(&self) -> Result<&TextTokenizer> {
        self.input.tokenizer()
    }

    /// Truncates texts to `max_length` tokens from now on.
    ///
    /// # Errors
    /// Config: the model has fewer positions, or there is no room for text. See [`LoadedModel::tokenizer`] for
    /// other errors.
    pub fn set_max_length(&mut self, max_length: usize) -> Result<()> {
        self.input.set_max_length(max_length)
    }
}

/// Loads a network, keeping codes where they can run. If the checkpoint does not fit, the error suggests another
/// architecture.
fn filled(arch: Arch, checkpoint: &Checkpoint, device: &Device) -> Result<(GraphNet, NameMap)> {
    arch.check(checkpoint)?;
    let found = GraphNet::blank(arch, checkpoint, device).and_then(|(network, names)| {
        let network = GraphNet::filled(checkpoint, (network, &names), device)?;
        Ok((network, names))
    });
    found.map_err(|error| match Arch::by_names(checkpoint) {
        Some(other) if other.family().name != arch.family().name && error.kind == ErrorKind::Input => {
            let message = format!("the tensor names are those of {other}; set arch = \"{other}\"");
            Error { message: format!("{}; {message}", error.message), ..error }
        }
        _ => error,
    })
}
