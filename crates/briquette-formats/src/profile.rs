//! The shapes an output directory comes in, and what each calls the parts of a tensor.

use crate::TensorInfo;
use briquette_core::encoded::Part;
use briquette_core::{Coding, DType, Error, Grouping, OutputAxis, Result, Rows, Shape};
use serde::{Deserialize, Serialize};

/// The format of an output directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
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

/// A tensor of a file that stands, alone or with others, for a tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// Which part of the coding it is; `None` for one that only repeats what the manifest says.
    pub part: Option<Part>,
    /// Its name, type and shape in the file.
    pub info: TensorInfo,
    /// Its bytes, where they are known without the weights.
    pub constant: Option<Vec<u8>>,
}

impl Profile {
    /// Every profile, by the name it has in recipes and on the command line.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("briquette", Self::Briquette),
        ("compressed-tensors", Self::CompressedTensors),
        ("dense", Self::Dense),
        ("burnpack", Self::Burnpack),
    ];

    /// The profile's name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, profile)| *profile == self).map_or("", |(name, _)| name)
    }

    /// The stem and extension of weight files: `model.briquette.safetensors`.
    pub fn file_name(self, shard: usize, n_shards: usize) -> String {
        let extension = match self {
            Self::Briquette => "briquette.safetensors",
            Self::CompressedTensors | Self::Dense => "safetensors",
            Self::Burnpack => "bpk",
        };
        match n_shards {
            1 => format!("model.{extension}"),
            _ => format!("model-{:05}-of-{n_shards:05}.{extension}", shard + 1),
        }
    }

    /// Whether a file may be split: burnpack has no index.
    pub fn shards(self) -> bool {
        self != Self::Burnpack
    }

    /// The tensors of a file that stand for `tensor` in this coding, of which `n_kept` elements are kept.
    ///
    /// # Errors
    /// Config where this profile cannot hold the coding.
    pub fn file_parts(
        self,
        tensor: &TensorInfo,
        axis: OutputAxis,
        coding: Coding,
        n_kept: usize,
    ) -> Result<Vec<FilePart>> {
        if self == Self::CompressedTensors && coding.codes.is_some() {
            return compressed_tensors_parts(tensor, coding);
        }
        let rows = Rows::of(&tensor.shape, axis);
        let specs = coding.parts(tensor.dtype, rows.n_rows, rows.n_cols, n_kept);
        let part = |spec: briquette_core::encoded::PartSpec| {
            let shape = if spec.part == Part::Weight { tensor.shape.clone() } else { Shape(spec.shape) };
            let name = format!("{}{}", tensor.name, spec.part.suffix());
            FilePart { part: Some(spec.part), info: TensorInfo { name, dtype: spec.dtype, shape }, constant: None }
        };
        Ok(specs.into_iter().map(part).collect())
    }
}

/// `weight` I8 or `weight_packed` I32, `weight_scale`, and `weight_shape` beside packed ones.
fn compressed_tensors_parts(tensor: &TensorInfo, coding: Coding) -> Result<Vec<FilePart>> {
    let unsupported = |what: &str| {
        Error::config(format!("compressed-tensors cannot hold {what}")).at(format_args!("tensor {:?}", tensor.name))
    };
    let Some(codes) = coding.codes else { return Err(unsupported("a tensor without codes here")) };
    let &[n_rows, n_cols] = tensor.shape.0.as_slice() else {
        return Err(unsupported("codes of anything but a matrix"));
    };
    let part = |part, name: &str, dtype, shape: Vec<usize>| FilePart {
        part,
        info: TensorInfo { name: format!("{}{name}", tensor.name), dtype, shape: Shape(shape) },
        constant: None,
    };
    let scale_shape = match codes.grouping {
        Grouping::Tensor => vec![1],
        grouping => grouping.scale_shape(n_rows, n_cols).to_vec(),
    };
    let scale = part(Some(Part::Scale), "_scale", DType::F32, scale_shape);
    match codes.bits {
        8 => Ok(vec![part(Some(Part::Codes), "", DType::I8, vec![n_rows, n_cols]), scale]),
        4 if n_cols.is_multiple_of(8) => {
            let packed = part(Some(Part::Codes), "_packed", DType::I32, vec![n_rows, n_cols / 8]);
            let mut shape = part(None, "_shape", DType::I64, vec![2]);
            shape.constant = Some([n_rows, n_cols].iter().flat_map(|&n| (n as i64).to_le_bytes()).collect());
            Ok(vec![packed, scale, shape])
        }
        4 => Err(unsupported("int4 rows that are no multiple of 8")),
        _ => Err(unsupported("widths other than 4 and 8 bits")),
    }
}
