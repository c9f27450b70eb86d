//! The best path through a trellis (A. Viterbi, 1967).

use briquette_core::entropy::trellis::{N_STATES, next_state};

/// The largest magnitude of a code.
pub(super) const MOST: f32 = 127.0;
/// The cost of a state that no path reaches.
pub(super) const NEVER: f32 = 1e30;

/// The bits of each code, given its parity.
pub(super) struct BitCosts([f32; 256]);

impl BitCosts {
    /// Returns bits that grow with the magnitude, for a start.
    pub(super) fn rough() -> Self {
        Self(std::array::from_fn(|byte| 1.0 + 0.4 * f32::from((byte as u8 as i8).unsigned_abs())))
    }

    /// Returns `-log2` of the share of each code among those of its parity. Codes that do not occur count as a tenth.
    pub(super) fn of_counts(counts: &[u64; 256]) -> Self {
        let with_rest = counts.map(|count| count as f64 + 0.1);
        let totals = [0, 1].map(|parity| with_rest.iter().skip(parity).step_by(2).sum::<f64>());
        Self(std::array::from_fn(|byte| (totals[byte % 2] / with_rest[byte]).log2() as f32))
    }
}

/// Buffers for the paths of a column.
pub(super) struct TrellisPaths {
    /// For each row, the code of each subset: codes modulo 4.
    of_subsets: Vec<[i8; 4]>,
    /// For each row, a bit for each state after it: whether the state before is 4 or above.
    from_upper: Vec<u8>,
    codes: Vec<i8>,
}

impl TrellisPaths {
    pub(super) fn new(n_rows: usize) -> Self {
        Self { of_subsets: vec![[0; 4]; n_rows], from_upper: vec![0; n_rows], codes: vec![0; n_rows] }
    }

    /// Returns the codes of the last path.
    pub(super) fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// Finds the codes `n` on the trellis with the least `Σ (x − n)² + cost·bits(n)`, where codes of `is_zero` are 0.
    ///
    /// Each subset of codes modulo 4 has two candidates for a value: the nearest on both sides. Returns false if no path has
    /// these zeros.
    pub(super) fn find(
        &mut self,
        values: impl Iterator<Item = f32>,
        is_zero: impl Fn(usize) -> bool,
        bits: &BitCosts,
        cost: f32,
    ) -> bool {
        let mut costs = [NEVER; N_STATES];
        costs[0] = 0.0;
        for (row, value) in values.enumerate() {
            let mut of_subsets = [(NEVER, 0_i8); 4];
            if is_zero(row) {
                of_subsets[0].0 = 0.0;
            } else {
                let value = if value.is_nan() { 0.0 } else { value.clamp(-MOST, MOST) };
                of_subsets = std::array::from_fn(|subset| best_of_subset(value, subset as f32, bits, cost));
            }
            self.of_subsets[row] = of_subsets.map(|(_, code)| code);
            (costs, self.from_upper[row]) = stepped(&costs, &of_subsets.map(|(cost, _)| cost));
        }
        let mut state = (0..N_STATES).min_by(|&a, &b| costs[a].total_cmp(&costs[b])).unwrap_or(0);
        let has_path = costs[state] < NEVER;
        for (row, code) in self.codes.iter_mut().enumerate().rev() {
            let before = state >> 1 | usize::from(self.from_upper[row] >> state & 1) << 2;
            *code = self.of_subsets[row][SUBSETS[before][state & 1]];
            state = before;
        }
        has_path
    }
}

/// Returns the cost and the code of the best candidate of a subset for a value.
fn best_of_subset(value: f32, subset: f32, bits: &BitCosts, cost: f32) -> (f32, i8) {
    let below = ((value - subset) * 0.25).floor() * 4.0 + subset;
    let candidate = |code: f32| {
        let place = usize::from(code as i8 as u8);
        let error = value - code;
        (if code.abs() <= MOST { error * error + cost * bits.0[place] } else { NEVER }, code as i8)
    };
    let (low, high) = (candidate(below), candidate(below + 4.0));
    if low.0 <= high.0 { low } else { high }
}

