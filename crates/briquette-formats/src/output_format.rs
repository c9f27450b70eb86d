//! The formats of output directories: what others ask of each is answered from its row.

mod briquette;
mod burnpack;
mod compressed_tensors;
mod dense;
mod file_part;
mod held_codes;
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
    /// Ours: the smallest. Embeddings are coded too, and sparse parts are used where they win.
    #[default]
    Briquette,
    /// What transformers and vLLM load as it stands: coded Linear layers, nothing sparse.
    CompressedTensors,
    /// Plain safetensors in the original types.
    Dense,
    /// burn's burnpack in the original types.
    Burnpack,
}

/// The row of each format, in the order of the variants.
const ROWS: [(OutputFormat, &FormatRow); 4] = [
    (OutputFormat::Briquette, &briquette::ROW),
    (OutputFormat::CompressedTensors, &compressed_tensors::ROW),
    (OutputFormat::Dense, &dense::ROW),
    (OutputFormat::Burnpack, &burnpack::ROW),
];

impl OutputFormat {
    /// Every format, by the name it has in recipes and on the command line.
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

    /// The format's name.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The format of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }

    /// The name of a weight file: `model.briquette.safetensors`.
    pub fn file_name(self, shard: usize, n_shards: usize) -> String {
        let extension = self.row().extension;
        match n_shards {
            1 => format!("model.{extension}"),
            _ => format!("model-{:05}-of-{n_shards:05}.{extension}", shard + 1),
        }
    }

    /// How its weight files begin.
    pub fn container(self) -> Container {
        self.row().container
    }

    /// Whether a file may be split: burnpack has no index.
    pub fn shards(self) -> bool {
        self.row().shards != Shards::One
    }

    /// Whether other programs look for an index where there are shards.
    pub fn has_index(self) -> bool {
        self.row().shards == Shards::Indexed
    }

    /// Whether tensors may be kept sparse.
    pub fn holds_sparse(self) -> bool {
        self.row().is_sparse
    }

    /// Whether tied tensors are kept once; else each is there by its own name, as other programs look for it.
    pub fn keeps_ties_once(self) -> bool {
        self.row().ties
    }

    /// The codes it holds; none where it holds floats only, which are then those that codes stand for.
    pub fn held_codes(self) -> Option<&'static CodeSupport> {
        self.row().codes.as_ref()
    }

    /// Whether it is for transformers to load, whose config tells of the codes: what transformers is not known to load is refused, and
    /// the codes mean what transformers makes of them.
    pub fn is_for_transformers(self) -> bool {
        self.row().is_for_transformers
    }

    /// The tensors of a file that stand for `tensor` in this coding, of which `n_kept` elements are kept; codes for a
    /// run time that leaves activations as they are may be laid out in another way.
    ///
    /// # Errors
    /// Config where this format cannot hold the coding.
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
    fn the_rows_are_in_the_order_of_the_variants_by_the_names_that_manifests_have() {
        for (index, (format, row)) in ROWS.iter().enumerate() {
            assert_eq!(*format as usize, index, "{format:?}");
            assert_eq!(serde_json::to_value(format).unwrap(), row.name);
            assert_eq!((format.name(), OutputFormat::named(row.name)), (row.name, Some(*format)));
        }
        assert_eq!(OutputFormat::named("none"), None);
    }
}
