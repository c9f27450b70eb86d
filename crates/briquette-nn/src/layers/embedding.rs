//! Embedding table that runs on floats or codes.

use super::{RunsOnCodes, TableUse};
use crate::packed::kept_on;
use crate::packed_weights::PackedWeights;
use crate::rounded_input::rounded_input;
use briquette_ops::compressed;
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::module::embedding;
use burn::tensor::{Device, Int, Tensor};

/// The sizes of an [`Embedding`], with the fields of burn's `EmbeddingConfig`.
#[derive(Config, Debug)]
pub struct EmbeddingConfig {
    /// Number of vectors.
    pub n_embedding: usize,
    /// Width of each vector.
    pub d_model: usize,
    /// Initializer of the table.
    #[config(default = "Initializer::Normal{mean:0.0, std:1.0}")]
    pub initializer: Initializer,
}

impl EmbeddingConfig {
    /// Creates a table of floats.
    pub fn init(&self, device: &Device) -> Embedding {
        let like = burn::nn::EmbeddingConfig::new(self.n_embedding, self.d_model);
        let like = like.with_initializer(self.initializer.clone()).init(device);
        Embedding { weight: like.weight, codes: TableUse::LookedUp(RunsOnCodes) }
    }
}

/// An embedding table with float or int8 weights.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Embedding {
    /// `[n_embedding, d_model]`.
    pub weight: Param<Tensor<2>>,
    /// Marks a layer that can run on codes, and whether the table is also the head.
    pub codes: TableUse,
}

impl Embedding {
    /// Marks the table as a head too, for tied weights.
    ///
    /// Its codes are then packed once for [`product`](Self::product); lookups read the same codes.
    #[must_use]
    pub fn as_head(self) -> Self {
        Self { codes: TableUse::Head(RunsOnCodes), ..self }
    }

    /// Computes the head: `y = x · weightᵀ`, from `[batch, length, d_model]` to `[batch, length, n_embedding]`.
    ///
    /// If the table is trained for int8 activations, `x` is fake-quantized as integer kernels will quantize it.
    ///
    /// # Panics
    /// If the last dimension is not `d_model`.
    pub fn product(&self, x: Tensor<3>) -> Tensor<3> {
        match kept_on(&self.weight, &x.device()) {
            Some(PackedWeights::Linear(weights)) => compressed::linear(x, &weights, None),
            _ => {
                let [.., n_cols] = x.dims();
                compressed::product(rounded_input(x, &self.weight, n_cols), self.weight.val())
            }
        }
    }

    /// Maps ids `[batch, length]` to vectors `[batch, length, d_model]`.
    ///
    /// # Panics
    /// If an id is not below `n_embedding`.
    pub fn forward(&self, input: Tensor<2, Int>) -> Tensor<3> {
        let found = match kept_on(&self.weight, &input.device()) {
            Some(PackedWeights::Table(table)) => compressed::embedding(input, &table),
            Some(PackedWeights::Linear(weights)) => compressed::look_up(input, &weights),
            _ => return embedding(self.weight.val(), input),
        };
        let dtype = self.weight.base().dtype();
        if found.dtype() == dtype { found } else { found.cast(dtype) }
    }
}

impl ModuleDisplay for Embedding {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [n_embedding, d_model] = self.weight.lazy_shape().dims();
        content.add("n_embedding", &n_embedding).add("d_model", &d_model).optional()
    }
}
