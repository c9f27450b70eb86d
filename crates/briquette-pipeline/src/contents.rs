//! Hashes of the contents at the paths of a recipe. Runs with equal hashes give the same result.

use crate::onnx_network;
use briquette_core::{Error, Hash128, Result, TensorHasher};
use briquette_formats::file::Identity;
use briquette_formats::onnx::NETWORK_FILE;
use briquette_formats::{Checkpoint, InputFile, TensorSource, activation_grids, manifest, presence};
use briquette_recipe::Recipe;
use briquette_recipe::paths::{NamedPath, Purpose};
use briquette_writer::context::Stop;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

const BLOCK: usize = 4 << 20;
/// The files of an output that a run of it reads, beside weights and companions.
const OURS: [&str; 3] = [manifest::FILE_NAME, activation_grids::FILE_NAME, NETWORK_FILE];

/// A hash for each recipe key that names an input.
pub(crate) type InputHashes = BTreeMap<String, Hash128>;

/// Hashes the contents of models and data, each file once for any number of jobs.
#[derive(Debug, Default)]
pub(crate) struct InputHasher {
    known: HashMap<Identity, Hash128>,
}

impl InputHasher {
    /// Returns the hashes of all inputs of a recipe; `model` is its model. Paths and modification times do not
    /// count.
    ///
    /// # Errors
    /// - Input and Io: an input cannot be read; the message has the key.
    /// - Interrupted: a stop was requested.
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

    /// Returns the `xxh3` hash of each file's name and content hash: of all files that a run of the model reads.
    fn of_model(&mut self, checkpoint: &Checkpoint, stop: &Stop) -> Result<Hash128> {
        let directory = checkpoint.directory();
        let mut lines = String::new();
        for file in checkpoint.files() {
            let name = file.path().strip_prefix(&directory).unwrap_or(file.path());
            lines += &format!("{}  {}\n", self.of_file(file, stop)?, name.display());
        }
        let ours = OURS.iter().map(Path::new).filter(|_| checkpoint.manifest().is_some());
        let names = checkpoint.companions().iter().map(PathBuf::as_path).chain(ours);
        let directory = checkpoint.model_dir();
        for name in names.chain(onnx_network::settings_beside(checkpoint)) {
            if presence::exists(&directory.path().join(name))? {
                let hash = self.of_file(&directory.file(name)?, stop)?;
                lines += &format!("{hash}  {}\n", name.display());
            }
        }
        Ok(Hash128::of_block(lines.as_bytes()))
    }

    /// Returns the hash of data.
    ///
    /// A file counts by its content and extension, which selects its format. JSON lines also count by the contents of the sounds that
    /// they name. A folder counts by the contents of its files and of its subfolders' files, like a data set of images.
    fn of_data(&mut self, path: &Path, stop: &Stop) -> Result<Hash128> {
        if !presence::is_directory(path)? {
            let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
            let line = format!("{}  data.{ending}\n", self.of_file(&InputFile::open(path)?, stop)?);
            let mut lines = TensorHasher::default();
            lines.push(Hash128::of_block(line.as_bytes()));
            for sound in sounds_of(path)? {
                lines.push(self.of_file(&InputFile::open(&sound)?, stop)?);
            }
            return Ok(lines.finish());
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

/// Returns the files that lines of JSON name as `audio`. Lines of another form are reported when the data is read.
fn sounds_of(path: &Path) -> Result<Vec<PathBuf>> {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    if !["jsonl", "ndjson"].contains(&ending.as_str()) {
        return Ok(Vec::new());
    }
    let failed = |source| Error::io("cannot read", path, source);
    let lines = BufReader::new(File::open(path).map_err(failed)?).split(b'\n');
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for line in lines {
        let record: Option<SoundRecord> = serde_json::from_slice(&line.map_err(failed)?).ok();
        found.extend(record.map(|record| folder.join(record.audio)).filter(|sound| sound.is_file()));
    }
    Ok(found)
}

/// A line that names a sound.
#[derive(Deserialize)]
struct SoundRecord {
    audio: PathBuf,
}

/// Adds the key to an error. The recipe's model is identified by its path alone, as in other messages.
fn at(error: Error, named: &NamedPath) -> Error {
    if named.key == "model.path" { error } else { error.at(&named.key) }
}

/// Lists the files of a folder and its subfolders, following links, in order, without hidden files.
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

/// Returns the keys whose contents differ, or that only one of both has.
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
    fn changed_data_has_another_hash() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            "[model]\npath = \"m\"\n[output]\npath = \"o\"\n[data]\neval = \"d\"\n[[stage]]\nkind = \"evaluate\"\n";
        let recipe = Recipe::from_raw(parse(text, "r.toml").unwrap(), dir.path()).unwrap();
        let (model, path) = (digits(), dir.path().join("d"));
        let hash = || InputHasher::default().of_recipe(&recipe, &model, &Stop::default());
        assert!(hash().unwrap_err().to_string().starts_with("data.eval: "), "the data is missing");
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
        assert_eq!((all.len(), found.len()), (6, 6), "the hash covers each image and its class");
        assert!(all.iter().all(|contents| contents["model.path"] == all[0]["model.path"]));
        assert_eq!(changed(&all[0], &all[1]), ["data.eval"]);
    }

    #[test]
    fn sounds_count_with_the_lines_that_name_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        let hash = || InputHasher::default().of_data(&path, &Stop::default()).unwrap();
        std::fs::write(&path, "{\"audio\": \"a.wav\", \"target\": \"x\"}\nnot JSON\n{\"source\": \"y\"}\n").unwrap();
        let mut found = std::collections::BTreeSet::from([hash()]);
        for sound in ["one", "two"] {
            std::fs::write(dir.path().join("a.wav"), sound).unwrap();
            found.insert(hash());
        }
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn settings_beside_weights_count() {
        let dir = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let weights = dir.path().join("m.safetensors");
        std::fs::copy(fixtures.join("digits/model.safetensors"), &weights).unwrap();
        let hash = || InputHasher::default().of_model(&Checkpoint::open(&weights).unwrap(), &Stop::default()).unwrap();
        let mut found = std::collections::BTreeSet::from([hash()]);
        for settings in ["{}", "{ }"] {
            std::fs::write(dir.path().join("preprocessor_config.json"), settings).unwrap();
            found.insert(hash());
        }
        assert_eq!(found.len(), 3);
    }
}
