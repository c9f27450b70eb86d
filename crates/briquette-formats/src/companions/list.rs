//! Lists the small files that are copied with a model.

use crate::ModelDir;
use crate::contained::leads_inside;
use crate::{limits, presence};
use briquette_core::{Error, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// How many levels of directories are searched for files to copy.
const MAX_DEPTH: usize = 3;
/// The settings of images, which a run of the model reads.
const IMAGE_SETTINGS: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];
/// Extensions of weight files, which are never copied.
const WEIGHT_EXTENSIONS: [&str; 14] =
    ["safetensors", "bin", "pt", "pth", "ckpt", "bpk", "gguf", "h5", "msgpack", "onnx", "ot", "tflite", "npz", "mpk"];
/// Files that Briquette writes anew for each output.
const OUR_OWN: [&str; 12] = [
    "briquette.json",
    "briquette-activations.json",
    "briquette-onnx.json",
    "SHA256SUMS",
    "report.json",
    "report.html",
    "distill.json",
    "factorize.json",
    "shrink.json",
    "fold.json",
    "metrics.jsonl",
    "model.safetensors.index.json",
];

/// The small files of a model's directory, as sorted relative paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Companions {
    /// Files that are copied to outputs.
    pub taken: Vec<PathBuf>,
    /// Files that are not copied though they are neither weights nor Briquette's own, with the reason.
    pub left: Vec<(PathBuf, &'static str)>,
}

/// Lists the files to copy from a model's directory.
///
/// Hidden files, weight files of any format, indices and Briquette's own files are ignored. The weights of small
/// modules that `modules.json` of sentence-transformers lists beside the network are copied. Three kinds of
/// files are reported as not copied: files above 128 MiB, links that lead out of the directory, and names that
/// a line of `SHA256SUMS` cannot hold. A model from a stranger could have a link to a private key.
///
/// # Errors
/// - Input: a link points to a missing file.
/// - Io: the directory or one of its files cannot be read.
pub fn companions_of(directory: &Path) -> Result<Companions> {
    let mut found = Companions::default();
    let modules = module_folders(directory)?;
    collect(directory, Path::new(""), MAX_DEPTH, &modules, &mut found)?;
    found.taken.sort();
    found.left.sort();
    Ok(found)
}

/// Lists the files of a directory that belong to a weight file of it that was given by its own path: how images are prepared.
///
/// # Errors
/// See [`companions_of`].
pub fn companions_beside(directory: &Path) -> Result<Companions> {
    let mut found = Companions::default();
    for relative in IMAGE_SETTINGS.map(Path::new) {
        let path = directory.join(relative);
        let Some(metadata) = presence::metadata(&path)?.filter(std::fs::Metadata::is_file) else { continue };
        match reason_to_leave(directory, relative, &metadata, path.is_symlink())? {
            Some(reason) => found.left.push((relative.to_path_buf(), reason)),
            None => found.taken.push(relative.to_path_buf()),
        }
    }
    Ok(found)
}

/// Returns the reason why a file is not copied, if there is one.
fn reason_to_leave(
    root: &Path,
    relative: &Path,
    metadata: &std::fs::Metadata,
    is_link: bool,
) -> Result<Option<&'static str>> {
    let name = relative.to_str();
    Ok(if metadata.len() > limits::MAX_COMPANION_BYTES {
        Some("it is larger than 128 MiB")
    } else if name.is_none_or(|name| name.contains('\\') || name.contains(char::is_control)) {
        Some("its name has bytes that SHA256SUMS cannot list")
    } else if is_link && !leads_inside(root, &root.join(relative))? {
        Some("it is a link out of the model's directory")
    } else {
        None
    })
}

/// Returns the folders of modules with weights of their own, such as `2_Dense`.
///
/// A damaged `modules.json` lists none: commands that run the model refuse it.
fn module_folders(directory: &Path) -> Result<Vec<PathBuf>> {
    let bytes = ModelDir::open(directory)?.read(Path::new("modules.json"), limits::MAX_JSON_BYTES)?;
    let modules: Vec<Module> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let others = modules.into_iter().filter(|module| !module.kind.ends_with(".Transformer"));
    Ok(others.map(|module| PathBuf::from(module.path)).filter(|path| path != Path::new("")).collect())
}

