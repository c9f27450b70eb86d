//! Keys and values of the tokens that a decoder has seen.

use briquette_cpu::float::{CacheType, CachedRows};

/// Keys and values of the tokens of one sequence, of every layer.
#[derive(Debug, Clone)]
pub struct KeyValues {
    /// Keys, then values.
    pub(crate) layers: Vec<[CachedRows; 2]>,
}

impl KeyValues {
    /// Of no tokens yet; heads of keys, and their width, for each layer.
    pub(crate) fn new(kind: CacheType, layers: impl Iterator<Item = [usize; 2]>) -> Self {
        let of_layer = |[n, width]: [usize; 2]| [CachedRows::keys(kind, n, width), CachedRows::values(kind, n, width)];
        Self { layers: layers.map(of_layer).collect() }
    }

    /// Tokens that were seen.
    pub fn n_tokens(&self) -> usize {
        self.layers.first().map_or(0, |[keys, _]| keys.n_tokens())
    }

    /// Bytes that they take.
    pub fn n_bytes(&self) -> usize {
        self.layers.iter().flatten().map(CachedRows::n_bytes).sum()
    }
}
