//! Key-value cache of a decoder.

use briquette_cpu::float::{CacheType, CachedRows};

/// Key-value cache of one sequence, for all layers.
#[derive(Debug, Clone)]
pub struct KeyValues {
    /// Keys, then values.
    pub(crate) layers: Vec<[CachedRows; 2]>,
    /// The first layer whose keys are those of earlier tokens; layers before it belong to an encoder.
    first: usize,
}

impl KeyValues {
    /// Creates an empty cache, given the number of key heads and their width for each layer.
    pub(crate) fn new(kind: CacheType, layers: impl Iterator<Item = [usize; 2]>) -> Self {
        let of_layer = |[n, width]: [usize; 2]| [CachedRows::keys(kind, n, width), CachedRows::values(kind, n, width)];
        Self { layers: layers.map(of_layer).collect(), first: 0 }
    }

    /// Counts tokens by this layer: the first attention of a decoder to its own tokens.
    pub(crate) fn counted_by(self, layer: usize) -> Self {
        Self { first: layer, ..self }
    }

    /// Returns the number of cached tokens.
    pub fn n_tokens(&self) -> usize {
        self.layers.get(self.first).map_or(0, |[keys, _]| keys.n_tokens())
    }

    /// Returns the size of the cache in bytes.
    pub fn n_bytes(&self) -> usize {
        self.layers.iter().flatten().map(CachedRows::n_bytes).sum()
    }
}
