//! Key-value cache of a decoder.

use briquette_cpu::float::{CacheType, CachedRows};
use briquette_ops::fused::on_gpu;
use burn::tensor::{DType, Device, Int, Tensor};

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
    pub(crate) n_tokens: usize,
    dtype: DType,
    /// `[1, heads, capacity, width]`, once there are tokens.
    rows: Option<Tensor<4>>,
}

/// Tokens by which the capacity of [`DeviceRows`] grows at least.
const ROOM: usize = 64;

impl DeviceRows {
    /// Appends tokens `[1, heads, tokens, width]`.
    pub(crate) fn push(&mut self, x: Tensor<4>) {
        let ([_, n_heads, n_new, width], before) = (x.dims(), self.n_tokens);
        self.n_tokens += n_new;
        let capacity = self.rows.as_ref().map_or(0, |rows| rows.dims()[2]);
        let rows = match self.rows.take() {
            Some(rows) if self.n_tokens <= capacity => rows,
            old => {
                let capacity = self.n_tokens + (self.n_tokens / 4).max(ROOM);
                let empty = Tensor::zeros([1, n_heads, capacity, width], (&x.device(), self.dtype));
                match old {
                    Some(old) => empty.slice_assign([0..1, 0..n_heads, 0..before, 0..width], old.narrow(2, 0, before)),
                    None => empty,
                }
            }
        };
        let new = x.cast(self.dtype);
        self.rows = Some(rows.slice_assign([0..1, 0..n_heads, before..self.n_tokens, 0..width], new));
    }

    /// Returns `[1, heads, capacity, width]`, whose first tokens are those that were appended.
    ///
    /// # Panics
    /// If there are no tokens.
    pub(crate) fn with_room(self) -> Tensor<4> {
        self.rows.expect("tokens were appended")
    }

    /// Returns the tokens `[1, heads, tokens, width]`.
    ///
    /// # Panics
    /// If there are no tokens.
    pub(crate) fn tokens(self) -> Tensor<4> {
        let n = self.n_tokens;
        self.with_room().narrow(2, 0, n)
    }
}

impl Kept {
    pub(crate) fn n_tokens(&self) -> usize {
        match self {
            Self::Host(rows) => rows.n_tokens(),
            Self::Device(rows) => rows.n_tokens,
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

/// Key-value cache of one sequence, for all layers; of an ONNX model, the sequence itself.
#[derive(Debug, Clone)]
pub struct KeyValues {
    /// Keys, then values.
    pub(crate) layers: Vec<[Kept; 2]>,
    /// The first layer whose keys are those of earlier tokens; layers before it belong to an encoder.
    first: usize,
    /// Tokens `[1, tokens]` of a network that computes keys and values anew each time.
    tokens: Option<Tensor<2, Int>>,
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
            Some(dtype) => {
                [(); 2].map(|()| Kept::Device(Box::new(DeviceRows { n_heads, n_tokens: 0, dtype, rows: None })))
            }
            None => [CachedRows::keys(kind, n_heads, width), CachedRows::values(kind, n_heads, width)].map(Kept::Host),
        };
        Self { layers: layers.map(of_layer).collect(), first: 0, tokens: None }
    }

    /// Counts tokens by this layer: the first attention of a decoder to its own tokens.
    pub(crate) fn counted_by(self, layer: usize) -> Self {
        Self { first: layer, ..self }
    }

    /// Appends tokens `[1, n]` instead of their keys and values, and returns the whole sequence.
    pub(crate) fn append_tokens(&mut self, new: Tensor<2, Int>) -> Tensor<2, Int> {
        let all = match self.tokens.take() {
            Some(before) => Tensor::cat(vec![before, new], 1),
            None => new,
        };
        self.tokens.insert(all).clone()
    }

    /// Returns the number of cached tokens.
    pub fn n_tokens(&self) -> usize {
        match &self.tokens {
            Some(tokens) => tokens.dims()[1],
            None => self.layers.get(self.first).map_or(0, |[keys, _]| keys.n_tokens()),
        }
    }

    /// Returns the size of the cache in bytes.
    pub fn n_bytes(&self) -> usize {
        let of_tokens = self.tokens.as_ref().map_or(0, |tokens| tokens.dims()[1] * tokens.dtype().size());
        of_tokens + self.layers.iter().flatten().map(Kept::n_bytes).sum::<usize>()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use burn::tensor::Distribution;

    #[test]
    fn rows_with_room_are_the_tokens_that_were_appended() {
        let device = Device::flex();
        let mut kept = DeviceRows { n_heads: 2, n_tokens: 0, dtype: DType::F32, rows: None };
        let mut all: Option<Tensor<4>> = None;
        // The capacity grows at the first, the third and the last.
        for n in [3, 60, 5, 1, 1, 400] {
            let new = Tensor::random([1, 2, n, 4], Distribution::Default, &device);
            let before = (kept.clone(), all.clone());
            kept.push(new.clone());
            all = Some(all.map_or(new.clone(), |all| Tensor::cat(vec![all, new], 2)));
            let expected = all.clone().unwrap();
            assert_eq!(kept.n_tokens, expected.dims()[2]);
            assert_eq!(kept.clone().tokens().into_data(), expected.into_data());
            if let (copy, Some(earlier)) = before {
                assert_eq!(copy.tokens().into_data(), earlier.into_data(), "a copy keeps its tokens");
            }
        }
        assert!(kept.with_room().dims()[2] > 470);
    }
}