/// The subset of the code that leads from a state to the next state with bit 0 clear or set.
pub(super) const SUBSETS: [[usize; 2]; N_STATES] = subsets();

const fn subsets() -> [[usize; 2]; N_STATES] {
    let mut all = [[0; 2]; N_STATES];
    let mut state = 0;
    while state < N_STATES {
        let mut pair = 0;
        while pair < 2 {
            let code = (state & 1) + 2 * pair;
            let next = next_state(state as u8, code as i8);
            all[state][next as usize & 1] = code;
            pair += 1;
        }
        state += 1;
    }
    all
}

/// Returns the least cost of each state after a code, and a bit for each: whether the state before is 4 or above.
fn stepped(costs: &[f32; N_STATES], of_subsets: &[f32; 4]) -> ([f32; N_STATES], u8) {
    let mut from_upper = 0;
    let after = std::array::from_fn(|state| {
        let (lower, upper) = (state >> 1, state >> 1 | 4);
        let cost = |before: usize| costs[before] + of_subsets[SUBSETS[before][state & 1]];
        let (lower, upper) = (cost(lower), cost(upper));
        from_upper |= u8::from(upper < lower) << state;
        if upper < lower { upper } else { lower }
    });
    (after, from_upper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::entropy::trellis::follows;
    use proptest::prelude::*;

    /// Returns the least cost by trying all codes from -5 to 5.
    fn exhaustive(values: &[f32], zeros: &[bool], bits: &BitCosts, cost: f32, state: u8) -> f32 {
        let Some((&value, rest)) = values.split_first() else { return 0.0 };
        let may_be = |code: &i8| (code & 1) as u8 == state & 1 && (*code == 0 || !zeros[0]);
        let of = |code: i8| {
            let own =
                if zeros[0] { 0.0 } else { (value - f32::from(code)).powi(2) + cost * bits.0[code as u8 as usize] };
            own + exhaustive(rest, &zeros[1..], bits, cost, next_state(state, code))
        };
        (-5..=5).filter(may_be).map(of).fold(NEVER, f32::min)
    }

    proptest! {
        #[test]
        fn paths_follow_the_trellis_with_the_least_cost(
            rows in prop::collection::vec((-2.5_f32..2.5, prop::bool::weighted(0.2)), 1..6), cost in 0.0_f32..1.0,
        ) {
            let (values, zeros): (Vec<f32>, Vec<bool>) = rows.into_iter().unzip();
            let bits = BitCosts::rough();
            let mut paths = TrellisPaths::new(values.len());
            let has_path = paths.find(values.iter().copied(), |row| zeros[row], &bits, cost);
            let least = exhaustive(&values, &zeros, &bits, cost, 0);
            prop_assert_eq!(has_path, least < NEVER);
            if has_path {
                // A column, repeated as 32 columns.
                let wide: Vec<i8> = paths.codes().iter().flat_map(|&code| [code; 32]).collect();
                prop_assert!(follows(&wide, 32), "{:?}", paths.codes());
                let own = |row: usize| match zeros[row] {
                    true => f32::from(paths.codes()[row]) * NEVER,
                    false => (values[row] - f32::from(paths.codes()[row])).powi(2) + cost * bits.0[paths.codes()[row] as u8 as usize],
                };
                let found: f32 = (0..values.len()).map(own).sum();
                prop_assert!((found - least).abs() < 1e-4, "{found} {least}");
            }
        }

        #[test]
        fn codes_stay_within_eight_bits(values in prop::collection::vec(prop_oneof![-300.0_f32..300.0, Just(f32::NAN), Just(127.0), Just(-127.0)], 1..50)) {
            let mut paths = TrellisPaths::new(values.len());
            prop_assert!(paths.find(values.iter().copied(), |_| false, &BitCosts::rough(), 0.3));
            let wide: Vec<i8> = paths.codes().iter().flat_map(|&code| [code; 32]).collect();
            prop_assert!(follows(&wide, 32) && !paths.codes().contains(&i8::MIN));
        }
    }
}
