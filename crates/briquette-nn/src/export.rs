//! Writes a module to an output directory, with its effective weights.

use crate::NameMap;
use crate::module_source::ModuleSource;
use briquette_core::{Error, Result};
use briquette_formats::draft::check_name;
use briquette_formats::{Checkpoint, Draft, companions, manifest, model_config, sums};
use briquette_writer::{self as flow, RunOptions, Workers, WriteJob};
use burn::module::Module;
use burn::tensor::Device;
use std::path::{Path, PathBuf};

/// A writer of modules to output directories of format `briquette`, like those of the command line program.
///
/// It stores the effective weights, with masks and codes as such, in dense or sparse storage, whichever is
/// smaller.
#[derive(Debug, Clone)]
pub struct Export {
    directory: PathBuf,
    names: NameMap,
    replace: bool,
    original: Option<PathBuf>,
    files: Vec<(PathBuf, Vec<u8>)>,
}

/// Size of a written output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// Number of tensors in the model.
    pub n_tensors: usize,
    /// Size of the weight file in bytes.
    pub n_bytes: u64,
}

impl Export {
    /// Creates an export to this directory, with PyTorch's names and layouts.
    pub fn to(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self { directory, names: NameMap::torch(), replace: false, original: None, files: Vec::new() }
    }

    /// Sets the name map. Use the map that loaded the module to write the model's original names and layouts.
    #[must_use]
    pub fn names(mut self, names: NameMap) -> Self {
        self.names = names;
        self
    }

    /// Copies the small files (config, tokenizer and others) of the original model.
    #[must_use]
    pub fn like(mut self, model: impl Into<PathBuf>) -> Self {
        self.original = Some(model.into());
        self
    }

    /// Replaces an existing output.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.replace = true;
        self
    }

    /// Adds a small file of the model, such as its configuration or tokenizer.
    ///
    /// `name` may contain directories. [`write`](Self::write) refuses names outside the output directory and
    /// names that the output uses.
    #[must_use]
    pub fn file(mut self, name: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), bytes.into()));
        self
    }

    /// Writes the module, reads it back and verifies it; the directory appears only if everything succeeds.
    ///
    /// Memory holds a few tensors at a time, as many as there are threads. Tied weights are written once.
    ///
    /// # Errors
    /// - Refused: the output exists
    /// - Refused: a pruned or quantized weight is not finite
    /// - Refused: masks or scales do not belong to the attached rules
    /// - Config: two parameters or two files have one name, or a file lies outside the directory
    /// - Io: a device or file fails
    pub fn write<M: Module>(&self, module: &M) -> Result<Exported> {
        if module.devices().iter().any(Device::is_autodiff) {
            // During training, burn delays the last update of running statistics; `valid` applies it.
            drop(module.valid());
        }
        self.check_files()?;
        let original = self.original.as_ref().map(|path| Checkpoint::open(path)).transpose()?;
        let inputs: Vec<&Path> = self.original.iter().map(PathBuf::as_path).collect();
        let draft = Draft::create(&self.directory, &inputs, self.replace)?;
        let source = ModuleSource::new(module, &self.names)?;
        let mut plan = source.plan(self.names.weight_layout())?;
        let n_tensors = plan.tensors.len();
        let written = flow::write(WriteJob {
            plan: &mut plan,
            source: &source,
            draft: &draft,
            // The stored layout takes precedence over the name map when the directory is loaded.
            recipe: serde_json::json!({ "model": { "layout": self.names.weight_layout().name() }, "stage": [] }),
            producer: concat!("briquette-nn ", env!("CARGO_PKG_VERSION")),
            workers: &Workers::new(&RunOptions::default())?,
            small_files: &|_, _| self.write_small_files(&draft, original.as_ref()),
            kept: &|_, _| Vec::new(),
            is_over: &mut |_| {},
        })?;
        let n_bytes = written.layout.n_bytes();
        drop(written);
        draft.publish()?;
        Ok(Exported { n_tensors, n_bytes })
    }

    /// Refuses small files outside the directory and duplicate file names.
    fn check_files(&self) -> Result<()> {
        for (place, (name, _)) in self.files.iter().enumerate() {
            check_name(name)?;
            let is_ours = [manifest::FILE_NAME, sums::FILE_NAME].iter().any(|ours| name == Path::new(ours))
                || is_at_top(name) && name.to_string_lossy().contains(".safetensors");
            if is_ours || self.files[..place].iter().any(|(other, _)| other == name) {
                let message = "the output already has a file of this name; give another name to Export::file";
                return Err(Error::config(message).at(name.display()));
            }
        }
        Ok(())
    }

    fn write_small_files(&self, draft: &Draft, original: Option<&Checkpoint>) -> Result<()> {
        original.map_or(Ok(()), |original| copy_companions(draft, original))?;
        self.files.iter().try_for_each(|(name, bytes)| draft.write_file(name, bytes))
    }
}

/// Returns whether a file lies in the output directory itself, where the weight files are.
fn is_at_top(name: &Path) -> bool {
    name.parent().is_none_or(|parent| parent.as_os_str().is_empty())
}

/// Copies the small files of the original model and removes outdated quantization entries of config.json.
fn copy_companions(draft: &Draft, original: &Checkpoint) -> Result<()> {
    companions::copy_into(draft, original, &|| Ok(()))?;
    let config = model_config::with_quantization(model_config::read(original)?, None, &original.directory())?;
    config.map_or(Ok(()), |config| draft.write_file(Path::new(model_config::FILE_NAME), &config))
}
