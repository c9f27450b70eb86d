//! Names the tensors of nested dictionaries by their keys, joined with dots.

use super::choose::{self, Chosen};
use super::graph::Pickle;
use super::value::{Node, Value, View};
use crate::io::LeftOut;
use briquette_core::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Limits on the depth and number of values. A dictionary that contains itself would never end.
const MAX_DEPTH: usize = 64;
const MAX_VISITS: usize = 4_000_000;
/// Largest total size of names and shapes. A long key counts for every tensor under it.
const MAX_BYTES: usize = 32 << 20;
/// Most entries outside of the model that are listed by name. The rest is combined as "others".
const MAX_NAMED: usize = 64;

/// The tensors of a pickle.
#[derive(Debug)]
pub(crate) struct Flattened {
    /// Tensors in the order of the dictionaries, named by their keys joined with dots.
    pub(crate) tensors: Vec<(String, View)>,
    /// The keys from the root to the model, joined with dots; empty if the root is the model.
    pub(crate) path: String,
    /// Other entries with tensors.
    pub(crate) left_out: Vec<LeftOut>,
    /// Root keys that are not part of the model.
    pub(crate) left_keys: Vec<String>,
    /// The paths of objects whose class is a transposed convolution.
    pub(crate) transposed_layers: Vec<String>,
}

/// Collects the tensors of the model below a root: under `key`, or in the model that is found.
///
/// # Errors
/// - Input: the root is not a dictionary, has no tensor, or two tensors would have one name.
/// - Config: the file does not have the key.
pub(crate) fn flatten(pickle: &Pickle, root: &Value, key: Option<&str>) -> Result<Flattened> {
    let Chosen { items, path, left } = choose::choose(pickle, root, key)?;
    let mut walk = TensorWalk {
        pickle,
        tensors: Vec::new(),
        names: BTreeSet::new(),
        transposed: Vec::new(),
        n_visits: 0,
        n_bytes: 0,
    };
    walk.visit_items(&items, "", 0)?;
    if walk.tensors.is_empty() {
        return Err(Error::input("found no tensor; nothing to do"));
    }
    let mut n_visits = walk.n_visits;
    let left_keys = left.iter().map(|(key, _)| key.clone()).collect();
    let mut left_out = Vec::new();
    for (key, value) in left {
        let mut sizes = StorageSizes { pickle, by_storage: BTreeMap::new(), n_visits };
        sizes.visit(value, 0)?;
        n_visits = sizes.n_visits;
        let n_bytes = sizes.by_storage.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
        if n_bytes > 0 {
            push(
                &mut left_out,
                LeftOut { is_model: choose::is_model(pickle, &key, value), is_unread: false, key, n_bytes },
            );
        }
    }
    Ok(Flattened { tensors: walk.tensors, path, left_out, left_keys, transposed_layers: walk.transposed })
}

/// Adds an entry. Beyond [`MAX_NAMED`], the last entry is the sum of the rest.
fn push(left_out: &mut Vec<LeftOut>, one: LeftOut) {
    match left_out.get_mut(MAX_NAMED) {
        Some(rest) => (rest.key, rest.n_bytes) = ("others".into(), rest.n_bytes.saturating_add(one.n_bytes)),
        None => left_out.push(one),
    }
}

struct TensorWalk<'a> {
    pickle: &'a Pickle,
    tensors: Vec<(String, View)>,
    names: BTreeSet<String>,
    transposed: Vec<String>,
    n_visits: usize,
    n_bytes: usize,
}

impl TensorWalk<'_> {
    fn visit_items(&mut self, items: &[(&Value, &Value)], path: &str, depth: usize) -> Result<()> {
        for (key, value) in items {
            if let Some(key) = choose::text_of(key) {
                self.visit(value, &join(path, &key), depth + 1)?;
            }
        }
        Ok(())
    }

    fn visit(&mut self, value: &Value, path: &str, depth: usize) -> Result<()> {
        self.n_visits += 1;
        self.n_bytes += path.len();
        if depth > MAX_DEPTH || self.n_visits > MAX_VISITS || self.n_bytes > MAX_BYTES {
            return Err(endless());
        }
        match self.pickle.node(value) {
            Some(Node::Dict(items)) => {
                for (key, value) in items {
                    if let Some(key) = choose::text_of(key) {
                        self.visit(value, &join(path, &key), depth + 1)?;
                    }
                }
            }
            Some(Node::Object(state)) => {
                if self.pickle.is_transposed(value) {
                    self.n_bytes += size_of::<String>() + path.len();
                    self.transposed.push(path.to_string());
                }
                self.visit(state, path, depth + 1)?;
            }
            Some(Node::List(items)) => {
                for (index, value) in items.iter().enumerate() {
                    self.visit(value, &join(path, &index.to_string()), depth + 1)?;
                }
            }
            Some(Node::Tensor(view)) => {
                if !self.names.insert(path.to_string()) {
                    let message = "two tensors have this name after dictionaries are flattened; rename one";
                    return Err(Error::input(message).at(format_args!("tensor {path:?}")));
                }
                self.n_bytes += size_of::<(String, View)>() + path.len() + 2 * size_of_val(view.shape.as_slice());
                self.tensors.push((path.to_string(), View::clone(view)));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Counts the bytes below a value.
struct StorageSizes<'a> {
    pickle: &'a Pickle,
    by_storage: BTreeMap<Arc<str>, u64>,
    n_visits: usize,
}

impl StorageSizes<'_> {
    fn visit(&mut self, value: &Value, depth: usize) -> Result<()> {
        self.n_visits += 1;
        if depth > MAX_DEPTH || self.n_visits > MAX_VISITS {
            return Err(endless());
        }
        match self.pickle.node(value) {
            Some(Node::Dict(items)) => items.iter().try_for_each(|(_, value)| self.visit(value, depth + 1)),
            Some(Node::List(items)) => items.iter().try_for_each(|value| self.visit(value, depth + 1)),
            Some(Node::Object(state)) => self.visit(state, depth + 1),
            Some(Node::Tensor(view)) => {
                add_bytes(&mut self.by_storage, view);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Adds the bytes of a tensor to its storage, up to the size of the storage. So tied tensors count once.
fn add_bytes(by_storage: &mut BTreeMap<Arc<str>, u64>, view: &View) {
    let stored = view.storage.n_stored.saturating_mul(view.storage.width());
    let width = (view.dtype.n_bits() / 8) as u64;
    let own = view.shape.iter().fold(width, |bytes, &extent| bytes.saturating_mul(extent as u64));
    let bytes = by_storage.entry(view.storage.key.clone()).or_insert(0);
    *bytes = bytes.saturating_add(own).min(stored);
}

/// Returns the size of tensors in the file in bytes; tied tensors count once.
pub(crate) fn bytes_of(tensors: &[(String, View)]) -> u64 {
    let mut by_storage = BTreeMap::new();
    tensors.iter().for_each(|(_, view)| add_bytes(&mut by_storage, view));
    by_storage.values().fold(0, |sum: u64, n| sum.saturating_add(*n))
}

fn endless() -> Error {
    Error::input("its dictionaries are nested without end; it is damaged or malicious")
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}
