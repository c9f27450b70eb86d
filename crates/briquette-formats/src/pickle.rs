//! The pickle inside a PyTorch archive, as a description of tensors. Nothing in it is ever called.
//!
//! The machine knows the opcodes that `torch.save` writes and a short list of names; a pickle with anything else is
//! refused before any other reader sees it.

mod flatten;
mod names;

use crate::bytes::Bytes;
use crate::limits::MAX_PICKLE_BYTES;
use briquette_core::{DType, Error, Result};
use names::Name;
use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) use flatten::flatten;

/// What an entry of the memo takes, with its share of the tree.
const MEMO_BYTES: usize = 64;
/// What a node takes, with what its allocation costs.
const NODE_BYTES: usize = size_of::<Node>() + 16;

/// A value on the stack or in the memo.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// Anything whose value does not matter.
    Other,
    /// A whole number.
    Int(i64),
    /// A string.
    Text(Rc<str>),
    /// A name from the list.
    Name(Name),
    /// A place among the nodes: shared, and changed in place, as Python objects are.
    Node(usize),
}

/// What a value can refer to.
#[derive(Debug)]
pub(crate) enum Node {
    /// A tuple or a list.
    List(Vec<Value>),
    /// A dictionary, in the order its keys were set.
    Dict(Vec<(Value, Value)>),
    /// The bytes behind tensors.
    Storage(Storage),
    /// A view of a storage, boxed: a pickle can have two million nodes.
    Tensor(Box<View>),
}

impl Node {
    /// What it holds beyond itself.
    fn n_bytes(&self) -> usize {
        match self {
            Self::List(items) => items.len().max(1) * size_of::<Value>(),
            Self::Dict(items) => items.len().max(1) * size_of::<(Value, Value)>(),
            Self::Storage(_) => 0,
            Self::Tensor(view) => size_of::<View>() + (view.shape.len() + view.strides.len()) * size_of::<usize>(),
        }
    }
}

/// The bytes behind tensors, as declared.
#[derive(Debug, Clone)]
pub(crate) struct Storage {
    /// Its entry below `data/`.
    pub(crate) key: Rc<str>,
    /// Its type; none for bytes.
    pub(crate) dtype: Option<DType>,
    /// Elements.
    pub(crate) n_elements: u64,
}

/// A tensor: a view of a storage.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// What it is a view of.
    pub(crate) storage: Storage,
    /// Type of its elements.
    pub(crate) dtype: DType,
    /// First element.
    pub(crate) offset: u64,
    /// Extents.
    pub(crate) shape: Vec<usize>,
    /// Steps, in elements.
    pub(crate) strides: Vec<usize>,
}

/// A pickle that was run through.
#[derive(Debug, Default)]
pub(crate) struct Pickle {
    nodes: Vec<Node>,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value>,
    n_bytes: usize,
}

/// The message of a pickle that is not valid.
type Refusal = String;

/// Goes through a pickle and gives its root.
///
/// # Errors
/// Input where it is damaged, or would do anything but describe tensors.
pub(crate) fn read(bytes: &[u8]) -> Result<(Pickle, Value)> {
    let mut pickle = Pickle::default();
    let mut rest = Bytes(bytes);
    pickle.run(&mut rest).map_err(Error::input)?;
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
                _ => match atom(code, rest)? {
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
                self.push(Value::Name(Name::of(module, name)?))
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => self.push(Value::Name(Name::of(&module, &name)?)),
                _ => Err(damaged()),
            },
            b'Q' => {
                let id = self.pop()?;
                let storage = names::storage(self, &id).ok_or_else(damaged)?;
                self.push_node(Node::Storage(storage))
            }
            // State that is set on an object: `_metadata` of an OrderedDict.
            b'b' => self.pop().map(drop),
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

fn pairs(items: Vec<Value>) -> Result<Vec<(Value, Value)>, Refusal> {
    let mut items = items.into_iter();
    let mut found = Vec::with_capacity(items.len() / 2);
    while let Some(key) = items.next() {
        found.push((key, items.next().ok_or_else(damaged)?));
    }
    Ok(found)
}

/// The opcodes that push one value: numbers, strings, constants.
fn atom(code: u8, rest: &mut Bytes) -> Result<Option<Value>, Refusal> {
    let length = match code {
        b'X' | b'B' => rest.u32().map(u64::from),
        0x8c | b'U' | b'C' | 0x8a => rest.u8().map(u64::from),
        0x8d | 0x8e => rest.u64(),
        _ => None,
    };
    let length = length.and_then(|length| usize::try_from(length).ok());
    let value = match code {
        b'N' | 0x88 | 0x89 => Some(Value::Other),
        b'K' => rest.u8().map(|n| Value::Int(n.into())),
        b'M' => rest.u16().map(|n| Value::Int(n.into())),
        b'J' => rest.i32().map(|n| Value::Int(n.into())),
        b'G' => rest.u64().map(|_| Value::Other),
        0x8a => length.and_then(|length| rest.take(length)).map(|bytes| long(bytes).map_or(Value::Other, Value::Int)),
        b'X' | 0x8c | 0x8d | b'U' => {
            let text = length.and_then(|length| std::str::from_utf8(rest.take(length)?).ok());
            text.map(|text| Value::Text(text.into()))
        }
        b'B' | b'C' | 0x8e => length.and_then(|length| rest.take(length)).map(|_| Value::Other),
        _ => return Ok(None),
    };
    value.map(Some).ok_or_else(damaged)
}

/// A whole number in two's complement of up to 8 bytes.
fn long(bytes: &[u8]) -> Option<i64> {
    let fill = if bytes.last().is_some_and(|&last| last > 0x7f) { 0xff } else { 0 };
    let mut all = [fill; 8];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(all))
}
