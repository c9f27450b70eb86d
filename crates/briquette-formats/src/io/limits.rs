//! Limits on the sizes that are accepted from files.

/// Largest safetensors header: the limit of the format.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Largest JSON file that is read as a whole, such as an index.
pub const MAX_JSON_BYTES: u64 = 256 << 20;
/// Largest manifest or report: for a million tensors, they have half a gigabyte.
pub const MAX_OWN_BYTES: u64 = 1 << 30;
/// Largest `SHA256SUMS` or `config.json`.
pub const MAX_SMALL_BYTES: u64 = 16 << 20;
/// Largest JSON value that is stored as parsed, such as the recipe in a manifest or a `quantization_config`.
///
/// In memory, a parsed value can take a hundred times as many bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Most keys of a `config.json`.
pub const MAX_CONFIG_KEYS: usize = 10_000;
/// Most free-form strings of a header.
pub const MAX_METADATA: usize = 1 << 16;
/// Largest rank of a tensor.
pub use briquette_core::shape::MAX_RANK;
/// Largest file that is copied with a model.
pub const MAX_COMPANION_BYTES: u64 = 128 << 20;
/// Largest shard that Briquette writes.
pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;
