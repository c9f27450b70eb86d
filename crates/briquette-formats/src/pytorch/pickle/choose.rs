//! Finds the model in a training checkpoint.

use super::graph::Pickle;
use super::value::{Node, Value};
use briquette_core::{Error, Result};

/// Keys of weights in training checkpoints, beside the optimizer state and other entries. The first present key
/// is used.
const MODELS: [&str; 10] = [
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "net",
    "network",
    "model_state",
    "net_state_dict",
    "weights",
    "params",
];
/// Keys of averaged weights, which are used only if the weights themselves are missing.
const AVERAGES: [&str; 8] = [
    "model_ema",
    "state_dict_ema",
    "ema_state_dict",
    "model_ema_state_dict",
    "ema_model",
    "ema",
    "params_ema",
    "averaged_model",
];
/// Most root keys of a training checkpoint. With more keys, the root is a state dict.
const MAX_KEYS: usize = 1000;
/// Limits on the depth and number of values in the search for tensors.
const MAX_DEPTH: usize = 32;
const MAX_VISITS: usize = 10_000;
/// Limits on the items of a dictionary or list that are examined.
const MAX_ITEMS: usize = 1000;
const MAX_GROUPS: usize = 16;
/// Most keys that an error lists.
const MAX_LISTED: usize = 20;

/// The chosen model.
pub(super) struct Chosen<'a> {
    /// The items of the model.
    pub(super) items: Vec<(&'a Value, &'a Value)>,
    /// The keys from the root to the model, joined with dots.
    pub(super) path: String,
    /// The other entries of the root.
    pub(super) left: Vec<(String, &'a Value)>,
}

/// Finds the model below a root. The empty key selects everything.
pub(super) fn choose<'a>(pickle: &'a Pickle, root: &'a Value, key: Option<&str>) -> Result<Chosen<'a>> {
    let Some(items) = pickle.items(root) else {
        return Err(Error::input("found no dictionary, expected a state dict; save model.state_dict()"));
    };
    match key {
        Some("") => Ok(all_but(items, |_, _| false)),
        Some(key) => named(pickle, items, key),
        None => match found(pickle, root, items) {
            Some(key) => named(pickle, items, &innermost(pickle, items, key)),
            None => Ok(all_but(items, |key, value| items.len() <= MAX_KEYS && is_training(pickle, key, value))),
        },
    }
}

/// Returns a key as text.
pub(super) fn text_of(key: &Value) -> Option<String> {
    match key {
        Value::Text(text) => Some(text.to_string()),
        Value::Int(n) => Some(n.to_string()),
        _ => None,
    }
}

/// Returns whether an entry that is not the model could be chosen instead.
pub(super) fn is_model(pickle: &Pickle, key: &str, value: &Value) -> bool {
    pickle.items(value).is_some() && !is_training(pickle, key, value) && holds_tensor(pickle, value)
}

/// Returns the root itself, without the items for which `is_left` is true.
fn all_but(items: &[(Value, Value)], is_left: impl Fn(&str, &Value) -> bool) -> Chosen<'_> {
    let (mut kept, mut left) = (Vec::new(), Vec::new());
    for (key, value) in items {
        match text_of(key).filter(|key| is_left(key, value)) {
            Some(key) => left.push((key, value)),
            None => kept.push((key, value)),
        }
    }
    Chosen { items: kept, path: String::new(), left }
}

/// Returns the key of the model; `None` if the root is the model.
fn found(pickle: &Pickle, root: &Value, items: &[(Value, Value)]) -> Option<String> {
    if matches!(pickle.node(root), Some(Node::Object(_))) || items.len() > MAX_KEYS {
        return None;
    }
    let get = |name: &str| value_at(items, name).filter(|value| is_model(pickle, name, value));
    if let Some(name) = MODELS.iter().chain(&AVERAGES).find(|name| get(name).is_some()) {
        return Some(name.to_string());
    }
    // A training checkpoint with one model under an unusual key.
    let keyed = || items.iter().filter_map(|(key, value)| Some((text_of(key)?, value)));
    let is_weight = |value: &Value| matches!(pickle.node(value), Some(Node::Tensor(view)) if !view.shape.is_empty());
    let trains = keyed().any(|(key, value)| is_training(pickle, &key, value));
    let models: Vec<String> =
        keyed().filter(|(key, value)| is_model(pickle, key, value)).map(|(key, _)| key).take(2).collect();
    match models.as_slice() {
        [one] if trains && !keyed().any(|(_, value)| is_weight(value)) => Some(one.clone()),
        _ => None,
    }
}

/// Extends a key to the path of the innermost model, such as `model.state_dict`.
fn innermost(pickle: &Pickle, items: &[(Value, Value)], key: String) -> String {
    let (mut path, mut value) = (key.clone(), value_at(items, &key));
    for _ in 0..MAX_DEPTH {
        let Some(Node::Dict(inner)) = value.and_then(|value| pickle.node(value)) else { break };
        let Some(name) = wrapped(pickle, inner) else { break };
        path = format!("{path}.{name}");
        value = value_at(inner, name);
    }
    path
}

