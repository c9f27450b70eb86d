//! Finds and opens the weight files of a model.

use crate::choice::no_keys;
use crate::index::Index;
use crate::io::paths::parent_of;
use crate::plain::PlainFiles;
use crate::sniff::{self, FileKind};
use crate::{Choice, InputFile, TensorSource, contained, hub_cache, manifest, presence};
use briquette_core::{Error, Result};
use std::path::{Path, PathBuf};

/// The `format` string in the headers of Briquette's own format.
const OUR_FORMAT: &str = "briquette";
/// The ending of these files.
const OUR_EXTENSION: &str = ".briquette.safetensors";

/// Reads a weight file, or every shard of an index. Shards are in the directory of the index.
///
/// # Errors
/// - Input: there is no model, or it is damaged.
/// - Config: the chosen key or prefix does not exist.
/// - Io: a file cannot be read.
pub(crate) fn open(file: InputFile, choice: &Choice) -> Result<(PlainFiles, FileKind)> {
    let (path, mut plain) = (file.path().to_path_buf(), PlainFiles::default());
    let kind = if path.extension().is_some_and(|extension| extension == "json") {
        open_shards(&file, &mut plain, choice)?
    } else {
        let kind = sniff::kind_of(&file)?;
        plain.push(file, kind, choice)?;
        kind
    };
    if let Some(key) = choice.key.as_deref().filter(|_| kind != FileKind::PyTorch && !choice.is_for_one_of_two) {
        return Err(no_keys(key).at(path.display()));
    }
    if plain.tensors().is_empty() {
        return Err(Error::input("found no tensor; nothing to do").at(path.display()));
    }
    if plain.metadata.get("format").is_some_and(|format| format == OUR_FORMAT) {
        return Err(without_manifest(&path));
    }
    plain.strip(choice, kind).map_err(|error| error.at(path.display()))?;
    Ok((plain, kind))
}

/// Returns the error for a weight file of Briquette's format that was opened without its manifest.
fn without_manifest(file: &Path) -> Error {
    let directory = parent_of(file);
    let name = manifest::FILE_NAME;
    let what = match directory.join(name).try_exists() {
        Ok(true) => format!("use its directory instead: {}", directory.display()),
        _ => format!("its directory lacks {name}; restore that file, or compress the model again"),
    };
    Error::input(format!("found parts of tensors that cannot be decoded without {name}; {what}")).at(file.display())
}

/// Returns the one weight file or index of a directory.
///
/// # Errors
/// - Input: there is no weight file.
/// - Config: there are several.
/// - Io: the directory cannot be listed.
pub(crate) fn weights_in(directory: &Path) -> Result<PathBuf> {
    for name in
        ["model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin"]
    {
        let path = directory.join(name);
        // A broken link counts too. Its target is missing, and using another file instead would be wrong.
        if presence::has_entry(&path)? {
            return Ok(path);
        }
    }
    let paths = presence::entries(directory)?.into_iter();
    let extension = |path: &PathBuf| path.extension().and_then(|extension| extension.to_str()).map(str::to_lowercase);
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_weight = |path: &PathBuf| {
        !is_hidden(path)
            && extension(path)
                .is_some_and(|extension| ["safetensors", "pt", "pth", "bin", "bpk"].contains(&extension.as_str()))
    };
    let (mut found, others): (Vec<PathBuf>, Vec<PathBuf>) = paths.partition(is_weight);
    let is_index = |path: &&PathBuf| !is_hidden(path) && path.to_string_lossy().ends_with(".index.json");
    if let [index] = others.iter().filter(is_index).collect::<Vec<_>>().as_slice() {
        return Ok((*index).clone());
    }
    if found.is_empty() {
        // An ONNX file beside other weights is an export of them.
        let is_onnx = |path: &PathBuf| !is_hidden(path) && extension(path).is_some_and(|extension| extension == "onnx");
        found = others.into_iter().filter(is_onnx).collect();
    }
    if let Some((shard, n)) = found.iter().find_map(|path| Some((path, n_shards(path)?))) {
        let message = format!(
            "is one of {n} parts of a model, and their index is missing; download the index and the other parts"
        );
        return Err(Error::input(message).at(shard.display()));
    }
    match found.as_slice() {
        [path] => Ok(path.clone()),
        [] => Err(Error::input(hub_cache::no_weights(directory)).at(directory.display())),
        [first, ..] if first.to_string_lossy().ends_with(OUR_EXTENSION) => Err(without_manifest(first)),
        [first, ..] => {
            let message = format!(
                "found {} weight files and no index; choose one of them, for example {}",
                found.len(),
                first.display()
            );
            Err(Error::config(message).at(directory.display()))
        }
    }
}

/// Returns the number of parts of a model that the name of one of several states: 3 for `model-00001-of-00003.safetensors`.
fn n_shards(path: &Path) -> Option<usize> {
    let (start, n) = path.file_stem()?.to_str()?.rsplit_once("-of-")?;
    let (_, number) = start.rsplit_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    n.parse().ok().filter(|n_parts| *n_parts > 1 && is_number(number) && is_number(n))
}

fn open_shards(file: &InputFile, plain: &mut PlainFiles, choice: &Choice) -> Result<FileKind> {
    let index = Index::read(file)?;
    let directory = parent_of(file.path());
    let mut kind = FileKind::Safetensors;
    for name in index.files() {
        let shard = directory.join(name);
        if !presence::exists(&shard)? {
            return Err(Error::input("the index lists this shard, but it is missing; download it").at(shard.display()));
        }
        let file = contained::open(&directory, Path::new(name))?;
        kind = sniff::kind_of(&file)?;
        index.check_file(name, plain.push(file, kind, choice)?, &shard)?;
    }
    plain.check_unique()?;
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::ErrorKind;

    #[test]
    fn hidden_files_are_ignored_and_broken_links_are_not() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["._a.safetensors", "a.safetensors", "pytorch_model.bin.txt"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        assert_eq!(weights_in(dir.path()).unwrap(), dir.path().join("a.safetensors"));
        std::fs::write(dir.path().join("pytorch_model.bin"), "x").unwrap();
        std::os::unix::fs::symlink("gone", dir.path().join("model.safetensors")).unwrap();
        let found = weights_in(dir.path()).unwrap();
        assert_eq!(found, dir.path().join("model.safetensors"));
        assert_eq!(InputFile::open(&found).unwrap_err().kind, ErrorKind::Input);
    }
}
