//! The pickle inside a PyTorch archive, as a description of tensors. Nothing in it is ever called.
//!
//! The machine knows the opcodes that `torch.save` writes and a short list of names; a pickle with anything else is
//! refused before any other reader sees it.

mod atom;
mod choose;
mod flatten;
mod names;
mod value;

use crate::bytes::Bytes;
use crate::limits::MAX_PICKLE_BYTES;
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

pub(crate) use flatten::{Flattened, bytes_of, flatten};
pub(crate) use names::Name;
pub(crate) use value::{Node, Storage, Value, View};

/// What an entry of the memo takes, with its share of the tree.
const MEMO_BYTES: usize = 64;
/// What a node takes, with what its allocation costs.
const NODE_BYTES: usize = size_of::<Node>() + 16;

/// What a pickle may refer to outside of itself.
#[derive(Debug, Default)]
pub(crate) enum Outside {
    /// Storages, as `torch.save` has it.
    #[default]
    Storages,
    /// Storages, and the classes of a TorchScript program.
    Script,
    /// Tensors of a table, by number, as PyTorch before 0.1.10 had it.
    Tensors(BTreeMap<i64, View>),
}

/// A pickle that was run through.
#[derive(Debug, Default)]
pub(crate) struct Pickle {
    nodes: Vec<Node>,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value>,
    n_bytes: usize,
    outside: Outside,
}

/// The message of a pickle that is not valid.
type Refusal = String;

/// Goes through a pickle and gives its root.
///
/// # Errors
/// Input where it is damaged, or would do anything but describe tensors.
pub(crate) fn read(bytes: &[u8], outside: Outside) -> Result<(Pickle, Value)> {
    read_next(&mut Bytes(bytes), outside)
}

/// The same, of one pickle that others may follow.
pub(crate) fn read_next(rest: &mut Bytes, outside: Outside) -> Result<(Pickle, Value)> {
    let mut pickle = Pickle { outside, ..Pickle::default() };
    pickle.run(rest).map_err(Error::input)?;
    let root = pickle.pop().map_err(Error::input)?;
    Ok((pickle, root))
}

fn damaged() -> Refusal {
    "its pickle is damaged or cut short; save or download it again".into()
}

impl Pickle {
    /// What a value refers to.
    pub(crate) fn node(&self, value: &Value) -> Option<&Node> {
        match value {
            Value::Node(index) => self.nodes.get(*index),
            _ => None,
        }
    }

    /// The items of a tuple or a list.
    pub(crate) fn list(&self, value: &Value) -> Option<&[Value]> {
        match self.node(value) {
            Some(Node::List(items)) => Some(items),
            _ => None,
        }
    }

    /// The items of a dictionary, or the attributes of an object.
    pub(crate) fn items(&self, value: &Value) -> Option<&[(Value, Value)]> {
        match self.node(value) {
            Some(Node::Dict(items)) => Some(items),
            Some(Node::Object(state)) => match self.node(state) {
                Some(Node::Dict(items)) => Some(items),
                _ => None,
            },
            _ => None,
        }
    }

