//! What we are willing to believe of a file.

/// Largest safetensors header: the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Largest JSON file read whole: a config, an index.
pub const MAX_JSON_BYTES: u64 = 256 << 20;
/// Largest manifest, and largest report: of a million tensors they have half a gigabyte.
pub const MAX_OWN_BYTES: u64 = 1 << 30;
/// Largest `SHA256SUMS`, and largest `config.json`.
pub const MAX_SMALL_BYTES: u64 = 16 << 20;
/// Largest value of a JSON file that is kept as it is: a recipe in a manifest, a `quantization_config`. As values in memory it
/// can take a hundred times that.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Most keys of a `config.json`.
pub const MAX_CONFIG_KEYS: usize = 10_000;
/// Most free-form strings of a header.
pub const MAX_METADATA: usize = 1 << 16;
/// Largest rank of a tensor.
pub use briquette_core::shape::MAX_RANK;
/// Largest file that is copied along with a model.
pub const MAX_COMPANION_BYTES: u64 = 128 << 20;
/// Largest shard we write before starting another.
pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;
