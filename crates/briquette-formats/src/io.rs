//! Files of models: read inside their directory and held against sums; written whole or not at all.
//!
//! [`InputFile`] reads at explicit offsets and knows whether it was changed; [`ModelDir`] opens what a model's directory holds and
//! nothing outside of it; [`Draft`] is an output directory in the making. The only crate that opens a file for writing.
//!
//! Non-goals: what is in a file. The formats are `briquette-formats`' and `briquette-formats`'s.

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

pub use draft::{Draft, DraftFile};
pub use file::InputFile;
pub use left_out::LeftOut;
pub use model_dir::ModelDir;
pub use tensor::{TensorInfo, TensorSource};
