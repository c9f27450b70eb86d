//! Opens a model in any supported format.

mod choice;
mod onnx_codes;

use crate::companions::{Companions, companions_beside, companions_of};
use crate::onnx::{MAX_NETWORK_BYTES, Model, NETWORK_FILE, coded_weights, has_codes};
use crate::plain::PlainFiles;
use crate::quantization::{self, QuantMethod};
use crate::sniff::FileKind;
use crate::stored::StoredDir;
use crate::tensor::{TensorInfo, TensorSource};
use crate::{
    ActivationRounding, Choice, InputFile, LeftOut, ManifestHead, ModelDir, OutputFormat, WeightLayout,
    compressed_tensors, hub_id, manifest, ours, presence, weights,
};
use briquette_core::{Remedy, Result, Storage};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The format of an opened model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputFormat {
    /// safetensors, one file or shards.
    Safetensors,
    /// A PyTorch archive, or shards of them.
    PyTorch,
    /// burn's burnpack.
    Burnpack,
    /// ONNX, with or without external data.
    Onnx,
    /// A directory written by Briquette.
    Briquette(OutputFormat),
    /// A compressed-tensors checkpoint written by another program.
    CompressedTensors,
}

impl std::fmt::Display for InputFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Safetensors => f.write_str("safetensors"),
            Self::PyTorch => f.write_str("PyTorch"),
            Self::Burnpack => f.write_str("burnpack"),
            Self::Onnx => f.write_str("ONNX"),
            Self::Briquette(profile) if *profile == OutputFormat::default() => f.write_str("briquette"),
            Self::Briquette(profile) => write!(f, "briquette ({})", profile.name()),
            Self::CompressedTensors => f.write_str("compressed-tensors"),
        }
    }
}

impl InputFormat {
    /// Returns whether transformers decodes the codes of this format to the same values.
    pub fn is_for_transformers(self) -> bool {
        match self {
            Self::CompressedTensors => true,
            Self::Briquette(profile) => profile.is_for_transformers(),
            Self::Safetensors | Self::PyTorch | Self::Burnpack | Self::Onnx => false,
        }
    }
}

/// How a model is already compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressed {
    /// No compression that its format shows.
    No,
    /// Some tensors are stored as sparse.
    Pruned,
    /// Some tensors are stored as integer codes.
    Quantized,
}

/// The source of a checkpoint's tensors.
enum Source {
    Plain(PlainFiles),
    Stored(StoredDir),
}

/// An open model: its tensors by name, read lazily, and the small files beside it.
pub struct Checkpoint {
    path: PathBuf,
    directory: ModelDir,
    format: InputFormat,
    source: Source,
    companions: Companions,
    quantized_by: Option<String>,
    layout: Option<WeightLayout>,
    /// The ONNX network of an output in another format.
    network: Option<InputFile>,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint").field("path", &self.path).field("format", &self.format).finish_non_exhaustive()
    }
}

