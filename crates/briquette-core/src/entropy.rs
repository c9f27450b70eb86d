//! Entropy coding of integer codes in nearly as few bits as their frequencies allow.
//!
//! Range asymmetric numeral systems (J. Duda, arXiv 1311.2540) with 12-bit probabilities, 32 interleaved 32-bit
//! states and 16-bit words, as in `rANS 32x16` of J. Bonfield's htscodecs. A state is at least 2^15. A symbol
//! of frequency `f` that starts at slot `c` changes state `x` to `⌊x / f⌋·2^12 + x mod f + c`. If a state would
//! exceed 2^31, its low 16 bits are first written to the stream.
//!
//! A [`SymbolTable`] has the frequencies of bytes, with sum 4,096. A block consists of the 32 states of 4 bytes
//! each and the words in the order of decoding, all little-endian. Symbol `i` belongs to state `i mod 32`.
//! After the last symbol, a decoder checks that every state is 2^15 and that no word is left.
//!
//! [`write_block`] gives the file format: the symbol table before the block, or the packed codes if these are
//! not longer. [`write_trellis_block`] has two tables for codes on a [trellis].
//!
//! Non-goals: the position of blocks in files.
//!
//! ```
//! use briquette_core::entropy::{BlockDecoder, SymbolTable, encode};
//!
//! let symbols: Vec<u8> = (0..10_000_u32).map(|i| (i * i % 7) as u8).collect();
//! let mut counts = [0; 256];
//! symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
//! let table = SymbolTable::of_counts(&counts);
//! let mut block = Vec::new();
//! encode(&symbols, &table, &mut block);
//! assert!(block.len() < 3_000); // 2.0 bits each, and 128 bytes
//! let mut decoded = vec![0; symbols.len()];
//! BlockDecoder::new(&table).decode(&block, &mut decoded)?;
//! assert_eq!(decoded, symbols);
//! # Ok::<(), briquette_core::Error>(())
//! ```

mod block;
mod decode;
mod encode;
mod table;
pub mod trellis;

pub use block::{counts_of, read_block, read_trellis_block, write_block, write_trellis_block};
pub use decode::{BlockDecoder, Instructions};
pub use encode::{encode, encode_trellis};
pub use table::SymbolTable;

/// Bits of a probability.
const PRECISION: u32 = 12;
/// The sum of all frequencies.
const SLOTS: usize = 1 << PRECISION;
/// Number of interleaved states.
const LANES: usize = 32;
/// The smallest state.
const LEAST: u32 = 1 << 15;
/// Bytes of the states at the head of a block.
const HEAD: usize = 4 * LANES;
