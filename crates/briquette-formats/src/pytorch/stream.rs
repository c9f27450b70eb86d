//! Reads files of PyTorch before 1.6: consecutive pickles, then the storages.
//!
//! The pickles are the magic number, the format version, properties of the machine, the saved object, and the
//! keys of its storages. Then each storage follows: its number of elements in 64 bits, and the elements.

use crate::io::InputFile;
use crate::pytorch::bytes::Bytes;
use crate::pytorch::opened::{MAX_PICKLE_BYTES, Opened};
use crate::pytorch::pickle::{self, Node, Outside, Pickle, TorchStorage, Value};
use crate::pytorch::stored::Stored;
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

/// The magic number of the format: 0x1950a86a20f9469cfc6c.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The version of the format.
const VERSION: i64 = 1001;
/// Bytes that are first searched for the pickles, and more if they do not end there.
const FIRST_LOOK: u64 = 256 << 10;

/// The contents of the pickles.
struct Head {
    pickle: Pickle,
    root: Value,
    keys: Vec<String>,
    n_bytes: u64,
}

/// Reads the pickles and locates the storages.
pub(crate) fn open(file: &InputFile) -> Result<Opened> {
    let Head { pickle, root, keys, n_bytes } = head_of(file)?;
    let storages = storages(file, &pickle, &keys, n_bytes)?;
    Ok(Opened::new(pickle, root, storages))
}

fn head_of(file: &InputFile) -> Result<Head> {
    let mut n_bytes = FIRST_LOOK;
    loop {
        let mut bytes = vec![0; n_bytes.min(file.len()) as usize];
        file.read_at(0, &mut bytes)?;
        match parse(&bytes) {
            Err(_) if n_bytes < file.len() && n_bytes < MAX_PICKLE_BYTES => n_bytes *= 4,
            found => return found,
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Head> {
    let mut rest = Bytes(bytes);
    let mut next = || -> Result<(Pickle, Value, usize)> {
        let (pickle, value) = pickle::read_next(&mut rest, Outside::Storages)?;
        Ok((pickle, value, bytes.len() - rest.0.len()))
    };
    let (.., end) = next()?;
    if !bytes[..end].windows(MAGIC.len()).any(|window| window == MAGIC) {
        let message = "found a pickle that torch.save did not write, expected a state dict; save model.state_dict() with torch.save";
        return Err(Error::input(message));
    }
    match next()? {
        (_, Value::Int(VERSION), _) => {}
        _ => return Err(Error::input(format!("found another version than {VERSION}, which PyTorch does not write"))),
    }
    let (info, value, _) = next()?;
    check_byte_order(&info, &value)?;
    let (pickle, root, _) = next()?;
    let (list, keys, end) = next()?;
    let text = |key: &Value| match key {
        Value::Text(text) => Some(text.to_string()),
        _ => None,
    };
    let keys = list.list(&keys).and_then(|keys| keys.iter().map(text).collect::<Option<Vec<String>>>());
    let keys = keys.ok_or_else(|| damaged("has no list of its storages"))?;
    Ok(Head { pickle, root, keys, n_bytes: end as u64 })
}

/// Refuses a file from a big-endian machine.
pub(crate) fn check_byte_order(pickle: &Pickle, info: &Value) -> Result<()> {
    let is_it = |key: &Value| matches!(key, Value::Text(text) if &**text == "little_endian");
    let found = pickle.items(info).and_then(|items| items.iter().find(|(key, _)| is_it(key)));
    match found {
        Some((_, Value::Bool(true))) => Ok(()),
        Some((_, Value::Bool(false))) => Err(big_endian()),
        _ => Err(damaged("does not record its byte order")),
    }
}

/// Returns the error for a file from a big-endian machine.
pub(crate) fn big_endian() -> Error {
    Error::input(
        "was written on a big-endian machine, expected little-endian; load it there and save it as safetensors",
    )
}

/// Locates the storages, which follow each other up to the end of the file.
fn storages(file: &InputFile, pickle: &Pickle, keys: &[String], start: u64) -> Result<BTreeMap<String, Stored>> {
    let declared = declared(pickle)?;
    let mut found = BTreeMap::new();
    let mut at = start;
    for key in keys {
        let named = |what: &str| damaged(&format!("has a storage {key:?} {what}"));
        let storage = declared.get(key.as_str()).ok_or_else(|| named("that no tensor uses"))?;
        let data = at.checked_add(8).filter(|&data| data <= file.len()).ok_or_else(|| named("beyond its end"))?;
        let mut count = [0; 8];
        file.read_at(at, &mut count)?;
        if u64::from_le_bytes(count) != storage.n_stored {
            return Err(named("of another length than its tensors declare"));
        }
        let n_bytes = storage.n_stored.checked_mul(storage.width());
        let end = n_bytes.and_then(|n| data.checked_add(n)).filter(|&end| end <= file.len());
        at = end.ok_or_else(|| named("that reaches beyond its end"))?;
        if found.insert(key.clone(), Stored::plain(data, at - data)).is_some() {
            return Err(named("twice"));
        }
    }
    match file.len() - at {
        0 => Ok(found),
        n => Err(damaged(&format!("has {n} bytes after its last storage"))),
    }
}

/// Returns the declared storages. All tensors of a storage must declare the same size.
fn declared(pickle: &Pickle) -> Result<BTreeMap<&str, &TorchStorage>> {
    let mut found: BTreeMap<&str, &TorchStorage> = BTreeMap::new();
    for node in pickle.nodes() {
        let Node::Storage(storage) = node else { continue };
        let first = found.entry(&storage.key).or_insert(storage);
        if (first.n_stored, first.width()) != (storage.n_stored, storage.width()) {
            return Err(damaged(&format!("has two lengths for its storage {:?}", storage.key)));
        }
    }
    Ok(found)
}

fn damaged(what: &str) -> Error {
    Error::input(format!("{what}; the file is damaged or cut short, save or download it again"))
}