    /// Every storage and tensor that was met, wherever.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn run(&mut self, rest: &mut Bytes) -> Result<(), Refusal> {
        loop {
            let code = rest.u8().ok_or_else(damaged)?;
            match code {
                b'.' => return Ok(()),
                0x80 => drop(rest.u8().ok_or_else(damaged)?),
                0x95 => drop(rest.u64().ok_or_else(damaged)?),
                b'(' => self.marks.push(self.stack.len()),
                b'q' | b'r' | 0x94 | b'h' | b'j' => self.remember(code, rest)?,
                b'c' | 0x93 | b'R' | 0x81 | b'Q' | b'b' => self.refer(code, rest)?,
                _ => match atom::atom(code, rest)? {
                    Some(value) => self.push(value)?,
                    None => self.collect(code)?,
                },
            }
            self.charge(size_of::<Value>())?;
        }
    }

    /// Counts the memory of what was made, whether each value has an opcode of its own or one opcode copied many.
    fn charge(&mut self, n_bytes: usize) -> Result<(), Refusal> {
        self.n_bytes = self.n_bytes.saturating_add(n_bytes);
        if self.n_bytes > MAX_PICKLE_BYTES {
            return Err(format!("its values take more than {MAX_PICKLE_BYTES} bytes, expected a state dict"));
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<(), Refusal> {
        if let Value::Text(text) = &value {
            self.charge(text.len() + size_of::<Value>())?;
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_node(&mut self, node: Node) -> Result<(), Refusal> {
        self.charge(NODE_BYTES + node.n_bytes())?;
        self.nodes.push(node);
        self.push(Value::Node(self.nodes.len() - 1))
    }

    fn pop(&mut self) -> Result<Value, Refusal> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(damaged());
        }
        self.stack.pop().ok_or_else(damaged)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>, Refusal> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or_else(damaged)?;
        Ok(self.stack.split_off(mark))
    }

    /// Puts the top of the stack into the memo, or the other way round.
    fn remember(&mut self, code: u8, rest: &mut Bytes) -> Result<(), Refusal> {
        let slot = match code {
            b'q' | b'h' => rest.u8().map(u32::from),
            0x94 => u32::try_from(self.memo.len()).ok(),
            _ => rest.u32(),
        };
        let slot = slot.ok_or_else(damaged)?;
        if matches!(code, b'h' | b'j') {
            let value = self.memo.get(&slot).cloned().ok_or_else(damaged)?;
            return self.push(value);
        }
        let top = self.stack.last().cloned().ok_or_else(damaged)?;
        self.memo.insert(slot, top);
        self.charge(MEMO_BYTES)
    }

    /// The opcodes that make and fill tuples, lists and dictionaries.
    fn collect(&mut self, code: u8) -> Result<(), Refusal> {
        match code {
            b')' | b']' => self.push_node(Node::List(Vec::new())),
            b'}' => self.push_node(Node::Dict(Vec::new())),
            b't' | b'l' => {
                let items = self.pop_to_mark()?;
                self.push_node(Node::List(items))
            }
            0x85..=0x87 => {
                let n_items = usize::from(code - 0x84);
                let mut items = Vec::with_capacity(n_items);
                for _ in 0..n_items {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push_node(Node::List(items))
            }
            b'd' => {
                let items = self.pop_to_mark()?;
                self.push_node(Node::Dict(pairs(items)?))
            }
            b'a' | b'e' => {
                let items = if code == b'a' { vec![self.pop()?] } else { self.pop_to_mark()? };
                self.extend(items)
            }
            b's' | b'u' => {
                let items = if code == b'u' {
                    self.pop_to_mark()?
                } else {
                    let value = self.pop()?;
                    vec![self.pop()?, value]
                };
                self.extend(items)
            }
            b'0' => self.pop().map(drop),
            b'1' => self.pop_to_mark().map(drop),
            b'2' => {
                let top = self.stack.last().cloned().ok_or_else(damaged)?;
                self.push(top)
            }
            _ => {
                Err(format!("its pickle has the opcode {code:#04x}, which torch.save does not write; do not trust it"))
            }
        }
    }

    /// Adds items to the list or dictionary on top of the stack.
    fn extend(&mut self, items: Vec<Value>) -> Result<(), Refusal> {
        let Some(Value::Node(index)) = self.stack.last() else { return Err(damaged()) };
        match self.nodes.get_mut(*index) {
            Some(Node::List(list)) => list.extend(items),
            Some(Node::Dict(dict)) => dict.extend(pairs(items)?),
            _ => return Err(damaged()),
        }
        Ok(())
    }

    /// The opcodes that in another reader would import or call something.
    fn refer(&mut self, code: u8, rest: &mut Bytes) -> Result<(), Refusal> {
        match code {
            b'c' => {
                let mut line = || std::str::from_utf8(rest.line()?).ok();
                let (module, name) = line().zip(line()).ok_or_else(damaged)?;
                self.push(Value::Name(self.name(module, name)?))
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => self.push(Value::Name(self.name(&module, &name)?)),
                _ => Err(damaged()),
            },
            b'Q' => {
                let id = self.pop()?;
                let node = names::outside(self, &id).ok_or_else(damaged)?;
                self.push_node(node)
            }
            b'b' => self.build(),
            _ => {
                let (arguments, name) = (self.pop()?, self.pop()?);
                let Value::Name(name) = name else { return Err(damaged()) };
                match names::describe(self, name, &arguments)? {
                    Ok(value) => self.push(value),
                    Err(node) => self.push_node(node),
                }
            }
        }
    }
}

impl Pickle {
    fn name(&self, module: &str, name: &str) -> Result<Name, Refusal> {
        Name::of(module, name, matches!(self.outside, Outside::Script))
    }

    /// Sets state on an object. That of an OrderedDict, its `_metadata`, is of no matter.
    fn build(&mut self) -> Result<(), Refusal> {
        let state = self.pop()?;
        if let Some(Value::Node(index)) = self.stack.last()
            && let Some(Node::Object(fields)) = self.nodes.get_mut(*index)
        {
            *fields = state;
        }
        Ok(())
    }
}

fn pairs(items: Vec<Value>) -> Result<Vec<(Value, Value)>, Refusal> {
    let mut items = items.into_iter();
    let mut found = Vec::with_capacity(items.len() / 2);
    while let Some(key) = items.next() {
        found.push((key, items.next().ok_or_else(damaged)?));
    }
    Ok(found)
}