/// Returns the key of the model in a dictionary whose other tensors are averages or training state.
fn wrapped(pickle: &Pickle, items: &[(Value, Value)]) -> Option<&'static str> {
    if items.len() > MAX_KEYS {
        return None;
    }
    let is_dict = |value: &&Value| matches!(pickle.node(value), Some(Node::Dict(_)));
    let get = |name: &str| value_at(items, name).filter(is_dict).filter(|value| is_model(pickle, name, value));
    let name = *MODELS.iter().find(|name| get(name).is_some())?;
    let is_other = |(key, value): &(Value, Value)| {
        let key = text_of(key).unwrap_or_default();
        key != name
            && !AVERAGES.contains(&key.as_str())
            && !is_training(pickle, &key, value)
            && holds_tensor(pickle, value)
    };
    (!items.iter().any(is_other)).then_some(name)
}

/// Returns the entry of a root key, or of several keys joined with dots.
fn named<'a>(pickle: &'a Pickle, items: &'a [(Value, Value)], key: &str) -> Result<Chosen<'a>> {
    let value = value_at(items, key).or_else(|| below(pickle, items, key));
    let Some(chosen) = value.and_then(|value| pickle.items(value).filter(|_| holds_tensor(pickle, value))) else {
        return Err(unknown(pickle, items, key));
    };
    let first = if value_at(items, key).is_some() { key } else { key.split('.').next().unwrap_or(key) };
    let others = items.iter().take(MAX_KEYS).filter_map(|(key, value)| Some((text_of(key)?, value)));
    let mut left: Vec<(String, &Value)> = others.filter(|(other, _)| other != first).collect();
    left.extend(beside(pickle, items, key));
    Ok(Chosen { items: chosen.iter().map(|(key, value)| (key, value)).collect(), path: key.to_string(), left })
}

/// Returns the entries beside each component of a path, except those of the root, by their own paths.
fn beside<'a>(pickle: &'a Pickle, items: &'a [(Value, Value)], path: &str) -> Vec<(String, &'a Value)> {
    let (mut items, mut above, mut found) = (items, String::new(), Vec::new());
    for step in path.split('.') {
        if !above.is_empty() {
            let others = items.iter().take(MAX_KEYS).filter_map(|(key, value)| Some((text_of(key)?, value)));
            found.extend(others.filter(|(key, _)| key != step).map(|(key, value)| (format!("{above}{key}"), value)));
        }
        let Some(value) = value_at(items, step) else { break };
        items = pickle.items(value).unwrap_or_default();
        above += &format!("{step}.");
    }
    found
}

fn value_at<'a>(items: &'a [(Value, Value)], name: &str) -> Option<&'a Value> {
    // For repeated keys the last one counts, as in Python.
    let is_it = |key: &Value| match key {
        Value::Text(text) => &**text == name,
        Value::Int(n) => n.to_string() == name,
        _ => false,
    };
    items.iter().rev().find(|(key, _)| is_it(key)).map(|(_, value)| value)
}

fn below<'a>(pickle: &'a Pickle, items: &'a [(Value, Value)], path: &str) -> Option<&'a Value> {
    let mut items = items;
    let mut found = None;
    for step in path.split('.') {
        let value = value_at(items, step)?;
        items = pickle.items(value).unwrap_or_default();
        found = Some(value);
    }
    found
}

fn unknown(pickle: &Pickle, items: &[(Value, Value)], key: &str) -> Error {
    let keyed = items.iter().take(MAX_KEYS).filter_map(|(key, value)| Some((text_of(key)?, value)));
    let known = keyed.filter(|(_, value)| pickle.items(value).is_some() && holds_tensor(pickle, value));
    let known: Vec<String> = known.map(|(key, _)| format!("{key:?}")).take(MAX_LISTED).collect();
    let expected = match known.as_slice() {
        [] => "its tensors are not under a key; remove the key".to_string(),
        known => format!("expected one of {}, or \"\" for all", known.join(", ")),
    };
    Error::config(format!("key: found {key:?}, which has no tensors; {expected}"))
}

/// Returns whether an entry is training state: an optimizer, a scheduler or the state of a random generator.
fn is_training(pickle: &Pickle, key: &str, value: &Value) -> bool {
    let is_groups = |(key, _): &(Value, Value)| matches!(key, Value::Text(text) if &**text == "param_groups");
    let has_groups =
        |value: &Value| pickle.items(value).is_some_and(|items| items.iter().take(MAX_GROUPS).any(is_groups));
    let list = pickle.list(value);
    if list.is_none() && pickle.items(value).is_none() {
        return false;
    }
    let key = key.to_lowercase();
    let is_named = ["optimizer", "scheduler", "rng_state", "grad_scaler"].iter().any(|word| key.contains(word))
        || key.starts_with("optim_")
        || ["optim", "opt", "scaler", "amp", "amp_scaler", "loss_scaler", "loops", "callbacks"].contains(&key.as_str());
    let list = list.unwrap_or_default();
    is_named || has_groups(value) || !list.is_empty() && list.iter().take(MAX_GROUPS).all(has_groups)
}

/// Returns whether a value contains a tensor.
fn holds_tensor(pickle: &Pickle, value: &Value) -> bool {
    let mut left = vec![(value, 0)];
    let mut n_visits = 0;
    while let Some((value, depth)) = left.pop() {
        n_visits += 1;
        if depth > MAX_DEPTH || n_visits > MAX_VISITS {
            return false;
        }
        match pickle.node(value) {
            Some(Node::Tensor(_)) => return true,
            Some(Node::Dict(items)) => left.extend(items.iter().take(MAX_ITEMS).map(|(_, value)| (value, depth + 1))),
            Some(Node::List(items)) => left.extend(items.iter().take(MAX_ITEMS).map(|value| (value, depth + 1))),
            Some(Node::Object(state)) => left.push((state, depth + 1)),
            _ => {}
        }
    }
    false
}
