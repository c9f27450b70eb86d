//! `briquette.json`: the coding and hash of each tensor of an output directory.

use crate::activations::STATIC;
use crate::{InputFile, OutputFormat, json, limits};
use briquette_core::encoded::ScaleType;
use briquette_core::{Coding, DType, Error, Hash128, OutputAxis, Result, Shape, Storage};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// The name of the manifest in a directory.
pub use crate::io::model_dir::MANIFEST as FILE_NAME;
/// The newest version of the directory format. Older versions stay readable.
pub const VERSION: u32 = 9;
/// The first version whose hashes include the layout of transposed rows.
const HASHES_LAYOUT: u32 = 5;
/// The first version with scales of one byte.
const LOG_SCALES: u32 = 6;
/// The first version with scales of columns.
const COLUMN_SCALES: u32 = 7;
/// The first version with activations on fixed grids.
const STATIC_ACTIVATIONS: u32 = 8;
/// The first version with blocks of two tables.
const TRELLIS: u32 = 9;
/// The version written if no newer one is needed, so that older programs can read the output.
const LOWEST: u32 = 1;

/// The contents of an output directory, and how it was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always `briquette`.
    pub format: String,
    /// Version of the directory format.
    pub version: u32,
    /// The program that wrote the directory.
    pub producer: String,
    /// The output format: names and layout of the parts.
    pub profile: OutputFormat,
    /// The stages that made the output.
    #[serde(deserialize_with = "json::bounded_value")]
    pub recipe: serde_json::Value,
    /// One entry per tensor of the model.
    #[serde(deserialize_with = "json::unique")]
    pub tensors: BTreeMap<String, ManifestEntry>,
}

/// A manifest without its tensors, of which there may be millions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ManifestHead {
    /// Always `briquette`.
    pub format: String,
    /// Version of the directory format.
    pub version: u32,
    /// The program that wrote the directory.
    pub producer: String,
    /// The output format: names and layout of the parts.
    pub profile: OutputFormat,
    /// The stages that made the output.
    pub recipe: serde_json::Value,
}

impl ManifestHead {
    /// Returns the recorded hash of a tensor, from the hash `by_rows` of its values row by row.
    ///
    /// Since version 5 it includes the layout of transposed rows. Before, it equals `by_rows`.
    pub fn hash_of(&self, entry: &ManifestEntry, by_rows: Hash128) -> Hash128 {
        match self.version >= HASHES_LAYOUT {
            true => by_rows.with_layout(&entry.shape, entry.output_axis),
            false => by_rows,
        }
    }

    /// Writes a manifest with these tensors, which must be sorted by name. Equal contents give equal bytes.
    ///
    /// # Errors
    /// Errors of the writer. `InvalidData` if a value cannot be written as JSON.
    pub fn write<E>(&self, tensors: E, out: &mut dyn Write) -> io::Result<()>
    where
        E: Iterator<Item = (String, ManifestEntry)> + Clone,
    {
        #[derive(Serialize)]
        struct WrittenManifest<'a, T: Serialize> {
            #[serde(flatten)]
            head: &'a ManifestHead,
            tensors: T,
        }
        serde_json::to_writer_pretty(&mut *out, &WrittenManifest { head: self, tensors: WrittenEntries(tensors) })?;
        out.write_all(b"\n")
    }
}

/// An object whose entries are created while they are written.
struct WrittenEntries<E>(E);

impl<E: Iterator<Item = (String, ManifestEntry)> + Clone> Serialize for WrittenEntries<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.clone())
    }
}

/// One tensor of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestEntry {
    /// The original type.
    pub dtype: DType,
    /// The original shape.
    pub shape: Shape,
    /// The axis of the layer's outputs.
    #[serde(default, skip_serializing_if = "is_first")]
    pub output_axis: OutputAxis,
    /// How the tensor is stored.
    pub coding: Coding,
    /// Number of kept elements, if the storage is sparse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_kept: Option<usize>,
    /// How the runtime quantizes activations, if the tensor has codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<String>,
    /// The file of the tensor's parts.
    pub file: String,
    /// Hash of the dequantized values: f32 for codes, else the tensor's type. See [`ManifestHead::hash_of`].
    pub hash: Hash128,
    /// The tensor that shares its parts with this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tied_to: Option<String>,
}

fn is_first(axis: &OutputAxis) -> bool {
    *axis == OutputAxis::First
}

/// Returns the lowest version that supports these tensors.
///
/// Version 2 added stacks of matrices, version 3 outputs on the second axis, version 4 entropy-coded codes.
/// Version 5 is needed for rows in another order than the tensor's own, version 6 for scales of one byte,
/// version 7 for scales of columns, version 8 for activations on fixed grids, and version 9 for codes on a trellis.
pub fn version_of<'a>(tensors: impl Iterator<Item = (Coding, OutputAxis, Option<&'a str>)>) -> u32 {
    let version = |(coding, axis, activations): (Coding, OutputAxis, Option<&str>)| match (coding.storage, axis) {
        (Storage::Entropy { has_trellis: true, .. }, _) => TRELLIS,
        _ if activations == Some(STATIC) => STATIC_ACTIVATIONS,
        _ if coding.codes.is_some_and(|codes| codes.has_columns) => COLUMN_SCALES,
        _ if coding.codes.is_some_and(|codes| codes.scale == ScaleType::Log8) => LOG_SCALES,
        (_, OutputAxis::Last | OutputAxis::Second) => HASHES_LAYOUT,
        (Storage::Entropy { .. }, _) => 4,
        (_, OutputAxis::Stacked) => 2,
        (_, OutputAxis::First) => LOWEST,
    };
    tensors.map(version).max().unwrap_or(LOWEST)
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// Input: the file is not a manifest, or has a newer version.
    pub fn read(file: &InputFile) -> Result<Self> {
        Self::parse(&file.read_all(limits::MAX_OWN_BYTES)?, file.path())
    }

    /// Parses a manifest that was read from `path`.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format: String,
            version: u32,
        }
        // A manifest of a million tensors has hundreds of megabytes, so parse it once if possible, without a
        // separate version pass.
        if let Ok(manifest) = serde_json::from_slice::<Self>(bytes)
            && manifest.format == "briquette"
            && manifest.version <= VERSION
        {
            return Ok(manifest);
        }
        let version: Version = json::parse(bytes, "the manifest", path)?;
        if version.format != "briquette" || version.version > VERSION {
            let message = format!(
                "found format {:?} version {}, expected briquette up to version {VERSION}; use a newer briquette",
                version.format, version.version
            );
            return Err(Error::input(message).at(path.display()));
        }
        json::parse(bytes, "the manifest", path)
    }
}
