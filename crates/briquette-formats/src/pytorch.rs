//! Reads PyTorch files without running anything: all formats of `torch.save`, and the weights of TorchScript
//! programs.
//!
//! A pickle may only use names of a short list, and every length is checked against the file. For archives of
//! PyTorch 1.6 and newer without a program, `pytorch-reader` must find the same tensors.
//!
//! ```text
//! archive, stream, tar -> pickle, storage offsets -> choose the model -> name its tensors -> check views against storages
//! ```
//!
//! Non-goals: other formats, and the meaning of tensors.

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
