//! What a job read and made, as hashes: two runs with the same of each are the same run.

use crate::context::Stop;
use crate::recipe::{Recipe, raw};
use briquette_core::{Error, Hash128, Result, TensorHasher};
use briquette_formats::file::Identity;
use briquette_formats::{Checkpoint, InputFile, Manifest, TensorSource, manifest, sums};
use std::path::{Path, PathBuf};

const BLOCK: usize = 4 << 20;

/// Hashes the content of models, each file once however many jobs read it.
#[derive(Debug, Default)]
pub(crate) struct InputHasher {
    known: Vec<(Identity, Hash128)>,
}

impl InputHasher {
    /// `xxh3` over each file's name and content hash: weights, the small files that come along, our manifest, and the
    /// data of an evaluate stage. Where they lie and when they were written do not count.
    ///
    /// # Errors
    /// Those of reading; Interrupted.
    pub(super) fn hash(&mut self, recipe: &Recipe, checkpoint: &Checkpoint, stop: &Stop) -> Result<Hash128> {
        let mut lines = self.lines_of_model(checkpoint, stop)?;
        let data = recipe.evaluate.iter().flat_map(|asked| [&asked.data.eval, &asked.data.labels]);
        for path in data.flatten() {
            lines += &self.lines_of_data(path, stop)?;
        }
        Ok(Hash128::of_block(lines.as_bytes()))
    }

    /// As [`hash`](Self::hash), of a model alone.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn hash_model(&mut self, checkpoint: &Checkpoint, stop: &Stop) -> Result<Hash128> {
        Ok(Hash128::of_block(self.lines_of_model(checkpoint, stop)?.as_bytes()))
    }

    /// As [`hash`](Self::hash), of a file or folder of data alone.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn hash_data(&mut self, path: &Path, stop: &Stop) -> Result<Hash128> {
        Ok(Hash128::of_block(self.lines_of_data(path, stop)?.as_bytes()))
    }

    fn lines_of_model(&mut self, checkpoint: &Checkpoint, stop: &Stop) -> Result<String> {
        let directory = checkpoint.directory();
        let mut lines = String::new();
        for file in checkpoint.files() {
            let name = file.path().strip_prefix(&directory).unwrap_or(file.path());
            lines += &format!("{}  {}\n", self.hash_file(file, stop)?, name.display());
        }
        let ours = checkpoint.manifest().map(|_| Path::new(manifest::FILE_NAME));
        for name in checkpoint.companions().iter().map(|name| name.as_path()).chain(ours) {
            let hash = self.hash_file(&checkpoint.model_dir().file(name)?, stop)?;
            lines += &format!("{hash}  {}\n", name.display());
        }
        Ok(lines)
    }

    /// A file by its content; a folder by the names and lengths of what is in it, as it may hold millions of images.
    fn lines_of_data(&mut self, path: &Path, stop: &Stop) -> Result<String> {
        if !path.is_dir() {
            return Ok(format!("{}  data\n", self.hash_file(&InputFile::open(path)?, stop)?));
        }
        let line = |name: PathBuf| {
            let length = std::fs::metadata(path.join(&name)).map_or(0, |metadata| metadata.len());
            format!("{length}  data/{}\n", name.display())
        };
        Ok(sums::files_below(path)?.into_iter().map(line).collect())
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

/// SHA-256 of all that a recipe asks for, data, gate and evaluation too, with the program's version. Paths do not count:
/// what lies there is hashed with the input.
///
/// # Errors
/// Bug, where it cannot be written as JSON.
pub(super) fn of_recipe(recipe: &Recipe) -> Result<String> {
    let program = concat!("briquette ", env!("CARGO_PKG_VERSION"));
    let asked = raw::RawRecipe {
        model: raw::RawModel { path: None, ..recipe.asked.model.clone() },
        output: raw::RawOutput { path: None, ..recipe.asked.output.clone() },
        data: recipe.asked.data.clone().map(|data| raw::RawData { eval: None, labels: None, ..data }),
        ..recipe.asked.clone()
    };
    let asked = serde_json::to_value(asked).map_err(|error| Error::bug(format!("the recipe: {error}")))?;
    Ok(sums::sha256_of_bytes(format!("{program}\n{asked}").as_bytes()))
}

/// SHA-256 of an output's `SHA256SUMS`, which covers every file that two runs have in common.
///
/// # Errors
/// Input where it is not there, Io where it cannot be read.
pub(super) fn of_output(directory: &Path) -> Result<String> {
    sums::sha256_of(&InputFile::open(&directory.join(sums::FILE_NAME))?, false, &|| Ok(()))
}

/// SHA-256 of an output's report, which no sum covers.
///
/// # Errors
/// As [`of_output`].
pub(super) fn of_report(directory: &Path) -> Result<String> {
    sums::sha256_of(&InputFile::open(&directory.join("report.json"))?, false, &|| Ok(()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::parse;

    fn recipe(directory: &Path, text: &str) -> Recipe {
        let paths =
            "[model]\npath = \"m\"\n[output]\npath = \"o\"\n[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n";
        Recipe::from_raw(parse(&format!("{paths}{text}"), "r.toml").unwrap(), directory).unwrap()
    }

    #[test]
    fn all_that_is_asked_counts_and_where_it_lies_does_not() {
        let evaluate = "[[stage]]\nkind = \"evaluate\"\n[data]\neval = \"d\"\n";
        let texts = [
            String::new(),
            evaluate.to_string(),
            format!("{evaluate}max_length = 7\n"),
            format!("{evaluate}[gate]\nmin = {{ cosine = 0.9 }}\n"),
            format!("{evaluate}[gate]\nmin = {{ cosine = 0.8 }}\n"),
            format!("{evaluate}[memory]\nbatch_size = 3\n"),
        ];
        let of = |directory: &str, text: &String| of_recipe(&recipe(Path::new(directory), text)).unwrap();
        let found: std::collections::BTreeSet<String> = texts.iter().map(|text| of("here", text)).collect();
        assert_eq!(found.len(), texts.len());
        assert!(texts.iter().all(|text| of("here", text) == of("there", text)));
    }

    #[test]
    fn other_data_is_another_input() {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/digits");
        let checkpoint = Checkpoint::open(&fixture).unwrap();
        let recipe = recipe(dir.path(), "[[stage]]\nkind = \"evaluate\"\n[data]\neval = \"d\"\n");
        let hash = || InputHasher::default().hash(&recipe, &checkpoint, &Stop::default());
        assert!(hash().is_err(), "there is no data");
        std::fs::write(dir.path().join("d"), "one").unwrap();
        let one = hash().unwrap();
        std::fs::write(dir.path().join("d"), "two").unwrap();
        let two = hash().unwrap();
        std::fs::remove_file(dir.path().join("d")).unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        let empty = hash().unwrap();
        std::fs::write(dir.path().join("d/image.png"), "x").unwrap();
        let mut all = vec![one, two, empty, hash().unwrap()];
        all.dedup();
        assert_eq!(all.len(), 4);
    }
}
