//! The formats of output directories, and what each calls the parts of a tensor.

use crate::TensorInfo;
use crate::foreign::ForeignLayout;
use briquette_core::encoded::{Codes, Part};
use briquette_core::{Coding, DType, Error, Grouping, OutputAxis, Result, Rows, Shape};
use serde::{Deserialize, Serialize};

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

/// A tensor of a file that stands, alone or with others, for a tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// Which part of the coding it is; `None` for one that only repeats what the manifest says.
    pub part: Option<Part>,
    /// Its name, type and shape in the file.
    pub info: TensorInfo,
    /// Its bytes, where they are known without the weights.
    pub constant: Option<Vec<u8>>,
    /// How its bytes differ from ours, where they do.
    pub layout: Option<ForeignLayout>,
}

impl OutputFormat {
    /// Every format, by the name it has in recipes and on the command line.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("briquette", Self::Briquette),
        ("compressed-tensors", Self::CompressedTensors),
        ("dense", Self::Dense),
        ("burnpack", Self::Burnpack),
    ];

    /// The format's name.
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
        if self == Self::CompressedTensors && coding.codes.is_some() {
            return compressed_tensors_parts(tensor, coding, activations);
        }
        let rows = Rows::of(&tensor.shape, axis);
        let specs = coding.parts(tensor.dtype, rows.n_rows, rows.n_cols, n_kept);
        let part = |spec: briquette_core::encoded::PartSpec| {
            let shape = if spec.part == Part::Weight { tensor.shape.clone() } else { Shape(spec.shape) };
            let name = format!("{}{}", tensor.name, spec.part.suffix());
            let info = TensorInfo { name, dtype: spec.dtype, shape };
            FilePart { part: Some(spec.part), info, constant: None, layout: None }
        };
        Ok(specs.into_iter().map(part).collect())
    }
}

/// `weight` I8 where activations are int8 too, else `weight_packed` I32 and `weight_shape`; and `weight_scale`.
fn compressed_tensors_parts(tensor: &TensorInfo, coding: Coding, activations: Option<&str>) -> Result<Vec<FilePart>> {
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
        layout: None,
    };
    let scale_shape = match codes.grouping {
        Grouping::Tensor => vec![1],
        grouping => grouping.scale_shape(n_rows, n_cols).to_vec(),
    };
    let scale = part(Some(Part::Scale), "_scale", DType::F32, scale_shape);
    match codes.bits {
        8 if is_int_quantized(codes, activations) => {
            Ok(vec![part(Some(Part::Codes), "", DType::I8, vec![n_rows, n_cols]), scale])
        }
        4 | 8 => {
            // An empty tensor may have any number of columns.
            let n_bits = n_cols.checked_mul(codes.bits.into());
            let n_words = n_bits.ok_or_else(|| unsupported("rows of that many columns"))?.div_ceil(32);
            let mut packed = part(Some(Part::Codes), "_packed", DType::I32, vec![n_rows, n_words]);
            packed.layout = Some(ForeignLayout::words(codes.bits, n_cols));
            let mut shape = part(None, "_shape", DType::I64, vec![2]);
            shape.constant = Some([n_rows, n_cols].iter().flat_map(|&n| (n as i64).to_le_bytes()).collect());
            Ok(vec![packed, scale, shape])
        }
        _ => Err(unsupported("widths other than 4 and 8 bits")),
    }
}

/// Whether codes are kept unpacked (`int-quantized`): run times take that for int8 weights with int8 activations only.
pub fn is_int_quantized(codes: Codes, activations: Option<&str>) -> bool {
    codes.bits == 8 && activations.is_some() && !matches!(codes.grouping, Grouping::Group(_))
}
