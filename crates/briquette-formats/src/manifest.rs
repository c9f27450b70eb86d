//! `briquette.json`: what each tensor of an output directory stands for.

use crate::{InputFile, OutputFormat, json, limits};
use briquette_core::{Coding, DType, Error, Hash128, OutputAxis, Result, Shape, Storage};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// The name of the manifest in a directory.
pub use crate::io::model_dir::MANIFEST as FILE_NAME;
/// The newest version of the directory format that this crate reads and writes; older ones stay readable.
pub const VERSION: u32 = 5;
/// The first version whose hashes cover how turned rows lie in a tensor.
const HASHES_LAYOUT: u32 = 5;
/// The version that is written where nothing newer is needed, so that older programs can read the output.
const LOWEST: u32 = 1;

/// What an output directory holds, and how it was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always `briquette`.
    pub format: String,
    /// Version of the directory format.
    pub version: u32,
    /// The program that wrote it.
    pub producer: String,
    /// How the parts are named and laid out.
    pub profile: OutputFormat,
    /// The stages that made it.
    #[serde(deserialize_with = "json::bounded_value")]
    pub recipe: serde_json::Value,
    /// One entry for each tensor of the model.
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
    /// The program that wrote it.
    pub producer: String,
    /// How the parts are named and laid out.
    pub profile: OutputFormat,
    /// The stages that made it.
    pub recipe: serde_json::Value,
}

impl ManifestHead {
    /// The hash that this manifest records for a tensor whose values hash to `by_rows`, row by row.
    ///
    /// Since version 5 it covers how turned rows lie in the tensor; before, it is `by_rows`.
    pub fn hash_of(&self, entry: &ManifestEntry, by_rows: Hash128) -> Hash128 {
        match self.version >= HASHES_LAYOUT {
            true => by_rows.with_layout(&entry.shape, entry.output_axis),
            false => by_rows,
        }
    }

    /// Writes a manifest with these tensors, which come in the order of their names: the same bytes for the same content.
    ///
    /// # Errors
    /// An error of the writer; invalid data if it cannot be written as JSON.
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

/// An object whose entries are made as they are written.
struct WrittenEntries<E>(E);

impl<E: Iterator<Item = (String, ManifestEntry)> + Clone> Serialize for WrittenEntries<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.clone())
    }
}

/// What one tensor of the model is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestEntry {
    /// Its original type.
    pub dtype: DType,
    /// Its original shape.
    pub shape: Shape,
    /// Which axis counts its outputs.
    #[serde(default, skip_serializing_if = "is_first")]
    pub output_axis: OutputAxis,
    /// How it is kept.
    pub coding: Coding,
    /// Elements that are kept, where storage is sparse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_kept: Option<usize>,
    /// What the run time is to do with the activations it meets, where it is coded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<String>,
    /// The file its parts are in.
    pub file: String,
    /// Hash of its fake_quantized values: f32 where it has codes, its own type elsewhere. See [`ManifestHead::hash_of`].
    pub hash: Hash128,
    /// The tensor whose parts stand for this one too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tied_to: Option<String>,
}

fn is_first(axis: &OutputAxis) -> bool {
    *axis == OutputAxis::First
}

/// The version that holds these tensors: 2 for stacks of matrices, 4 for entropy-coded codes, 5 for rows that do not lie in a tensor's own
/// order. Version 3 was the first with outputs on the second axis.
pub fn version_of(tensors: impl Iterator<Item = (Storage, OutputAxis)>) -> u32 {
    let version = |of: (Storage, OutputAxis)| match of {
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
    /// Input where it is not one, or of a newer version.
    pub fn read(file: &InputFile) -> Result<Self> {
        Self::parse(&file.read_all(limits::MAX_OWN_BYTES)?, file.path())
    }

    /// As [`read`](Self::read), of what is in memory already and came from `path`.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format: String,
            version: u32,
        }
        // Of a million tensors there are hundreds of megabytes, so what can be read is not gone through for its version first.
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
