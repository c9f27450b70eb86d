//! What we are willing to believe of a file.

/// Largest safetensors header: the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Largest JSON file read whole: a config, an index, a manifest.
pub const MAX_JSON_BYTES: u64 = 256 << 20;
/// Largest rank of a tensor.
pub const MAX_RANK: usize = 64;
/// Largest file that is copied along with a model.
pub const MAX_COMPANION_BYTES: u64 = 128 << 20;
/// Largest shard we write before starting another.
pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;
