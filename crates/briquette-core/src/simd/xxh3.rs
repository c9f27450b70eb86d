//! The long loop of xxh3, which adds whole blocks to eight accumulators.

/// Bytes of an xxh3 block; after each block the accumulators are scrambled.
pub const XXH3_BLOCK: usize = 1024;
/// Bytes of an xxh3 secret.
pub const XXH3_SECRET: usize = 192;

/// See [`xxh3_blocks`](super::xxh3_blocks).
pub fn xxh3_blocks(accumulators: &mut [u64; 8], blocks: &[u8], secret: &[u8; XXH3_SECRET]) {
    for block in blocks.as_chunks::<XXH3_BLOCK>().0 {
        for (i, stripe) in block.as_chunks::<64>().0.iter().enumerate() {
            xxh3_stripe(accumulators, stripe, &secret[8 * i..]);
        }
        for (accumulator, secret) in accumulators.iter_mut().zip(secret[128..].as_chunks::<8>().0) {
            let scrambled = *accumulator ^ *accumulator >> 47 ^ u64::from_le_bytes(*secret);
            *accumulator = scrambled.wrapping_mul(0x9e37_79b1);
        }
    }
}

/// Adds 64 bytes to the accumulators of xxh3.
///
/// Each accumulator gets the product of its own lane with the secret, and the value of its neighbour's lane.
pub fn xxh3_stripe(accumulators: &mut [u64; 8], stripe: &[u8; 64], secret: &[u8]) {
    let lanes = stripe.as_chunks::<8>().0.iter().zip(secret.as_chunks::<8>().0);
    for (i, (lane, secret)) in lanes.enumerate() {
        let lane = u64::from_le_bytes(*lane);
        let key = lane ^ u64::from_le_bytes(*secret);
        accumulators[i ^ 1] = accumulators[i ^ 1].wrapping_add(lane);
        accumulators[i] = accumulators[i].wrapping_add((key & 0xffff_ffff) * (key >> 32));
    }
}
