//! The machine that a pickle is a program for. Its stack, marks and memo are those of Python's; nothing is ever called.

use super::graph::{Outside, Pickle};
use super::names::PickleName;
use super::refusal::{Refusal, damaged};
use super::value::{Node, Value};
use super::{atom, describe};
use crate::pytorch::bytes::Bytes;
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

/// What the values of a pickle may take in memory.
const MAX_BYTES: usize = 48 << 20;
/// Bytes that an entry of the memo is counted as, with its share of the tree that holds it.
const MEMO_BYTES: usize = 64;
/// Bytes that a node is counted as, with the overhead of its allocation.
const NODE_BYTES: usize = size_of::<Node>() + 16;

/// A pickle while it is run through.
#[derive(Debug, Default)]
struct Machine {
    pickle: Pickle,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value>,
    n_bytes: usize,
}

/// Goes through a pickle and gives its root.
///
/// # Errors
/// Input where it is damaged, or would do anything but describe tensors.
pub(crate) fn read(bytes: &[u8], outside: Outside) -> Result<(Pickle, Value)> {
    read_next(&mut Bytes(bytes), outside)
}

/// The same, of one pickle that others may follow.
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

    /// Counts the memory that values take: a short pickle can copy one value very often.
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

    /// The opcodes that drop the top of the stack, drop it up to a mark, or double it.
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
            _ => {
                Err(format!("its pickle has the opcode {code:#04x}, which torch.save does not write; do not trust it"))
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

    /// Remembers that the node that was made last is a transposed convolution, where its class says so.
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

    /// Sets the state of an object. An OrderedDict has one too (`_metadata` of a state dict), which is ignored.
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
