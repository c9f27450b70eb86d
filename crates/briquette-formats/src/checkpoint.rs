//! Opening a model, whatever it is made of.

use crate::index::{Index, parent_of};
use crate::plain::PlainFiles;
use crate::sniff::{self, Kind};
use crate::stored::{StoredDir, StoredTensor};
use crate::tensor::{TensorInfo, TensorSource};
use crate::{InputFile, Manifest, Profile, companions, manifest};
use briquette_core::{Coding, Error, OutputAxis, Result, Storage};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a model turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// safetensors, one file or shards.
    Safetensors,
    /// A PyTorch archive, or shards of them.
    PyTorch,
    /// burn's burnpack.
    Burnpack,
    /// A directory that Briquette wrote.
    Briquette(Profile),
    /// compressed-tensors written by another program.
    CompressedTensors,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Safetensors => f.write_str("safetensors"),
            Self::PyTorch => f.write_str("PyTorch"),
            Self::Burnpack => f.write_str("burnpack"),
            Self::Briquette(profile) => write!(f, "briquette ({})", profile.name()),
            Self::CompressedTensors => f.write_str("compressed-tensors"),
        }
    }
}

/// What has been done to a model already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressed {
    /// Nothing that its format shows.
    No,
    /// Some tensors are kept sparse.
    Pruned,
    /// Some tensors are codes.
    Quantized,
}

/// Where a checkpoint's tensors come from.
enum Source {
    Plain(PlainFiles),
    Stored(StoredDir),
}

/// An open model: its tensors by name, read lazily, and the small files beside it.
pub struct Checkpoint {
    path: PathBuf,
    format: Format,
    source: Source,
    companions: Vec<PathBuf>,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint").field("path", &self.path).field("format", &self.format).finish_non_exhaustive()
    }
}

impl Checkpoint {
    /// Opens a file, an index or a directory. Only headers are read.
    ///
    /// # Errors
    /// Input where there is no model or it is damaged, Config where a directory holds several, Io where it cannot be
    /// read.
    pub fn open(path: &Path) -> Result<Self> {
        let is_directory = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_dir());
        if !is_directory {
            return Self::open_file(path, Vec::new());
        }
        let companions = companions::companions_of(path)?;
        if path.join(manifest::FILE_NAME).exists() {
            return Self::open_ours(path, companions);
        }
        Self::open_file(&weights_in(path)?, companions).map(|found| Self { path: path.to_path_buf(), ..found })
    }

    fn open_file(path: &Path, companions: Vec<PathBuf>) -> Result<Self> {
        let mut plain = PlainFiles::default();
        let kind = if path.extension().is_some_and(|extension| extension == "json") {
            open_shards(path, &mut plain)?
        } else {
            let file = InputFile::open(path)?;
            let kind = sniff::kind_of(&file)?;
            plain.push(file, kind)?;
            kind
        };
        if plain.tensors().is_empty() {
            return Err(Error::input("there is no tensor in it; nothing to do").at(path.display()));
        }
        let format = match kind {
            Kind::Safetensors => Format::Safetensors,
            Kind::PyTorch => Format::PyTorch,
            Kind::Burnpack => Format::Burnpack,
        };
        Ok(Self { path: path.to_path_buf(), format, source: Source::Plain(plain), companions })
    }

    fn open_ours(path: &Path, companions: Vec<PathBuf>) -> Result<Self> {
        let manifest = Manifest::read(&InputFile::open(&path.join(manifest::FILE_NAME))?)?;
        let format = Format::Briquette(manifest.profile);
        let source = Source::Stored(open_stored(path, manifest)?);
        Ok(Self { path: path.to_path_buf(), format, source, companions })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it turned out to be.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The directory that companions are relative to.
    pub fn directory(&self) -> PathBuf {
        if self.path.is_dir() { self.path.clone() } else { parent_of(&self.path) }
    }

    /// The small files beside a model that is a directory.
    pub fn companions(&self) -> &[PathBuf] {
        &self.companions
    }

    /// The tensors kept in parts, where the model is already compressed.
    pub fn stored(&self) -> Option<&StoredDir> {
        match &self.source {
            Source::Stored(stored) => Some(stored),
            Source::Plain(_) => None,
        }
    }

    /// The manifest, where Briquette wrote the model.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.stored().and_then(|stored| stored.manifest.as_ref())
    }

    /// Free-form strings of the header.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        match &self.source {
            Source::Plain(plain) => plain.metadata.clone(),
            Source::Stored(_) => BTreeMap::new(),
        }
    }

    /// What has been done to it already.
    pub fn compressed(&self) -> Compressed {
        let tensors = self.stored().map(|stored| stored.tensors.as_slice()).unwrap_or_default();
        if tensors.iter().any(|tensor| tensor.coding.codes.is_some()) {
            Compressed::Quantized
        } else if tensors.iter().any(|tensor| tensor.coding.storage == Storage::Bitmask) {
            Compressed::Pruned
        } else {
            Compressed::No
        }
    }

    /// Bytes of the files that hold weights.
    pub fn weight_bytes(&self) -> u64 {
        self.files().iter().map(|file| file.len()).sum()
    }

    /// Refuses where an input file is no longer the one that was opened.
    ///
    /// # Errors
    /// Input, naming the file.
    pub fn check_unchanged(&self) -> Result<()> {
        self.files().into_iter().try_for_each(InputFile::check_unchanged)
    }

    fn as_source(&self) -> &dyn TensorSource {
        match &self.source {
            Source::Plain(plain) => plain,
            Source::Stored(stored) => stored,
        }
    }
}

