//! From nested dictionaries to tensors with names.

use super::{Node, Pickle, Value, View};
use briquette_core::{Error, Result};
use std::collections::BTreeSet;

/// Keys under which training scripts keep the weights, beside an optimizer's state and other things.
const WRAPPERS: [&str; 3] = ["state_dict", "model_state_dict", "model"];
/// How deep dictionaries are followed, and how many values are looked at: a pickle may share them without end.
const MAX_DEPTH: usize = 64;
const MAX_VISITS: usize = 4_000_000;
/// How many bytes the names and shapes below a root may take: a long key counts for every tensor under it.
const MAX_BYTES: usize = 32 << 20;

/// The tensors of a pickle.
#[derive(Debug)]
pub(crate) struct Flattened {
    /// In the order of the dictionaries, under their keys joined with dots.
    pub(crate) tensors: Vec<(String, View)>,
    /// The key of the root that they are under, where there is one.
    pub(crate) wrapper: Option<&'static str>,
}

/// Collects the tensors below a root.
///
/// # Errors
/// Input where the root is no dictionary, has no tensor, or two tensors would have one name.
pub(crate) fn flatten(pickle: &Pickle, root: &Value) -> Result<Flattened> {
    let Some(Node::Dict(items)) = pickle.node(root) else {
        return Err(Error::input("found no dictionary in it, expected a state dict; save model.state_dict()"));
    };
    let has_tensor = items.iter().any(|(_, value)| matches!(pickle.node(value), Some(Node::Tensor(_))));
    let wrapped = |name: &&str| {
        let is_it = |key: &Value| matches!(key, Value::Text(text) if &**text == *name);
        items.iter().any(|(key, value)| is_it(key) && matches!(pickle.node(value), Some(Node::Dict(_))))
    };
    let wrapper = WRAPPERS.into_iter().find(wrapped).filter(|_| !has_tensor);
    let start = match wrapper {
        Some(name) => items.iter().find(|(key, _)| matches!(key, Value::Text(text) if &**text == name)),
        None => None,
    };
    let start = start.map_or(root, |(_, value)| value);
    let mut walk = Walk { pickle, tensors: Vec::new(), names: BTreeSet::new(), n_visits: 0, n_bytes: 0 };
    walk.visit(start, "", 0)?;
    if walk.tensors.is_empty() {
        return Err(Error::input("there is no tensor in it; nothing to do"));
    }
    Ok(Flattened { tensors: walk.tensors, wrapper })
}

struct Walk<'a> {
    pickle: &'a Pickle,
    tensors: Vec<(String, View)>,
    names: BTreeSet<String>,
    n_visits: usize,
    n_bytes: usize,
}

impl Walk<'_> {
    fn visit(&mut self, value: &Value, path: &str, depth: usize) -> Result<()> {
        self.n_visits += 1;
        self.n_bytes += path.len();
        if depth > MAX_DEPTH || self.n_visits > MAX_VISITS || self.n_bytes > MAX_BYTES {
            return Err(Error::input("its dictionaries are nested without end; it is damaged or made to do harm"));
        }
        match self.pickle.node(value) {
            Some(Node::Dict(items)) => {
                for (key, value) in items {
                    let key = match key {
                        Value::Text(text) => text.to_string(),
                        Value::Int(n) => n.to_string(),
                        _ => continue,
                    };
                    self.visit(value, &join(path, &key), depth + 1)?;
                }
            }
            Some(Node::List(items)) => {
                for (index, value) in items.iter().enumerate() {
                    self.visit(value, &join(path, &index.to_string()), depth + 1)?;
                }
            }
            Some(Node::Tensor(view)) => {
                if !self.names.insert(path.to_string()) {
                    let message = "two tensors have this one name once dictionaries are flattened; rename one";
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

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}
