//! Predicts the bytes of entropy-coded blocks from counts of their codes.

/// Bytes of a block besides its codes and frequencies: states, the first and the last code, and its end.
const OF_BLOCK: f64 = 128.0 + 2.0 + 8.0;
/// The ratio of the size of entropy-coded codes to their entropy.
const OVER_ENTROPY: f64 = 1.003;

/// Returns the bytes of `n_blocks` blocks with the same frequencies, if there are `share` times as many codes as
/// counted.
pub(super) fn block_bytes(counts: &[u64; 256], share: f64, n_blocks: f64) -> f64 {
    OVER_ENTROPY * share * entropy(counts) / 8.0 + n_blocks * (OF_BLOCK + table_bytes(counts))
}

/// Returns the size of a table of frequencies in bytes: one for each code from the first to the last, and one more for
/// each frequent code.
fn table_bytes(counts: &[u64; 256]) -> f64 {
    let n: u64 = counts.iter().sum();
    let of = |code: i8| counts[usize::from(code as u8)];
    let all = || (i8::MIN..=i8::MAX).filter(|&code| of(code) > 0);
    let span = all().next().zip(all().next_back()).map_or(0, |(first, last)| i32::from(last) - i32::from(first) + 1);
    f64::from(span) + all().filter(|&code| of(code) * 32 > n).count() as f64
}

/// Returns the bits of all symbols: `Σ n·log2(N/n)`.
fn entropy(counts: &[u64; 256]) -> f64 {
    let n = counts.iter().sum::<u64>() as f64;
    let bits = |&count: &u64| if count == 0 { 0.0 } else { count as f64 * (n / count as f64).log2() };
    counts.iter().map(bits).sum()
}
