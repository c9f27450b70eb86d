//! PyTorch files: `torch.save` of a state dict in all its formats, and the weights of TorchScript programs. Read without
//! running anything.
//!
//! Every opcode of a pickle is held against a short list of names, and every length against the file. Of an archive since 1.6
//! that is no program, `pytorch-reader` must find the same tensors.
//!
//! ```text
//! archive, stream, tar -> pickle, places of storages -> choose the model -> name its tensors -> hold views against storages
//! ```
//!
//! Non-goals: other formats, and what a tensor means.

mod agree;
mod archive;
mod bytes;
mod gathered;
mod opened;
mod pickle;
mod read;
mod stored;
mod stream;
mod tar;
mod zip;

pub use gathered::Gathered;
pub use read::{TensorPlace, TorchModel, read};
