//! Deterministic pseudorandom numbers from a seed.

/// Returns a pseudorandom number for a seed and an index.
///
/// Source: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
pub const fn mixed(seed: u64, place: u64) -> u64 {
    let z = seed.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a pseudorandom number in `[0, 1)` for a seed and an index.
pub const fn uniform(seed: u64, place: u64) -> f32 {
    (mixed(seed, place) >> 40) as f32 / (1_u32 << 24) as f32
}
