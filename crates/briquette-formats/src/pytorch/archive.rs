//! Zip archives: `torch.save` since 1.6, and TorchScript programs, of which only the weights are read.

use crate::io::InputFile;
use crate::io::crc::{self, Sum};
use crate::pytorch::opened::{MAX_PICKLE_BYTES, Opened};
use crate::pytorch::pickle::{self, Outside};
use crate::pytorch::stored::{Stored, unpack};
use crate::pytorch::stream::big_endian;
use crate::pytorch::zip::{self, ZipEntry};
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

type Entries = BTreeMap<String, ZipEntry>;

/// Largest ratio of the unpacked size of an entry to the file size. Weights compress less; more is a zip bomb.
const MAX_UNPACKING: u64 = 16;

/// Reads the pickle and locates the storages.
pub(crate) fn open(file: &InputFile) -> Result<Opened> {
    let entries = zip::read_entries(file)?;
    let root = root_of(&entries)?;
    let is_script = entries.keys().any(|name| is_program(name, &root));
    check_byte_order(file, &entries, &root)?;
    let outside = if is_script { Outside::Script } else { Outside::Storages };
    let (pickle, value) = pickle::read(&pickle_bytes(file, &entries, &root)?, outside)?;
    let mut opened = Opened::new(pickle, value, storages(file, &entries, &root)?);
    opened.place = format!("{root}data/");
    opened.program_bytes = is_script.then(|| {
        let packed = entries.iter().filter(|(name, _)| is_program(name, &root)).map(|(_, entry)| entry.n_packed);
        packed.fold(0, u64::saturating_add)
    });
    opened.sums = sums_of(&entries);
    Ok(opened)
}

/// Returns the CRC-32 of each uncompressed entry. `torch.save` writes 0 if CRCs are disabled; these are not
/// checked.
fn sums_of(entries: &Entries) -> Vec<Sum> {
    let stored = entries.iter().filter(|(_, entry)| entry.is_stored && entry.crc != 0 && entry.n_bytes > 0);
    let sum = |(name, entry): (&String, &ZipEntry)| {
        Sum::new(format!("its entry {name:?}"), entry.start..entry.start + entry.n_bytes, entry.crc)
    };
    stored.map(sum).collect()
}

/// Returns the one root directory of all entries, with its slash.
fn root_of(entries: &Entries) -> Result<String> {
    let root = |name: &str| name.split_once('/').map(|(root, _)| format!("{root}/"));
    let first = entries.keys().next().and_then(|name| root(name));
    let first = first.filter(|first| entries.keys().all(|name| name.starts_with(first.as_str())));
    let is_torch = first.as_ref().is_some_and(|first| entries.contains_key(&format!("{first}data.pkl")));
    match first {
        Some(first) if is_torch => Ok(first),
        first => Err(Error::input(what_it_is(entries, first.is_some()))),
    }
}

/// Describes a zip archive that torch.save did not write, and how to proceed.
fn what_it_is(entries: &Entries, has_root: bool) -> String {
    let ends = |extensions: &[&str]| entries.keys().find(|name| extensions.iter().any(|end| name.ends_with(end)));
    let weights = ends(&[".safetensors", ".pth", ".pt", ".bin", ".bpk"]);
    let inside = weights.map_or(String::new(), |name| format!(", such as {name:?}"));
    let is_exported = entries.keys().any(|name| name.ends_with("/archive_format"));
    if is_exported && ends(&["/models/model.json"]).is_some() {
        "found a program of torch.export (.pt2), expected a checkpoint; export ONNX, or save the state dict of the model".into()
    } else if entries.keys().any(|name| name.contains(".dist-info/")) {
        format!("found a Python wheel, expected a checkpoint; unzip it and use the weights inside{inside}")
    } else if entries.keys().all(|name| name.ends_with(".npy")) {
        "found NumPy arrays (.npz), expected a checkpoint; save them as safetensors".into()
    } else if ends(&[".h5"]).is_some() {
        "found a Keras model, expected a checkpoint; save its weights as safetensors".into()
    } else if weights.is_some() {
        format!(
            "found a zip archive of other files, expected a checkpoint; unzip it and use the weights inside{inside}"
        )
    } else if has_root {
        "found no data.pkl, expected an archive of torch.save; check the file".into()
    } else {
        "found a zip archive without one root directory, expected an archive of torch.save; check the file".into()
    }
}

/// Returns whether an entry belongs to the code of a TorchScript program.
fn is_program(name: &str, root: &str) -> bool {
    let name = name.strip_prefix(root).unwrap_or(name);
    name == "constants.pkl" || ["code/", "constants/", "extra/"].iter().any(|directory| name.starts_with(directory))
}

/// Refuses an archive from a big-endian machine. Archives of PyTorch before 2.1 are assumed to be
/// little-endian.
fn check_byte_order(file: &InputFile, entries: &Entries, root: &str) -> Result<()> {
    let Some(entry) = entries.get(&format!("{root}byteorder")) else { return Ok(()) };
    if entry.n_bytes > 16 {
        return Err(Error::input("has a byteorder of more than 16 bytes; the archive is damaged"));
    }
    match bytes_of(file, "its byteorder", entry)?.as_slice() {
        b"little" => Ok(()),
        b"big" => Err(big_endian()),
        _ => Err(Error::input("has a byteorder that is neither little nor big; the archive is damaged")),
    }
}

fn pickle_bytes(file: &InputFile, entries: &Entries, root: &str) -> Result<Vec<u8>> {
    let entry = entries.get(&format!("{root}data.pkl"));
    let entry =
        entry.ok_or_else(|| Error::input("found no data.pkl, expected an archive of torch.save; check the file"))?;
    if entry.n_bytes > MAX_PICKLE_BYTES {
        return Err(Error::input(
            "its data.pkl is larger than 64 MiB, expected a state dict; save only model.state_dict()",
        ));
    }
    bytes_of(file, "its data.pkl", entry)
}

/// Reads a small entry.
fn bytes_of(file: &InputFile, name: &str, entry: &ZipEntry) -> Result<Vec<u8>> {
    if !entry.is_stored {
        return unpack(file, entry.into());
    }
    let mut bytes = vec![0; entry.n_bytes as usize];
    file.read_at(entry.start, &mut bytes)?;
    crc::check(name, &bytes, entry.crc)?;
    Ok(bytes)
}

/// Returns the storages by key.
fn storages(file: &InputFile, entries: &Entries, root: &str) -> Result<BTreeMap<String, Stored>> {
    let directory = format!("{root}data/");
    let most = file.len().saturating_mul(MAX_UNPACKING);
    let mut found = BTreeMap::new();
    for (name, entry) in entries {
        let Some(key) = name.strip_prefix(&directory) else { continue };
        if entry.n_bytes > most {
            let message = format!(
                "its entry {name:?} unpacks to {} bytes, more than {MAX_UNPACKING} times the file; unzip it and zip it again without compression (zip -0)",
                entry.n_bytes
            );
            return Err(Error::input(message));
        }
        found.insert(key.to_string(), entry.into());
    }
    Ok(found)
}
