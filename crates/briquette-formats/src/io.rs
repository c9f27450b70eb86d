//! Reads and writes the files of models, inside their directory and with checksums.
//!
//! [`InputFile`] reads at explicit offsets and detects changes. [`ModelDir`] opens files of a model's directory
//! and nothing outside of it. [`Draft`] is an output directory that is published as a whole or not at all. Only
//! this module opens files for writing.

mod ahead;
pub mod contained;
pub mod crc;
pub mod draft;
pub mod file;
mod left_out;
pub mod limits;
pub mod model_dir;
pub mod names;
pub mod paths;
pub mod presence;
pub mod sums;
pub mod tensor;
pub(crate) mod tensor_name;

pub use draft::{Draft, DraftFile};
pub use file::InputFile;
pub use left_out::LeftOut;
pub use model_dir::ModelDir;
pub use tensor::{TensorInfo, TensorSource};
pub use tensor_name::TensorName;
