//! Writes a module to an output directory, with the weights it computes with.

use crate::NameMap;
use crate::module_source::ModuleSource;
use briquette_core::{Error, Result};
use briquette_formats::draft::check_name;
use briquette_formats::{Checkpoint, Draft, companions, manifest, model_config, sums};
use briquette_writer::{self as flow, RunOptions, Workers, WriteJob};
use burn::module::Module;
use burn::tensor::Device;
use std::path::{Path, PathBuf};

/// Writes a module as an output directory of format `briquette`, the same that the command line makes: the weights that the module
/// computes with, with masks and codes stored as such, in the smaller of dense and sparse storage.
#[derive(Debug, Clone)]
pub struct Export {
    directory: PathBuf,
    names: NameMap,
    replace: bool,
    original: Option<PathBuf>,
    files: Vec<(PathBuf, Vec<u8>)>,
}

/// The size of a written output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// Tensors of the model.
    pub n_tensors: usize,
    /// Bytes of the weight file.
    pub n_bytes: u64,
}

impl Export {
    /// An export to this directory, under PyTorch's names and layouts.
    pub fn to(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self { directory, names: NameMap::torch(), replace: false, original: None, files: Vec::new() }
    }

    /// Uses other names and layouts: those that the module was loaded by, to write a model in its original form.
    #[must_use]
    pub fn names(mut self, names: NameMap) -> Self {
        self.names = names;
        self
    }

    /// Copies the small files (config, tokenizer and the like) of the model that the module was loaded from.
    #[must_use]
    pub fn like(mut self, model: impl Into<PathBuf>) -> Self {
        self.original = Some(model.into());
        self
    }

    /// Replaces an older output, where there is one.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.replace = true;
        self
    }

    /// Adds a small file that belongs to the module, such as its configuration or its tokenizer. `name` may contain directories; one that
    /// leads out of the output's directory, or that the output itself has, is an error of [`write`](Self::write).
    #[must_use]
    pub fn file(mut self, name: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), bytes.into()));
        self
    }

    /// Writes the module and reads it back: the directory is there whole and verified, or not at all. A few tensors are in
    /// memory at a time, as many as there are threads; weights that are equal under two names are written once.
    ///
    /// # Errors
    /// Refused where the output exists, a weight that is pruned or rounded is not finite, or masks and scales are of other rules than those
    /// attached; Config where two parameters or two files would have one name, or a file would lie elsewhere; Io for devices and files.
    pub fn write<M: Module>(&self, module: &M) -> Result<Exported> {
        if module.devices().iter().any(Device::is_autodiff) {
            // While a module trains, burn holds the last update of running statistics back; `valid` applies it.
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
            // Which way matrices lie: who loads the directory believes it, whatever names are given.
            recipe: serde_json::json!({ "model": { "layout": self.names.weight_layout().name() }, "stage": [] }),
            producer: concat!("briquette-nn ", env!("CARGO_PKG_VERSION")),
            workers: &Workers::new(&RunOptions::default())?,
            small_files: &|_, _| self.write_small_files(&draft, original.as_ref()),
            is_over: &mut |_| {},
        })?;
        let n_bytes = written.layout.n_bytes();
        drop(written);
        draft.publish()?;
        Ok(Exported { n_tensors, n_bytes })
    }

    /// Refuses small files that would lie outside of the directory, and those with the name of another file of the output.
    fn check_files(&self) -> Result<()> {
        for (place, (name, _)) in self.files.iter().enumerate() {
            check_name(name)?;
            let is_ours = [manifest::FILE_NAME, sums::FILE_NAME].iter().any(|ours| name == Path::new(ours))
                || name.to_string_lossy().contains(".safetensors");
            if is_ours || self.files[..place].iter().any(|(other, _)| other == name) {
                let message = "the output has a file of this name already; give another name to Export::file";
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

/// Copies the small files of the original model; config.json then no longer mentions codes that the output does not have.
fn copy_companions(draft: &Draft, original: &Checkpoint) -> Result<()> {
    companions::copy_into(draft, original, &|| Ok(()))?;
    let config = model_config::with_quantization(model_config::read(original)?, None, &original.directory())?;
    config.map_or(Ok(()), |config| draft.write_file(Path::new(model_config::FILE_NAME), &config))
}
