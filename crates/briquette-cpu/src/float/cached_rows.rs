//! The key-value cache.

use half::f16;
use std::fmt;
use std::str::FromStr;

/// Tokens for which memory is reserved in advance.
const TOKENS_AHEAD: usize = 32;

/// The element type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// Unchanged, 4 bytes each.
    #[default]
    F32,
    /// 2 bytes each.
    F16,
    /// 1 byte each, with a scale for each head of a token.
    Int8,
}

impl CacheType {
    /// All types, for help texts.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Int8];

    /// Returns the name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("found {name:?}, expected f32, f16 or int8"))
    }
}

/// Tokens whose keys are interleaved.
pub(crate) const BLOCK: usize = super::lanes::N_LANES;

/// Cached keys or values of several heads, for each processed token.
#[derive(Debug, Clone)]
pub struct CachedRows {
    pub(crate) n_heads: usize,
    pub(crate) width: usize,
    n_tokens: usize,
    order: CacheOrder,
    pub(crate) kept: CachedValues,
}

/// The memory layout: blocks of 16 tokens, head by head, in the order in which attention reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CacheOrder {
    /// `[tokens / 16, heads, 16, width]`.
    Values,
    /// `[tokens / 16, heads, width, 16]`.
    Keys,
}

#[derive(Debug, Clone)]
pub(crate) enum CachedValues {
    F32(Vec<f32>),
    /// Bits of f16.
    F16(Vec<u16>),
    /// Codes, and the scale of each head of each token in the same order.
    Int8(Vec<i8>, Vec<f32>),
}

impl CachedRows {
    /// Returns an empty cache of keys with `n_heads` heads of `width` elements.
    pub const fn keys(kind: CacheType, n_heads: usize, width: usize) -> Self {
        Self::new(kind, n_heads, width, CacheOrder::Keys)
    }

    /// Returns an empty cache of values.
    pub const fn values(kind: CacheType, n_heads: usize, width: usize) -> Self {
        Self::new(kind, n_heads, width, CacheOrder::Values)
    }

    const fn new(kind: CacheType, n_heads: usize, width: usize, order: CacheOrder) -> Self {
        let kept = match kind {
            CacheType::F32 => CachedValues::F32(Vec::new()),
            CacheType::F16 => CachedValues::F16(Vec::new()),
            CacheType::Int8 => CachedValues::Int8(Vec::new(), Vec::new()),
        };
        Self { n_heads, width, n_tokens: 0, order, kept }
    }

    /// Appends the rows of new tokens.
    ///
    /// For int8, `code = round(x / scale)` with `scale = max |x| / 127` per head. A NaN or infinity makes its
    /// head NaN.
    ///
    /// # Panics
    /// If `rows` is not whole rows.
    pub fn push(&mut self, rows: &[f32]) {
        let n_cols = self.n_heads * self.width;
        assert!(rows.len().is_multiple_of(n_cols.max(1)), "{} values in rows of {n_cols}", rows.len());
        if rows.is_empty() {
            return;
        }
        self.grow(self.n_tokens + rows.len() / n_cols);
        for row in rows.chunks_exact(n_cols) {
            for (head, values) in row.chunks_exact(self.width).enumerate() {
                self.put(head, values);
            }
            self.n_tokens += 1;
        }
    }

    /// Allocates memory for `n_tokens` tokens in all.
    fn grow(&mut self, n_tokens: usize) {
        let n_places = n_tokens.next_multiple_of(BLOCK);
        let (n_heads, n_cols) = (self.n_heads, self.n_heads * self.width);
        match &mut self.kept {
            CachedValues::F32(values) => resize(values, n_places, n_cols),
            CachedValues::F16(values) => resize(values, n_places, n_cols),
            CachedValues::Int8(codes, scales) => {
                resize(codes, n_places, n_cols);
                resize(scales, n_places, n_heads);
            }
        }
    }

    /// Writes one head of the next token.
    fn put(&mut self, head: usize, row: &[f32]) {
        let (block, lane) = (self.n_tokens / BLOCK * self.n_heads + head, self.n_tokens % BLOCK);
        // The index of the scale, the index of the first element, and the distance between elements.
        let at = block * BLOCK + lane;
        let (first, step) = match self.order {
            CacheOrder::Values => (at * self.width, 1),
            CacheOrder::Keys => (block * BLOCK * self.width + lane, BLOCK),
        };
        match &mut self.kept {
            CachedValues::F32(values) => {
                values[first..].iter_mut().step_by(step).zip(row).for_each(|(kept, value)| *kept = *value);
            }
            CachedValues::F16(values) => {
                let kept = values[first..].iter_mut().step_by(step).zip(row);
                kept.for_each(|(kept, value)| *kept = f16::from_f32(*value).to_bits());
            }
            CachedValues::Int8(codes, scales) => {
                let (scale, inverse) = scale_of(row);
                let kept = codes[first..].iter_mut().step_by(step).zip(row);
                kept.for_each(|(kept, value)| *kept = (value * inverse).round_ties_even() as i8);
                scales[at] = scale;
            }
        }
    }

    /// Returns the number of cached tokens.
    pub const fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Returns the size of the rows in memory in bytes.
    pub fn n_bytes(&self) -> usize {
        match &self.kept {
            CachedValues::F32(values) => 4 * values.capacity(),
            CachedValues::F16(values) => 2 * values.capacity(),
            CachedValues::Int8(codes, scales) => codes.capacity() + 4 * scales.capacity(),
        }
    }

    pub(crate) fn is_keys(&self) -> bool {
        self.order == CacheOrder::Keys
    }
}

/// Resizes to `n_rows` rows, filled with zeros. Reserves memory for some tokens or an eighth more; doubling
/// could waste half of it.
fn resize<T: Copy + Default>(values: &mut Vec<T>, n_rows: usize, n_cols: usize) {
    let n = n_rows * n_cols;
    if values.capacity() < n {
        values.reserve_exact(n - values.len() + (values.len() / 8).max(TOKENS_AHEAD * n_cols));
    }
    values.resize(n, T::default());
}

/// Returns the scale of a head and the factor of its values; NaN and 0 if a value is not finite.
fn scale_of(head: &[f32]) -> (f32, f32) {
    let largest = head.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    match head.iter().all(|value| value.is_finite()) {
        false => (f32::NAN, 0.0),
        true if largest == 0.0 => (0.0, 0.0),
        true => (largest / 127.0, 127.0 / largest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_rows_have_the_size_of_their_type() {
        for (kind, of_token) in [(CacheType::F32, 4 * 128), (CacheType::F16, 2 * 128), (CacheType::Int8, 128 + 4 * 2)] {
            for mut rows in [CachedRows::keys(kind, 2, 64), CachedRows::values(kind, 2, 64)] {
                rows.push(&[1.0; 128]);
                rows.push(&[2.0; 128 * 999]);
                let room = rows.n_bytes() / of_token;
                assert!(rows.n_tokens() == 1000 && (1000..1130).contains(&room), "{kind} {room}");
            }
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("int4".parse::<CacheType>().unwrap_err().contains("expected f32, f16 or int8"));
    }
}