impl TensorSource for Checkpoint {
    fn tensors(&self) -> &[TensorInfo] {
        self.as_source().tensors()
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        self.as_source().read(index, start, out)
    }

    fn reads_ranges(&self, index: usize) -> bool {
        self.as_source().reads_ranges(index)
    }

    fn files(&self) -> Vec<&InputFile> {
        self.as_source().files()
    }
}

/// The one weight file or index of a directory.
fn weights_in(directory: &Path) -> Result<PathBuf> {
    for name in
        ["model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin"]
    {
        let path = directory.join(name);
        if path.exists() {
            return Ok(path);
        }
    }
    let entries = std::fs::read_dir(directory).map_err(|source| Error::io("cannot list", directory, source))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let extension = |path: &PathBuf| path.extension().and_then(|extension| extension.to_str()).map(str::to_lowercase);
    let is_weight = |path: &PathBuf| {
        extension(path)
            .is_some_and(|extension| ["safetensors", "pt", "pth", "bin", "bpk"].contains(&extension.as_str()))
    };
    let mut found: Vec<PathBuf> = paths.filter(is_weight).collect();
    found.sort();
    match found.as_slice() {
        [path] => Ok(path.clone()),
        [] => {
            let message =
                "no weights here, expected a .safetensors, .pt, .pth, .bin or .bpk file or an index; check the path";
            Err(Error::input(message).at(directory.display()))
        }
        [first, ..] => {
            let message =
                format!("{} weight files and no index; name one of them, for example {}", found.len(), first.display());
            Err(Error::config(message).at(directory.display()))
        }
    }
}

fn open_shards(path: &Path, plain: &mut PlainFiles) -> Result<Kind> {
    let index = Index::read(path)?;
    let directory = parent_of(path);
    let mut kind = Kind::Safetensors;
    for name in index.files() {
        let shard = directory.join(name);
        if !shard.exists() {
            return Err(Error::input("the index names this shard, and it is missing; download it").at(shard.display()));
        }
        let file = InputFile::open(&shard)?;
        kind = sniff::kind_of(&file)?;
        let names = plain.push(file, kind)?;
        index.check_file(name, &names, &shard)?;
    }
    plain.check_unique()?;
    Ok(kind)
}

/// Opens the weight files that a manifest names, and finds every part it promises.
fn open_stored(directory: &Path, manifest: Manifest) -> Result<StoredDir> {
    let mut plain = PlainFiles::default();
    let names: std::collections::BTreeSet<&str> = manifest.tensors.values().map(|entry| entry.file.as_str()).collect();
    for name in names {
        let path = directory.join(name);
        if !crate::index::stays_inside(name) {
            return Err(
                Error::input(format!("the manifest names {name:?}, expected a file beside it")).at(directory.display())
            );
        }
        let file = InputFile::open(&path)?;
        let kind = sniff::kind_of(&file)?;
        plain.push(file, kind)?;
    }
    plain.check_unique()?;
    let found = plain.by_name();
    let mut tensors = Vec::new();
    for (name, entry) in &manifest.tensors {
        tensors.push(stored_tensor(name, entry, manifest.profile, &found)?);
    }
    let infos = tensors.iter().map(|tensor| tensor.info.clone()).collect();
    Ok(StoredDir { files: plain.into_files(), tensors, infos, manifest: Some(manifest) })
}

fn stored_tensor(
    name: &str,
    entry: &manifest::Entry,
    profile: Profile,
    found: &BTreeMap<&str, (&TensorInfo, usize, u64)>,
) -> Result<StoredTensor> {
    let info = TensorInfo::checked(name.into(), entry.dtype, entry.shape.0.clone())?;
    let bad = |what: &str| Error::input(format!("{what}; the manifest is damaged")).at(format_args!("tensor {name:?}"));
    let axis = if info.shape.rank() == 2 { entry.output_axis } else { OutputAxis::First };
    let rows = briquette_core::Rows::of(&info.shape, axis);
    if entry.coding != Coding::DENSE && !info.dtype.is_weight() {
        return Err(bad("a tensor that is no weight cannot be coded"));
    }
    if let Some(codes) = entry.coding.codes {
        codes.grid().ok_or_else(|| bad("there is no grid of that many bits"))?;
        codes.grouping.per_row(rows.n_cols).ok_or_else(|| bad("the group size does not divide the row"))?;
    }
    let n_kept = entry.n_kept.unwrap_or(info.n_elements());
    if n_kept > info.n_elements() {
        return Err(bad("more elements are kept than there are"));
    }
    let stored_as = TensorInfo { name: entry.tied_to.clone().unwrap_or_else(|| name.into()), ..info.clone() };
    let mut tensor = StoredTensor { info, axis, coding: entry.coding, n_kept, parts: BTreeMap::new() };
    tensor.locate(profile.file_parts(&stored_as, axis, entry.coding, n_kept)?, found)?;
    Ok(tensor)
}
