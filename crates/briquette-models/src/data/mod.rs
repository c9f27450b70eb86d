//! Reading what models are evaluated on.

mod images;

pub use images::ImageInput;