/// An entry of `modules.json`.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

fn collect(root: &Path, below: &Path, depth: usize, modules: &[PathBuf], found: &mut Companions) -> Result<()> {
    let directory = root.join(below);
    let entries = std::fs::read_dir(&directory).map_err(|source| Error::io("cannot list", &directory, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| Error::io("cannot list", &directory, source))?;
        let relative = below.join(entry.file_name());
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().map_err(|source| Error::io("cannot access", &entry.path(), source))?;
        let is_link = kind.is_symlink();
        // Weight files may be broken links. Their own reader reports the ones it needs.
        let is_of_module = is_weight(&name) && modules.iter().any(|module| module == below);
        if !(kind.is_dir() || is_of_module || comes_along(&name)) {
            continue;
        }
        // Files in the hub cache are links, so links to files are followed. Links to directories could form
        // cycles.
        let Some(metadata) = presence::metadata(&entry.path())? else { continue };
        if metadata.is_dir() && depth > 1 && !is_link && !name.starts_with('.') {
            collect(root, &relative, depth - 1, modules, found)?;
        } else if metadata.is_file() {
            match reason_to_leave(root, &relative, &metadata, is_link)? {
                Some(reason) => found.left.push((relative, reason)),
                None => found.taken.push(relative),
            }
        }
    }
    Ok(())
}

fn is_weight(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str()).unwrap_or("");
    WEIGHT_EXTENSIONS.iter().any(|weight| extension.eq_ignore_ascii_case(weight))
}

fn comes_along(name: &str) -> bool {
    !(is_weight(name) || name.starts_with('.') || name.ends_with(".index.json") || OUR_OWN.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_are_copied_and_weights_are_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("1_Pooling/.git")).unwrap();
        for name in [
            "config.json",
            "vocab.txt",
            "model.safetensors",
            "pytorch_model.BIN",
            "x.index.json",
            ".hidden",
            "report.json",
            "1_Pooling/config.json",
            "1_Pooling/w.onnx",
            "chat_template.jinja",
        ] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        let found = companions_of(dir.path()).unwrap();
        let names: Vec<_> = found.taken.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(names, ["1_Pooling/config.json", "chat_template.jinja", "config.json", "vocab.txt"]);
        assert_eq!(found.left, []);
    }

    #[test]
    fn weights_of_listed_modules_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["0_Net/model.safetensors", "2_Dense/model.safetensors", "2_Dense/config.json", "3_x/model.safetensors"]
        {
            std::fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        let class = |name: &str| format!("sentence_transformers.models.{name}");
        let list = serde_json::json!([
            { "path": "0_Net", "type": class("Transformer") },
            { "path": "2_Dense", "type": class("Dense") },
            { "path": "../3_x", "type": class("Dense") },
        ]);
        std::fs::write(dir.path().join("modules.json"), list.to_string()).unwrap();
        let found = companions_of(dir.path()).unwrap();
        let names: Vec<_> = found.taken.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(names, ["2_Dense/config.json", "2_Dense/model.safetensors", "modules.json"]);
    }

    #[test]
    fn links_out_of_the_directory_are_not_copied_except_in_the_hub_cache() {
        let dir = tempfile::tempdir().unwrap();
        let (blobs, snapshot) = (dir.path().join("m/blobs"), dir.path().join("m/snapshots/abc"));
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::create_dir_all(&snapshot).unwrap();
        for (path, link) in [(blobs.join("1"), "config.json"), (dir.path().join("id_rsa"), "notes.txt")] {
            std::fs::write(&path, "x").unwrap();
            std::os::unix::fs::symlink(&path, snapshot.join(link)).unwrap();
        }
        std::os::unix::fs::symlink("config.json", snapshot.join("copy.json")).unwrap();
        std::fs::write(snapshot.join("a\\b.txt"), "x").unwrap();
        std::fs::write(snapshot.join("a\nb.txt"), "x").unwrap();
        let found = companions_of(&snapshot).unwrap();
        assert_eq!(found.taken, [PathBuf::from("config.json"), "copy.json".into()]);
        let left: Vec<_> = found.left.iter().map(|(path, _)| path.to_str().unwrap()).collect();
        assert_eq!(left, ["a\nb.txt", "a\\b.txt", "notes.txt"]);
    }
}
