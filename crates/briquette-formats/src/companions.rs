//! The small files that belong to a model: config, tokenizer, and their like.

use crate::limits;
use briquette_core::{Error, Result};
use std::path::{Path, PathBuf};

/// How deep below the model's directory files are still taken along.
const MAX_DEPTH: usize = 3;
/// What weight files are called; they never come along.
const WEIGHT_EXTENSIONS: [&str; 14] =
    ["safetensors", "bin", "pt", "pth", "ckpt", "bpk", "gguf", "h5", "msgpack", "onnx", "ot", "tflite", "npz", "mpk"];
/// What we write ourselves.
const OUR_OWN: [&str; 7] = [
    "briquette.json",
    "SHA256SUMS",
    "report.json",
    "report.html",
    "distill.json",
    "metrics.jsonl",
    "model.safetensors.index.json",
];

/// Relative paths of the files that come along from a model's directory, in order.
///
/// Hidden files, weight files in any format, indices, our own files and anything above 128 MiB stay behind.
///
/// # Errors
/// Io where the directory cannot be read.
pub fn companions_of(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(directory, Path::new(""), MAX_DEPTH, &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(root: &Path, below: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    let directory = root.join(below);
    let entries = std::fs::read_dir(&directory).map_err(|source| Error::io("cannot list", &directory, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| Error::io("cannot list", &directory, source))?;
        let relative = below.join(entry.file_name());
        let name = entry.file_name().to_string_lossy().into_owned();
        // The cache of the hub is made of links to files; links to directories could lead round in circles.
        let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if metadata.is_dir() && depth > 1 && !is_link && !name.starts_with('.') {
            collect(root, &relative, depth - 1, found)?;
        } else if metadata.is_file() && metadata.len() <= limits::MAX_COMPANION_BYTES && comes_along(&name) {
            found.push(relative);
        }
    }
    Ok(())
}

fn comes_along(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str()).unwrap_or("");
    let is_weight = WEIGHT_EXTENSIONS.iter().any(|weight| extension.eq_ignore_ascii_case(weight));
    !(is_weight || name.starts_with('.') || name.ends_with(".index.json") || OUR_OWN.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_come_along_and_weights_never() {
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
        let found: Vec<_> = found.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(found, ["1_Pooling/config.json", "chat_template.jinja", "config.json", "vocab.txt"]);
    }
}
