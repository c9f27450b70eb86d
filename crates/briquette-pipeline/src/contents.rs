//! What lies at the paths of a recipe, as hashes: two runs that read the same of each do the same.

use briquette_core::{Error, Hash128, Result, TensorHasher};
use briquette_formats::file::Identity;
use briquette_formats::{Checkpoint, InputFile, TensorSource, manifest, presence};
use briquette_recipe::Recipe;
use briquette_recipe::paths::{NamedPath, Purpose};
use briquette_writer::context::Stop;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

const BLOCK: usize = 4 << 20;

/// A hash for each key of a recipe that names something to read.
pub(crate) type InputHashes = BTreeMap<String, Hash128>;

/// Hashes the content of models and data, each file once however many jobs read it.
#[derive(Debug, Default)]
pub(crate) struct InputHasher {
    known: HashMap<Identity, Hash128>,
}

impl InputHasher {
    /// Everything that a recipe reads; `model` is its model. Where it lies and when it was written do not count.
    ///
    /// # Errors
    /// Those of reading, naming the key; Interrupted.
    pub(crate) fn of_recipe(&mut self, recipe: &Recipe, model: &Checkpoint, stop: &Stop) -> Result<InputHashes> {
        let hash = |hasher: &mut Self, named: &NamedPath| match named.purpose {
            Purpose::Model if named.key == "model.path" => hasher.of_model(model, stop),
            Purpose::Model => hasher.of_model(&Checkpoint::open(&named.path)?, stop),
            _ => hasher.of_data(&named.path, stop),
        };
        let each =
            recipe.read.iter().map(|named| Ok((named.key.clone(), hash(self, named).map_err(|e| at(e, named))?)));
        each.collect()
    }

    /// `xxh3` over each file's name and content hash: weights, the small files that come along, and our manifest.
    fn of_model(&mut self, checkpoint: &Checkpoint, stop: &Stop) -> Result<Hash128> {
        let directory = checkpoint.directory();
        let mut lines = String::new();
        for file in checkpoint.files() {
            let name = file.path().strip_prefix(&directory).unwrap_or(file.path());
            lines += &format!("{}  {}\n", self.of_file(file, stop)?, name.display());
        }
        let ours = checkpoint.manifest().map(|_| Path::new(manifest::FILE_NAME));
        for name in checkpoint.companions().iter().map(|name| name.as_path()).chain(ours) {
            let hash = self.of_file(&checkpoint.model_dir().file(name)?, stop)?;
            lines += &format!("{hash}  {}\n", name.display());
        }
        Ok(Hash128::of_block(lines.as_bytes()))
    }

    /// A file by its content, and by how its name ends, which says how it is read; a folder by the content of what is in it and
    /// in its folders, as images of classes are.
    fn of_data(&mut self, path: &Path, stop: &Stop) -> Result<Hash128> {
        if !presence::is_directory(path)? {
            let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
            let line = format!("{}  data.{ending}\n", self.of_file(&InputFile::open(path)?, stop)?);
            return Ok(Hash128::of_block(line.as_bytes()));
        }
        // There may be millions of images.
        let mut lines = TensorHasher::default();
        for file in files_of_folder(path)? {
            let name = file.strip_prefix(path).unwrap_or(&file).display();
            let line = format!("{}  data/{name}\n", self.of_file(&InputFile::open(&file)?, stop)?);
            lines.push(Hash128::of_block(line.as_bytes()));
        }
        Ok(lines.finish())
    }

    fn of_file(&mut self, file: &InputFile, stop: &Stop) -> Result<Hash128> {
        if let Some(hash) = self.known.get(&file.identity()) {
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
        self.known.insert(file.identity(), hasher.finish());
        Ok(hasher.finish())
    }
}

/// The recipe's model is named by its path alone, as everywhere.
fn at(error: Error, named: &NamedPath) -> Error {
    if named.key == "model.path" { error } else { error.at(&named.key) }
}

/// The files of a folder and of the folders in it, links followed, in order. What begins with a dot is no data.
fn files_of_folder(path: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in entries_of(path)? {
        let below = if presence::is_directory(&entry)? { entries_of(&entry)? } else { vec![entry] };
        for path in below {
            if presence::is_file(&path)? {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn entries_of(path: &Path) -> Result<Vec<PathBuf>> {
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    Ok(presence::entries(path)?.into_iter().filter(|path| !is_hidden(path)).collect())
}

/// The keys whose contents differ, or that only one of both has.
pub(crate) fn changed<'a>(before: &'a InputHashes, now: &'a InputHashes) -> Vec<&'a str> {
    let keys: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    keys.into_iter().filter(|key| before.get(*key) != now.get(*key)).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_recipe::parse;

    fn digits() -> Checkpoint {
        Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/digits")).unwrap()
    }

    #[test]
    fn other_data_is_another_input() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            "[model]\npath = \"m\"\n[output]\npath = \"o\"\n[data]\neval = \"d\"\n[[stage]]\nkind = \"evaluate\"\n";
        let recipe = Recipe::from_raw(parse(text, "r.toml").unwrap(), dir.path()).unwrap();
        let (model, path) = (digits(), dir.path().join("d"));
        let hash = || InputHasher::default().of_recipe(&recipe, &model, &Stop::default());
        assert!(hash().unwrap_err().to_string().starts_with("data.eval: "), "there is no data");
        let mut all = Vec::new();
        for text in ["one", "two"] {
            std::fs::write(&path, text).unwrap();
            all.push(hash().unwrap());
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir_all(path.join("3")).unwrap();
        all.push(hash().unwrap());
        std::os::unix::fs::symlink(&path, path.join("circle")).unwrap();
        for image in ["x", "y"] {
            std::fs::write(path.join("3/image.png"), image).unwrap();
            all.push(hash().unwrap());
        }
        std::fs::rename(path.join("3"), path.join("4")).unwrap();
        all.push(hash().unwrap());
        let found: std::collections::BTreeSet<Hash128> = all.iter().map(|contents| contents["data.eval"]).collect();
        assert_eq!((all.len(), found.len()), (6, 6), "the content of each image counts, and its class");
        assert!(all.iter().all(|contents| contents["model.path"] == all[0]["model.path"]));
        assert_eq!(changed(&all[0], &all[1]), ["data.eval"]);
    }
}
