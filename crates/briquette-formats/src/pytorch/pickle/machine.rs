//! Runs the program of a pickle. Stack, marks and memo work as in Python; nothing is ever called.

use super::graph::{Outside, Pickle};
use super::names::PickleName;
use super::refusal::{Refusal, damaged};
use super::value::{Node, Value};
use super::{atom, describe};
use crate::pytorch::bytes::Bytes;
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

/// Most memory for the values of a pickle.
const MAX_BYTES: usize = 48 << 20;
/// Bytes counted for an entry of the memo, with its share of the tree.
const MEMO_BYTES: usize = 64;
/// Bytes counted for a node, with the overhead of its allocation.
const NODE_BYTES: usize = size_of::<Node>() + 16;

/// The state of a running pickle.
#[derive(Debug, Default)]
struct Machine {
    pickle: Pickle,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value>,
    n_bytes: usize,
}

/// Parses a pickle and returns its root.
///
/// # Errors
/// Input: the pickle is damaged, or does anything but describe tensors.
pub(crate) fn read(bytes: &[u8], outside: Outside) -> Result<(Pickle, Value)> {
    read_next(&mut Bytes(bytes), outside)
}

/// Parses one of several consecutive pickles: see [`read`].
pub(crate) fn read_next(rest: &mut Bytes, outside: Outside) -> Result<(Pickle, Value)> {
    let mut machine = Machine { pickle: Pickle { outside, ..Pickle::default() }, ..Machine::default() };
    machine.run(rest).map_err(Error::input)?;
    let root = machine.pop().map_err(Error::input)?;
    Ok((machine.pickle, root))
}

impl Machine {
    fn run(&mut self, rest: &mut Bytes) -> Result<(), Refusal> {
        loop {
            let code = rest.u8().ok_or_else(damaged)?;
            match code {
                b'.' => return Ok(()),
                0x80 => drop(rest.u8().ok_or_else(damaged)?),
                0x95 => drop(rest.u64().ok_or_else(damaged)?),
                b'(' => self.marks.push(self.stack.len()),
                b'q' | b'r' | 0x94 | b'h' | b'j' => self.remember(code, rest)?,
                b'0'..=b'2' => self.restack(code)?,
                b'c' | 0x93 | b'R' | 0x81 | b'Q' | b'b' => self.refer(code, rest)?,
                _ => match atom::atom(code, rest)? {
                    Some(value) => self.push(value)?,
                    None => self.collect(code)?,
                },
            }
            self.charge(size_of::<Value>())?;
        }
    }

    /// Counts the memory of values, because a short pickle can copy one value many times.
    fn charge(&mut self, n_bytes: usize) -> Result<(), Refusal> {
        self.n_bytes = self.n_bytes.saturating_add(n_bytes);
        if self.n_bytes > MAX_BYTES {
            return Err(format!("its values take more than {MAX_BYTES} bytes, expected a state dict"));
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
        self.pickle.nodes.push(node);
        self.push(Value::Node(self.pickle.nodes.len() - 1))
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

    /// Stores the top of the stack in the memo, or pushes a value of the memo.
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

    /// Runs the opcodes that drop the top of the stack, drop it up to a mark, or duplicate it.
    fn restack(&mut self, code: u8) -> Result<(), Refusal> {
        match code {
            b'0' => self.pop().map(drop),
            b'1' => self.pop_to_mark().map(drop),
            _ => {
                let top = self.stack.last().cloned().ok_or_else(damaged)?;
                self.push(top)
            }
        }
    }

    /// Runs the opcodes that create and fill tuples, lists and dictionaries.
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
            _ => {
                let message = "which torch.save does not write by default; if you trust it, save it again with the default pickle_protocol";
                Err(format!("its pickle has the opcode {code:#04x}, {message}"))
            }
        }
    }

    /// Adds items to the list or dictionary on top of the stack.
    fn extend(&mut self, items: Vec<Value>) -> Result<(), Refusal> {
        let Some(Value::Node(index)) = self.stack.last() else { return Err(damaged()) };
        match self.pickle.nodes.get_mut(*index) {
            Some(Node::List(list)) => list.extend(items),
            Some(Node::Dict(dict)) => dict.extend(pairs(items)?),
            _ => return Err(damaged()),
        }
        Ok(())
    }

    /// Runs the opcodes that import or call something in another reader.
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
                let node = describe::outside(&self.pickle, &id).ok_or_else(damaged)?;
                self.push_node(node)
            }
            b'b' => self.build(),
            _ => {
                let (arguments, name) = (self.pop()?, self.pop()?);
                let Value::Name(name) = name else { return Err(damaged()) };
                match describe::describe(&self.pickle, name, &arguments)? {
                    Ok(value) => self.push(value),
                    Err(node) => {
                        self.push_node(node)?;
                        self.note_class(name)
                    }
                }
            }
        }
    }

    /// Records that the last node is a transposed convolution if its class is one.
    fn note_class(&mut self, name: PickleName) -> Result<(), Refusal> {
        if name == PickleName::TransposedConv {
            self.pickle.transposed.insert(self.pickle.nodes.len() - 1);
            self.charge(MEMO_BYTES)?;
        }
        Ok(())
    }

    fn name(&self, module: &str, name: &str) -> Result<PickleName, Refusal> {
        PickleName::of(module, name, matches!(self.pickle.outside, Outside::Script))
    }

    /// Sets the state of an object. The state of an OrderedDict (`_metadata` of a state dict) is ignored.
    fn build(&mut self) -> Result<(), Refusal> {
        let state = self.pop()?;
        if let Some(Value::Node(index)) = self.stack.last()
            && let Some(Node::Object(fields)) = self.pickle.nodes.get_mut(*index)
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