impl Checkpoint {
    /// Opens a file, an index or a directory. Reads only headers.
    ///
    /// # Errors
    /// - Input: there is no model, or it is damaged.
    /// - Config: the directory has several models.
    /// - Io: a file cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, &Choice::default())
    }

    /// Opens a model with a choice of its entry, tensor names and layout.
    ///
    /// A directory written by Briquette has one entry.
    ///
    /// # Errors
    /// See [`open`](Self::open). Config: no entry of the file has the chosen key or prefix.
    pub fn open_as(path: &Path, choice: &Choice) -> Result<Self> {
        let found = Self::open_any(path, choice)?;
        Ok(Self { layout: found.layout_by(choice), ..found })
    }

    /// Opens a model without determining its layout.
    fn open_any(path: &Path, choice: &Choice) -> Result<Self> {
        if !presence::is_directory(path)? {
            let file = InputFile::open(path).map_err(|error| match hub_id::of(path) {
                Some(id) if error.remedy == Some(Remedy::CheckPath) => error.with_remedy(Remedy::Download(id)),
                _ => error,
            })?;
            let found = Self::open_file(file, choice, ModelDir::around(path), Companions::default())?;
            // Outputs of an ONNX file get its settings with its network.
            let is_onnx = found.format == InputFormat::Onnx;
            let companions = if is_onnx { Companions::default() } else { companions_beside(found.directory.path())? };
            return Ok(Self { companions, ..found });
        }
        let (companions, directory) = (companions_of(path)?, ModelDir::open(path)?);
        if directory.has(manifest::FILE_NAME)? {
            let source = ours::open(&directory)?;
            let profile = source.manifest.as_ref().map(|manifest| manifest.profile).unwrap_or_default();
            let format = InputFormat::Briquette(profile);
            let path = path.to_path_buf();
            let (source, network) = (Source::Stored(source), network_in(&directory)?);
            return Ok(Self { path, directory, format, source, companions, quantized_by: None, layout: None, network });
        }
        let quantization = quantization::read_config(&directory)?;
        let weights = weights::weights_in(path)?;
        let file = directory.file(weights.strip_prefix(path).unwrap_or(&weights))?;
        let found = Self::open_file(file, choice, directory, companions)?;
        Self { path: path.to_path_buf(), ..found }.with_quantization(quantization)
    }

    fn open_file(file: InputFile, choice: &Choice, directory: ModelDir, companions: Companions) -> Result<Self> {
        let path = file.path().to_path_buf();
        let (plain, kind) = weights::open(file, choice)?;
        let format = match kind {
            FileKind::Safetensors => InputFormat::Safetensors,
            FileKind::PyTorch => InputFormat::PyTorch,
            FileKind::Burnpack => InputFormat::Burnpack,
            FileKind::Onnx => InputFormat::Onnx,
        };
        let quantized_by = quantization::shown_by(plain.tensors()).map(str::to_string);
        let (source, layout, network) = (Source::Plain(plain), None, None);
        Ok(Self { path, directory, format, source, companions, quantized_by, layout, network })
    }

    /// Opens a quantized ONNX model again with its weights as codes; `None` for other models.
    ///
    /// The weights are the int8 tensors that `DequantizeLinear` nodes decode: see [`coded_weights`].
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn with_codes_of_nodes(&self) -> Result<Option<Self>> {
        let Some(file) = self.onnx_file().filter(|_| self.format == InputFormat::Onnx) else { return Ok(None) };
        let coded = coded_weights(&Model::read(file)?.graph, file)?;
        if coded.is_empty() {
            return Ok(None);
        }
        let mut found = Self::open(&self.path)?;
        if let Source::Plain(plain) = found.source {
            found.source = Source::Stored(onnx_codes::stored(plain, &coded)?);
        }
        Ok(Some(found))
    }

    /// Returns whether the nodes of an ONNX model decode or multiply codes of weights.
    ///
    /// # Errors
    /// - Input: the file is damaged.
    /// - Io: the file cannot be read.
    pub fn has_codes_of_nodes(&self) -> Result<bool> {
        match self.onnx_file().filter(|_| self.format == InputFormat::Onnx) {
            Some(file) => Ok(has_codes(&Model::read(file)?)),
            None => Ok(false),
        }
    }

    /// Decodes the tensors as `quantization_config` describes them.
    fn with_quantization(mut self, found: Option<QuantMethod>) -> Result<Self> {
        match (found, self.source) {
            (Some(QuantMethod::CompressedTensors(config)), Source::Plain(plain)) => {
                let stored = compressed_tensors::open(plain, &config).map_err(|error| error.at(self.path.display()))?;
                self.source = Source::Stored(stored);
                (self.format, self.quantized_by) = (InputFormat::CompressedTensors, None);
            }
            (Some(QuantMethod::Other(name)), source) => (self.source, self.quantized_by) = (source, Some(name)),
            (_, source) => self.source = source,
        }
        Ok(self)
    }

    /// Returns the path that the model was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the format of the files.
    pub fn format(&self) -> InputFormat {
        self.format
    }

    /// Returns the directory that companions are relative to.
    pub fn directory(&self) -> PathBuf {
        self.directory.path().to_path_buf()
    }

    /// Returns the model's directory, for reading small files.
    pub fn model_dir(&self) -> &ModelDir {
        &self.directory
    }

    /// Returns the small files of a model directory.
    pub fn companions(&self) -> &[PathBuf] {
        &self.companions.taken
    }

    /// Returns the files of the directory that are not copied to outputs, with the reason.
    pub fn left_behind(&self) -> &[(PathBuf, &'static str)] {
        &self.companions.left
    }

    /// Returns the ONNX file of a model in that format.
    pub fn onnx_file(&self) -> Option<&InputFile> {
        let is_onnx = matches!(self.format, InputFormat::Onnx | InputFormat::Briquette(OutputFormat::Onnx));
        // The files with external data follow the model.
        self.files().into_iter().next().filter(|_| is_onnx)
    }

    /// Returns the file with the network of a model that no family needs to know: an ONNX model, or the copy of one without weights.
    pub fn network_file(&self) -> Option<&InputFile> {
        self.onnx_file().or(self.network.as_ref())
    }

    /// Returns the tensors in stored form, if the model is already compressed.
    pub fn stored(&self) -> Option<&StoredDir> {
        match &self.source {
            Source::Stored(stored) => Some(stored),
            Source::Plain(_) => None,
        }
    }

    /// Returns the names of weights whose layers have static int8 activations; none for an ONNX model, whose network rounds them.
    pub fn static_weights(&self) -> impl Iterator<Item = &str> {
        let stored = self.stored().filter(|_| self.network_file().is_none());
        let tensors = stored.into_iter().flat_map(|stored| &stored.tensors);
        tensors
            .filter(|tensor| tensor.activations == Some(ActivationRounding::Fixed))
            .map(|tensor| tensor.info.name.as_str())
    }

    /// Returns the manifest without its tensors, if Briquette wrote the model.
    pub fn manifest(&self) -> Option<&ManifestHead> {
        self.stored().and_then(|stored| stored.manifest.as_ref())
    }

    /// Returns the free-form strings of the file header.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        match &self.source {
            Source::Plain(plain) => plain.metadata.clone(),
            Source::Stored(_) => BTreeMap::new(),
        }
    }

    /// Returns one string of the file header.
    fn header_string(&self, key: &str) -> Option<&str> {
        match &self.source {
            Source::Plain(plain) => plain.metadata.get(key).map(String::as_str),
            Source::Stored(_) => None,
        }
    }

    /// Returns the layout of the weights of linear layers, if it is known.
    ///
    /// A chosen layout comes first, then the layout in Briquette's manifest or file header. For burnpack, the
    /// default is burn's.
    pub fn layout(&self) -> Option<WeightLayout> {
        self.layout
    }

    /// Returns how the model is already compressed.
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

    /// Returns the quantization method of another program that Briquette cannot decode, such as `gptq`.
    ///
    /// It comes from `config.json` or from the names of the tensors.
    pub fn quantized_by(&self) -> Option<String> {
        self.quantized_by.clone()
    }

    /// Returns the size in bytes of the weight files, or of the tensors if a file holds more than the model.
    pub fn weight_bytes(&self) -> u64 {
        match &self.source {
            Source::Plain(plain) => plain.n_bytes(),
            Source::Stored(_) => self.files().iter().map(|file| file.len()).sum(),
        }
    }

    /// Returns the contents of the files that are not part of the model.
    pub fn left_out(&self) -> &[LeftOut] {
        match &self.source {
            Source::Plain(plain) => plain.left_out(),
            Source::Stored(_) => &[],
        }
    }

    /// Returns the layers that are transposed convolutions according to the classes in a TorchScript file.
    pub fn transposed_layers(&self) -> &[String] {
        match &self.source {
            Source::Plain(plain) => plain.transposed_layers(),
            Source::Stored(_) => &[],
        }
    }

    /// Returns the prefixes removed from the names of the tensors, outermost first.
    pub fn stripped_prefixes(&self) -> &[String] {
        match &self.source {
            Source::Plain(plain) => plain.stripped(),
            Source::Stored(_) => &[],
        }
    }

    /// Checks that the input files did not change and that their contents match their checksums.
    ///
    /// Reading a whole tensor checks its CRC-32 or the hash of its values. This function reads the rest of
    /// tensors that were read only in part.
    ///
    /// # Errors
    /// Input: a file changed, or its contents differ from a checksum. The error names the file.
    pub fn check_unchanged(&self) -> Result<()> {
        self.files().into_iter().try_for_each(InputFile::check_sums)?;
        self.stored().map_or(Ok(()), StoredDir::check_hashes)?;
        self.files().into_iter().try_for_each(InputFile::check_unchanged)
    }

    fn as_source(&self) -> &dyn TensorSource {
        match &self.source {
            Source::Plain(plain) => plain,
            Source::Stored(stored) => stored,
        }
    }
}

/// Opens the ONNX network of an output, and compares it with its checksum.
fn network_in(directory: &ModelDir) -> Result<Option<InputFile>> {
    let name = Path::new(NETWORK_FILE);
    match directory.read(name, MAX_NETWORK_BYTES)? {
        Some(_) => directory.file(name).map(Some),
        None => Ok(None),
    }
}

impl TensorSource for Checkpoint {
    fn below(&self) -> Option<&dyn TensorSource> {
        Some(self.as_source())
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.as_source().tensors()
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        self.as_source().read(index, start, out)
    }
}
