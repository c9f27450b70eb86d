//! Scales that are powers of `2^(1/8)`, stored as one byte each.
//!
//! Byte `u` means the scale `2^((u - 192) / 8)`: from `2^-24` to `2^7.875`. In f32 it is `ROOTS[u mod 8] ·
//! 2^(⌊u / 8⌋ - 24)`, which is exact apart from the rounding of the eight roots. Doubling a scale adds 8 to its
//! byte.

/// The f32 values nearest to `2^(j/8)`.
const ROOTS: [f32; 8] = [
    1.0,
    f32::from_bits(0x3f8b_95c2),
    f32::from_bits(0x3f98_37f0),
    f32::from_bits(0x3fa5_fed7),
    f32::from_bits(0x3fb5_04f3),
    f32::from_bits(0x3fc5_672a),
    f32::from_bits(0x3fd7_44fd),
    f32::from_bits(0x3fea_c0c7),
];

/// The byte of scale 1.
const ONE: i32 = 192;

/// Returns `2^(eighths/8)` in f32. Exponents beyond the normal numbers are clamped.
pub fn of_eighths(eighths: i32) -> f32 {
    let exponent = eighths.div_euclid(8).clamp(-126, 126);
    // The product with a power of two is exact.
    ROOTS[eighths.rem_euclid(8) as usize] * f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Returns the scale of a byte.
pub fn of_byte(byte: u8) -> f32 {
    of_eighths(i32::from(byte) - ONE)
}

/// Returns the eighths of the power of two nearest to a positive scale, by ratio.
pub fn nearest_eighths(scale: f32) -> i32 {
    (8.0 * f64::from(scale).log2()).round() as i32
}

/// Returns the byte whose scale is nearest to a positive scale, by ratio.
pub fn nearest_byte(scale: f32) -> u8 {
    nearest_eighths(scale).saturating_add(ONE).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_the_nearest_of_its_scale() {
        for byte in 0..=255_u8 {
            let scale = of_byte(byte);
            let exact = f64::exp2((f64::from(byte) - 192.0) / 8.0);
            assert!((f64::from(scale) / exact - 1.0).abs() < 6e-8, "{byte}: {scale}");
            assert_eq!(nearest_byte(scale), byte);
            assert_eq!((nearest_byte(scale * 1.04), nearest_byte(scale / 1.04)), (byte, byte));
            if let Some(next) = byte.checked_add(8) {
                assert_eq!(of_byte(next).to_bits(), (2.0 * scale).to_bits());
            }
        }
        assert_eq!((of_byte(0), of_byte(192)), (2.0_f32.powi(-24), 1.0));
    }

    #[test]
    fn scales_beyond_a_byte_are_clamped() {
        assert_eq!((nearest_byte(1e-30), nearest_byte(1e30)), (0, 255));
        assert_eq!(nearest_byte(f32::MIN_POSITIVE / 8.0), 0);
        assert!(of_eighths(i32::MIN).is_normal() && of_eighths(i32::MAX).is_normal());
    }
}
