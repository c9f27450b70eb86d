//! Frequencies of bytes in units of 1/4,096.

use crate::entropy::{PRECISION, SLOTS};
use crate::{Error, Result};

/// The largest frequency of a symbol: with all 4,096, a state would never grow.
const MOST: u16 = SLOTS as u16 - 1;

/// Frequencies of bytes with sum 4,096, at least two of them above zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolTable {
    frequencies: [u16; 256],
}

impl SymbolTable {
    /// Returns the frequencies that code symbols with these counts in the fewest bits.
    ///
    /// Every symbol with a count above zero has a frequency of at least 1.
    pub fn of_counts(counts: &[u64; 256]) -> Self {
        let total: u64 = counts.iter().sum();
        let share = |count: u64| (u128::from(count) * SLOTS as u128 / u128::from(total.max(1))) as u16;
        let mut frequencies = counts.map(|count| if count == 0 { 0 } else { share(count).clamp(1, MOST) });
        // With one symbol or none, the neighbour towards code 0 takes the rest.
        let mut all = (0..256).filter(|&symbol| counts[symbol] > 0);
        if let (first, None) = (all.next().unwrap_or(0), all.next()) {
            let beside = if first as u8 as i8 > 0 { first - 1 } else { (first + 1) % 256 };
            (frequencies[first], frequencies[beside]) = (MOST, 1);
        }
        let mut sum: usize = frequencies.iter().map(|&frequency| usize::from(frequency)).sum();
        while sum != SLOTS {
            let is_short = sum < SLOTS;
            let next = best(counts, &frequencies, is_short);
            frequencies[next] = if is_short { frequencies[next] + 1 } else { frequencies[next] - 1 };
            sum = if is_short { sum + 1 } else { sum - 1 };
        }
        Self { frequencies }
    }

    /// Returns the bits that symbols with these counts take; infinite if a symbol has frequency zero.
    pub fn bits_of(&self, counts: &[u64; 256]) -> f64 {
        let bits = |(&count, &frequency): (&u64, &u16)| match count {
            0 => 0.0,
            _ => count as f64 * (f64::from(PRECISION) - f64::from(frequency).log2()),
        };
        counts.iter().zip(&self.frequencies).map(bits).sum()
    }

    /// Returns whether all symbols with a frequency fit in codes of `n_bits`.
    pub(crate) fn fits(&self, n_bits: u8) -> bool {
        let is_code = |code: i8| i16::from(code) >= -(1 << (n_bits - 1)) && i16::from(code) < 1 << (n_bits - 1);
        (i8::MIN..=i8::MAX).all(|code| self.frequencies[place(code)] == 0 || is_code(code))
    }

    /// Returns the frequency of each symbol, in units of 1/4,096.
    pub fn frequencies(&self) -> &[u16; 256] {
        &self.frequencies
    }

    /// Returns the first slot of each symbol.
    pub(crate) fn starts(&self) -> [u16; 256] {
        let mut start = 0;
        self.frequencies.map(|frequency| {
            start += frequency;
            start - frequency
        })
    }

    /// Appends the table in its file format.
    ///
    /// First the smallest and the largest symbol with a frequency, as numbers from -128 to 127. Then the
    /// frequencies from one to the other: a frequency below 128 is one byte; others are their low 7 bits with
    /// the highest bit set, followed by the rest.
    pub fn write(&self, out: &mut Vec<u8>) {
        let comes = |&code: &i8| self.frequencies[place(code)] > 0;
        let all = || i8::MIN..=i8::MAX;
        let (first, last) = (all().find(comes).unwrap_or(0), all().rfind(comes).unwrap_or(0));
        out.extend([first as u8, last as u8]);
        for code in first..=last {
            let frequency = self.frequencies[place(code)];
            match frequency {
                0..128 => out.push(frequency as u8),
                _ => out.extend([frequency as u8 | 0x80, (frequency >> 7) as u8]),
            }
        }
    }

    /// Reads a table from [`write`](Self::write) and returns it with its length in bytes.
    ///
    /// # Errors
    /// Input: the table is truncated, or its frequencies do not sum to 4,096.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize)> {
        let damaged = |what: &str| Error::input(format!("the table of frequencies {what}; the file is damaged"));
        let mut rest = bytes.iter().copied();
        let mut next = || rest.next().ok_or_else(|| damaged("is cut off"));
        let (first, last) = (next()? as i8, next()? as i8);
        if first >= last {
            return Err(damaged("has its symbols out of order"));
        }
        let mut frequencies = [0; 256];
        for code in first..=last {
            let frequency = &mut frequencies[place(code)];
            *frequency = u16::from(next()?);
            if *frequency >= 0x80 {
                *frequency = *frequency & 0x7f | u16::from(next()?) << 7;
            }
        }
        let sum: usize = frequencies.iter().map(|&frequency| usize::from(frequency)).sum();
        if sum != SLOTS || frequencies.contains(&(SLOTS as u16)) {
            return Err(damaged(&format!("sums to {sum}, expected {SLOTS} with at least two symbols")));
        }
        Ok((Self { frequencies }, bytes.len() - rest.len()))
    }
}

/// Returns the symbol of a code: its byte.
fn place(code: i8) -> usize {
    usize::from(code as u8)
}

/// Returns the symbol whose frequency to change by one.
///
/// With `up`, it is the one that saves the most bits; otherwise the one that costs the fewest.
fn best(counts: &[u64; 256], frequencies: &[u16; 256], up: bool) -> usize {
    let gain = |symbol: usize| {
        let (count, frequency) = (counts[symbol] as f64, f64::from(frequencies[symbol]));
        if up { count * ((frequency + 1.0) / frequency).log2() } else { count * ((frequency - 1.0) / frequency).log2() }
    };
    let can = |&symbol: &usize| if up { (1..MOST).contains(&frequencies[symbol]) } else { frequencies[symbol] > 1 };
    let better = |a: &usize, b: &usize| gain(*a).total_cmp(&gain(*b)).then(b.cmp(a));
    (0..256).filter(can).max_by(better).unwrap_or(0)
}
