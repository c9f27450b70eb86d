//! Parses the pickle of a PyTorch file as a description of tensors. It never calls anything.
//!
//! The machine supports the opcodes that `torch.save` writes and a short list of names. A pickle with anything
//! else is refused before any other reader sees it.

mod atom;
mod choose;
mod describe;
mod flatten;
mod graph;
mod machine;
mod names;
mod refusal;
mod value;

pub(crate) use flatten::{Flattened, bytes_of, flatten};
pub(crate) use graph::{Outside, Pickle};
pub(crate) use machine::{read, read_next};
pub(crate) use names::PickleName;
pub(crate) use value::{Node, TorchStorage, Value, View};
