//! Keys or values that are kept from one token to the next.

use half::f16;
use std::fmt;
use std::str::FromStr;

/// Tokens for which there is room before there are any.
const TOKENS_AHEAD: usize = 32;

/// In what keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// As they are: 4 bytes each.
    #[default]
    F32,
    /// 2 bytes each.
    F16,
    /// 1 byte each, and a scale for each head of a token.
    Int8,
}

impl CacheType {
    /// Every type, for help texts.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Int8];

    /// Its name.
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

/// Rows of heads, `[tokens, heads, width]`, one for each token that was seen.
#[derive(Debug, Clone)]
pub struct CachedRows {
    pub(crate) n_heads: usize,
    pub(crate) width: usize,
    pub(crate) kept: KeptValues,
}

#[derive(Debug, Clone)]
pub(crate) enum KeptValues {
    F32(Vec<f32>),
    /// Bits of f16.
    F16(Vec<u16>),
    /// Codes, and the scale of each head of each token.
    Int8(Vec<i8>, Vec<f32>),
}

impl CachedRows {
    /// No rows yet.
    pub const fn new(kind: CacheType, n_heads: usize, width: usize) -> Self {
        let kept = match kind {
            CacheType::F32 => KeptValues::F32(Vec::new()),
            CacheType::F16 => KeptValues::F16(Vec::new()),
            CacheType::Int8 => KeptValues::Int8(Vec::new(), Vec::new()),
        };
        Self { n_heads, width, kept }
    }

    /// Adds rows of tokens. int8: `code = round(x / scale)` with `scale = max |x| / 127` over a head; what is not finite makes its head NaN.
    ///
    /// # Panics
    /// If they are not whole rows.
    pub fn push(&mut self, rows: &[f32]) {
        let n_cols = self.n_heads * self.width;
        assert!(rows.len().is_multiple_of(n_cols.max(1)), "{} values in rows of {n_cols}", rows.len());
        match &mut self.kept {
            KeptValues::F32(values) => {
                make_room(values, rows.len(), n_cols);
                values.extend_from_slice(rows);
            }
            KeptValues::F16(values) => {
                make_room(values, rows.len(), n_cols);
                values.extend(rows.iter().map(|value| f16::from_f32(*value).to_bits()));
            }
            KeptValues::Int8(codes, scales) => {
                make_room(codes, rows.len(), n_cols);
                make_room(scales, rows.len() / self.width.max(1), self.n_heads);
                for head in rows.chunks_exact(self.width.max(1)) {
                    let (scale, inverse) = scale_of(head);
                    codes.extend(head.iter().map(|value| (value * inverse).round_ties_even() as i8));
                    scales.push(scale);
                }
            }
        }
    }

    /// Tokens whose rows are kept.
    pub fn n_tokens(&self) -> usize {
        let n_values = match &self.kept {
            KeptValues::F32(values) => values.len(),
            KeptValues::F16(values) => values.len(),
            KeptValues::Int8(codes, _) => codes.len(),
        };
        n_values / (self.n_heads * self.width).max(1)
    }

    /// Bytes of memory that the rows take.
    pub fn n_bytes(&self) -> usize {
        match &self.kept {
            KeptValues::F32(values) => 4 * values.capacity(),
            KeptValues::F16(values) => 2 * values.capacity(),
            KeptValues::Int8(codes, scales) => codes.capacity() + 4 * scales.capacity(),
        }
    }
}

/// Reserves memory for `n` more values, and then some tokens or an eighth of all more: doubling would leave up to half of it unused.
fn make_room<T>(values: &mut Vec<T>, n: usize, n_cols: usize) {
    if values.capacity() < values.len() + n {
        values.reserve_exact(n + (values.len() / 8).max(TOKENS_AHEAD * n_cols));
    }
}

/// The scale of a head, and what its values are multiplied by: NaN and 0 where one of them is not finite.
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
    fn rows_take_as_many_bytes_as_their_type_says() {
        for (kind, of_token) in [(CacheType::F32, 4 * 128), (CacheType::F16, 2 * 128), (CacheType::Int8, 128 + 4 * 2)] {
            let mut rows = CachedRows::new(kind, 2, 64);
            rows.push(&[1.0; 128]);
            rows.push(&[2.0; 128 * 999]);
            let room = rows.n_bytes() / of_token;
            assert!(rows.n_tokens() == 1000 && (1000..1130).contains(&room), "{kind} {room}");
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("int4".parse::<CacheType>().unwrap_err().contains("expected f32, f16 or int8"));
    }
}
