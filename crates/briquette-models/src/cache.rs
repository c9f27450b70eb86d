//! Key-value cache of a decoder.

use briquette_cpu::float::{CacheType, CachedRows};
use briquette_ops::fused::on_gpu;
use burn::tensor::{DType, Device, Tensor};

/// Keys or values of one sequence and layer.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    /// In the memory of the CPU.
    Host(CachedRows),
    /// On the device of the network.
    Device(Box<DeviceRows>),
}

/// Keys or values in the memory of a device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceRows {
    pub(crate) n_heads: usize,
    dtype: DType,
    /// `[1, heads, tokens, width]`, once there are tokens.
    pub(crate) rows: Option<Tensor<4>>,
}

impl DeviceRows {
    /// Appends tokens `[1, heads, tokens, width]`.
    pub(crate) fn push(&mut self, x: Tensor<4>) {
        let new = x.cast(self.dtype);
        self.rows = Some(match self.rows.take() {
            Some(old) => Tensor::cat(vec![old, new], 2),
            None => new,
        });
    }
}

impl Kept {
    pub(crate) fn n_tokens(&self) -> usize {
        match self {
            Self::Host(rows) => rows.n_tokens(),
            Self::Device(rows) => rows.rows.as_ref().map_or(0, |rows| rows.dims()[2]),
        }
    }

    fn n_bytes(&self) -> usize {
        match self {
            Self::Host(rows) => rows.n_bytes(),
            Self::Device(kept) => {
                kept.rows.as_ref().map_or(0, |rows| rows.dims().iter().product::<usize>() * kept.dtype.size())
            }
        }
    }
}

/// Key-value cache of one sequence, for all layers.
#[derive(Debug, Clone)]
pub struct KeyValues {
    /// Keys, then values.
    pub(crate) layers: Vec<[Kept; 2]>,
    /// The first layer whose keys are those of earlier tokens; layers before it belong to an encoder.
    first: usize,
}

impl KeyValues {
    /// Creates an empty cache for a network on a device, given the number of key heads and their width for each layer.
    ///
    /// On a GPU, floats stay there; int8 and the CPU's own are in the memory of the CPU.
    pub(crate) fn new(kind: CacheType, device: &Device, layers: impl Iterator<Item = [usize; 2]>) -> Self {
        let dtype = match kind {
            CacheType::F32 => Some(DType::F32),
            CacheType::F16 => Some(DType::F16),
            CacheType::Int8 => None,
        };
        let dtype = dtype.filter(|_| on_gpu(&Tensor::<1>::empty([1], device)));
        let of_layer = |[n_heads, width]: [usize; 2]| match dtype {
            Some(dtype) => [(); 2].map(|()| Kept::Device(Box::new(DeviceRows { n_heads, dtype, rows: None }))),
            None => [CachedRows::keys(kind, n_heads, width), CachedRows::values(kind, n_heads, width)].map(Kept::Host),
        };
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
        self.layers.iter().flatten().map(Kept::n_bytes).sum()
    }
}
