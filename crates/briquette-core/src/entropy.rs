//! Entropy coding of codes: each takes nearly as many bits as its frequency says.
//!
//! Range asymmetric numeral systems (J. Duda, arXiv 1311.2540) with 12 bits of probability, 32 states of 32 bits that take turns, and 16-bit
//! words, as `rANS 32x16` of J. Bonfield's htscodecs has them: a state is at least 2^15, a symbol of frequency `f` that starts at slot `c`
//! takes `x` to `⌊x / f⌋·2^12 + x mod f + c`, and a state that would pass 2^31 hands its low 16 bits to the stream first.
//!
//! A [`SymbolTable`] has the frequencies of bytes, in all 4,096. A block is the 32 states, each as 4 bytes, and the words that a decoder reads, in
//! the order in which it reads them; all little-endian. Symbol `i` belongs to state `i mod 32`. After the last symbol every state is 2^15 and no
//! word is left, which a decoder checks.
//!
//! [`write_block`] makes of codes what files have: the table of the block before it, or the codes packed, where that is no longer.
//!
//! Non-goals: where blocks lie in files.
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

pub use block::{counts_of, read_block, write_block};
pub use decode::{BlockDecoder, Instructions};
pub use encode::encode;
pub use table::SymbolTable;

/// Bits of a probability.
const PRECISION: u32 = 12;
/// What frequencies sum to.
const SLOTS: usize = 1 << PRECISION;
/// States that take turns.
const LANES: usize = 32;
/// The least state.
const LEAST: u32 = 1 << 15;
/// Bytes of the states at the head of a block.
const HEAD: usize = 4 * LANES;
