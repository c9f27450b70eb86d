//! Layouts of codes and matrices in ONNX.

use briquette_core::rows::transpose_bytes;

/// Shifts codes by half of their range, so that they have no sign, and packs 4-bit codes in pairs.
pub(super) fn packed(codes: &[i8], bits: u8) -> Vec<u8> {
    match bits {
        4 => {
            let unsigned = |code: &i8| (i16::from(*code) + 8) as u8 & 0x0f;
            let pair = |pair: &[i8]| unsigned(&pair[0]) | pair.get(1).map_or(0, |high| unsigned(high) << 4);
            codes.chunks(2).map(pair).collect()
        }
        _ => codes.iter().map(|code| (i16::from(*code) + 128) as u8).collect(),
    }
}

/// Packs 4-bit codes with a sign in pairs, the first in the low bits.
pub(super) fn paired(codes: &[i8], bits: u8) -> Vec<u8> {
    match bits {
        4 => {
            let low = |code: &i8| code.cast_unsigned() & 0x0f;
            codes.chunks(2).map(|pair| low(&pair[0]) | pair.get(1).map_or(0, |high| low(high) << 4)).collect()
        }
        _ => bytemuck::cast_slice(codes).to_vec(),
    }
}

/// Transposes a matrix of this shape.
pub(super) fn transposed(bytes: &[u8], shape: &[usize], width: usize) -> Vec<u8> {
    let mut out = vec![0; bytes.len()];
    let [rows, cols] = [shape[0], shape.get(1).copied().unwrap_or(1)];
    transpose_bytes(bytes, &mut out, cols, rows, width);
    out
}

/// Transposes a matrix of floats of this shape.
pub(super) fn transposed_values(values: &[f32], shape: &[usize]) -> Vec<f32> {
    let bytes = transposed(bytemuck::cast_slice(values), shape, size_of::<f32>());
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lose_their_sign_and_the_first_has_the_low_bits() {
        assert_eq!(packed(&[-8, 7, 0, -1], 4), [0xf0, 0x78]);
        assert_eq!(packed(&[3], 4), [0x0b]);
        assert_eq!((paired(&[-8, 7, -1], 4), paired(&[-2], 8)), (vec![0x78, 0x0f], vec![0xfe]));
        assert_eq!(packed(&[-128, 0, 127], 8), [0, 128, 255]);
    }

    #[test]
    fn a_matrix_is_transposed() {
        assert_eq!(transposed(&[1, 2, 3, 4, 5, 6], &[2, 3], 1), [1, 4, 2, 5, 3, 6]);
        assert_eq!(transposed(&[1, 2, 3, 4, 5, 6, 7, 8], &[2, 2], 2), [1, 2, 5, 6, 3, 4, 7, 8]);
    }
}
