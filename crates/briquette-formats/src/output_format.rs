//! The output formats. Each format is described by one row.

mod briquette;
mod burnpack;
mod compressed_tensors;
mod dense;
mod file_part;
mod held_codes;
mod onnx;
mod row;

use crate::TensorInfo;
use briquette_core::{Coding, OutputAxis, Result};
use row::{FormatRow, Shards};
use serde::{Deserialize, Serialize};

pub use compressed_tensors::is_int_quantized;
pub use file_part::{FilePart, Holds};
pub use held_codes::{CodeSupport, Misfit};
pub use row::{Container, HeaderStrings, WriteHeader};

/// The format of an output directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// Briquette's own format, the smallest: codes also for embeddings, and sparse storage if it is smaller.
    #[default]
    Briquette,
    /// compressed-tensors for transformers and vLLM: codes for Linear layers, nothing sparse.
    CompressedTensors,
    /// Plain safetensors in the original types.
    Dense,
    /// burn's burnpack in the original types.
    Burnpack,
    /// The ONNX files of the model with other values in their initializers.
    Onnx,
}

/// The row of each format, in the order of the variants.
const ROWS: [(OutputFormat, &FormatRow); 5] = [
    (OutputFormat::Briquette, &briquette::ROW),
    (OutputFormat::CompressedTensors, &compressed_tensors::ROW),
    (OutputFormat::Dense, &dense::ROW),
    (OutputFormat::Burnpack, &burnpack::ROW),
    (OutputFormat::Onnx, &onnx::ROW),
];

impl OutputFormat {
    /// All formats, with their names in recipes and on the command line.
    pub const NAMES: [(&'static str, Self); ROWS.len()] = {
        let mut names = [("", Self::Briquette); ROWS.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = (ROWS[index].1.name, ROWS[index].0);
            index += 1;
        }
        names
    };

    fn row(self) -> &'static FormatRow {
        ROWS[self as usize].1
    }

    /// Returns the format's name.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the format of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }

    /// Returns the name of a weight file, such as `model.briquette.safetensors`.
    pub fn file_name(self, shard: usize, n_shards: usize) -> String {
        let extension = self.row().extension;
        match n_shards {
            1 => format!("model.{extension}"),
            _ => format!("model-{:05}-of-{n_shards:05}.{extension}", shard + 1),
        }
    }

    /// Returns the container of the weight files.
    pub fn container(self) -> Container {
        self.row().container
    }

    /// Returns whether a file may be split. burnpack has no index.
    pub fn shards(self) -> bool {
        self.row().shards != Shards::One
    }

    /// Returns whether shards have an index for other programs.
    pub fn has_index(self) -> bool {
        self.row().shards == Shards::Indexed
    }

    /// Returns whether the output is a copy of the model's files, in which tensors keep their places.
    pub fn is_in_place(self) -> bool {
        matches!(self.container(), Container::InPlace)
    }

    /// Returns whether tensors may be stored as sparse.
    pub fn holds_sparse(self) -> bool {
        self.row().is_sparse
    }

    /// Returns whether tied tensors are stored once. Otherwise each is stored under its own name for other
    /// programs.
    pub fn keeps_ties_once(self) -> bool {
        self.row().ties
    }

    /// Returns the codes that the format supports; `None` if it only has floats. Quantized tensors are then
    /// stored dequantized.
    pub fn held_codes(self) -> Option<&'static CodeSupport> {
        self.row().codes.as_ref()
    }

    /// Returns whether transformers loads the format, with the codes described in `config.json`.
    ///
    /// Codes that transformers is not known to load are then refused, and codes are decoded as in transformers.
    pub fn is_for_transformers(self) -> bool {
        self.row().is_for_transformers
    }

    /// Returns the tensors of a file that store `tensor` in this coding, with `n_kept` kept elements.
    ///
    /// The layout of codes may depend on the quantization of activations.
    ///
    /// # Errors
    /// Config: the format does not support the coding.
    pub fn file_parts(
        self,
        tensor: &TensorInfo,
        axis: OutputAxis,
        coding: Coding,
        n_kept: usize,
        activations: Option<&str>,
    ) -> Result<Vec<FilePart>> {
        (self.row().file_parts)(tensor, axis, coding, n_kept, activations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_match_the_variants_and_their_serialized_names() {
        for (index, (format, row)) in ROWS.iter().enumerate() {
            assert_eq!(*format as usize, index, "{format:?}");
            assert_eq!(serde_json::to_value(format).unwrap(), row.name);
            assert_eq!((format.name(), OutputFormat::named(row.name)), (row.name, Some(*format)));
        }
        assert_eq!(OutputFormat::named("none"), None);
    }
}
