//! Decisions of pruning and quantization, their effect on weights, and their encoding.
//!
//! A method takes rows of weights and returns a [`Decision`]. This crate defines the effect of a decision on
//! the weights ([`fake_quantize`]) and the storage of the result in fewer bytes ([`encode`], [`decode`]). These
//! functions agree bit for bit: `decode(encode(w, d)) == fake_quantize(w, d)`, and `fake_quantize` is
//! idempotent.
//!
//! Non-goals: making decisions (`briquette-methods`), files (`briquette-formats`), burn.
//!
//! ```
//! use briquette_core::{Affine, Decision, Grid, Grouping, Mask, QuantParams, decode, encode, fake_quantize};
//!
//! let weights = [1.0_f32, -0.25, 0.5, -1.0];
//! let decision = Decision {
//!     mask: Some(Mask::from_fn(2, 2, |row, col| (row, col) != (0, 1))),
//!     quant: Some(QuantParams::new(Grid::INT8, Grouping::Row, 2, vec![Affine::symmetric(1.0 / 127.0); 2])),
//! };
//! let encoded = encode(&weights, 2, 2, &decision);
//! assert_eq!(decode(&encoded), fake_quantize(&weights, 2, 2, &decision));
//! assert_eq!(decode(&encoded)[1], 0.0);
//! ```

pub mod affine;
pub mod aligned_bytes;
pub mod bits;
pub mod block;
pub mod code_blocks;
pub mod coder;
pub mod coding;
pub mod confined;
pub mod decision;
pub mod dtype;
pub mod encoded;
pub mod entropy;
pub mod error;
pub mod grid;
pub mod grouping;
pub mod hash;
pub mod inputs;
pub mod log_scale;
pub mod mask;
pub mod memory;
pub mod pattern;
pub mod printable;
pub mod quant_params;
pub mod random;
pub mod role;
pub mod rows;
pub mod shape;
pub mod shown_path;
pub mod simd;
pub mod stats;
pub mod threads;

pub use affine::Affine;
pub use coding::{Coding, Storage};
pub use decision::{Decision, fake_quantize};
pub use dtype::DType;
pub use encoded::{Encoded, decode, encode};
pub use error::{Error, ErrorKind, Remedy, Result};
pub use grid::{Grid, GridKind};
pub use grouping::Grouping;
pub use hash::{BlockHasher, Hash128, TensorHasher};
pub use inputs::{InputStats, InputView};
pub use mask::Mask;
pub use pattern::Patterns;
pub use quant_params::{ColumnScales, QuantParams};
pub use role::{Role, RoleRule};
pub use rows::{OutputAxis, Rows};
pub use shape::Shape;
pub use shown_path::shown_path;
pub use stats::ErrorStats;
