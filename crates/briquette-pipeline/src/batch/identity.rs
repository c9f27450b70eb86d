//! What a job read and made, as hashes: two runs with the same of each are the same run.

use crate::context::Stop;
use crate::recipe::Recipe;
use briquette_core::{Error, Hash128, Result, TensorHasher};
use briquette_formats::file::Identity;
use briquette_formats::{Checkpoint, InputFile, Manifest, TensorSource, manifest, sums};
use std::path::Path;

const BLOCK: usize = 4 << 20;

/// Hashes the content of models, each file once however many jobs read it.
#[derive(Debug, Default)]
pub(super) struct InputHasher {
    known: Vec<(Identity, Hash128)>,
}

impl InputHasher {
    /// `xxh3` over each file's name and content hash: weights, the small files that come along, and our manifest.
    /// Where the model lies and when it was written do not count.
    ///
    /// # Errors
    /// Those of reading; Interrupted.
    pub(super) fn hash(&mut self, checkpoint: &Checkpoint, stop: &Stop) -> Result<Hash128> {
        let directory = checkpoint.directory();
        let mut lines = String::new();
        for file in checkpoint.files() {
            let name = file.path().strip_prefix(&directory).unwrap_or(file.path());
            lines += &format!("{}  {}\n", self.hash_file(file, stop)?, name.display());
        }
        let ours = checkpoint.manifest().map(|_| Path::new(manifest::FILE_NAME));
        for name in checkpoint.companions().iter().map(|name| name.as_path()).chain(ours) {
            let hash = self.hash_file(&InputFile::open(&directory.join(name))?, stop)?;
            lines += &format!("{hash}  {}\n", name.display());
        }
        Ok(Hash128::of_block(lines.as_bytes()))
    }

    fn hash_file(&mut self, file: &InputFile, stop: &Stop) -> Result<Hash128> {
        if let Some((_, hash)) = self.known.iter().find(|(identity, _)| *identity == file.identity()) {
            return Ok(*hash);
        }
        let mut hasher = TensorHasher::default();
        let mut buffer = vec![0; BLOCK.min(file.len() as usize)];
        let mut offset = 0;
        while offset < file.len() {
            stop.check()?;
            let n = (file.len() - offset).min(BLOCK as u64) as usize;
            file.read_at(offset, &mut buffer[..n])?;
            hasher.push(Hash128::of_block(&buffer[..n]));
            offset += n as u64;
        }
        self.known.push((file.identity(), hasher.finish()));
        Ok(hasher.finish())
    }
}

/// SHA-256 of the recipe as the manifest keeps it (no paths), with the program's version.
///
/// # Errors
/// Bug, where it cannot be written as JSON.
pub(super) fn of_recipe(recipe: &Recipe) -> Result<String> {
    let program = concat!("briquette ", env!("CARGO_PKG_VERSION"));
    Ok(sums::sha256_of_bytes(format!("{program}\n{}", recipe.to_manifest()?).as_bytes()))
}

/// SHA-256 of an output's `SHA256SUMS`, which covers every file that two runs have in common.
///
/// # Errors
/// Input where it is not there, Io where it cannot be read.
pub(super) fn of_output(directory: &Path) -> Result<String> {
    sums::sha256_of(&InputFile::open(&directory.join(sums::FILE_NAME))?)
}

/// SHA-256 of an output's report, which no sum covers.
///
/// # Errors
/// As [`of_output`].
pub(super) fn of_report(directory: &Path) -> Result<String> {
    sums::sha256_of(&InputFile::open(&directory.join("report.json"))?)
}

/// Whether what lies at a recipe's output was made by this very recipe, as its manifest says.
pub(super) fn is_made_by(recipe: &Recipe) -> Result<bool> {
    let found = InputFile::open(&recipe.output.join(manifest::FILE_NAME));
    let found = found.and_then(|file| Manifest::read(&file));
    let Ok(found) = found else { return Ok(false) };
    Ok(found.recipe == recipe.to_manifest()?)
}

/// A bad journal or output is a reason to redo a job; only a stop is not.
pub(super) fn is_stop(error: &Error) -> bool {
    matches!(error.kind, briquette_core::ErrorKind::Interrupted(_))
}
