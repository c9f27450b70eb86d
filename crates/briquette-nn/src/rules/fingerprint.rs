//! The settings of rules as text, and the fingerprint that records store.

use crate::rules::{Amount, Prune, Quantize};
use briquette_core::{Affine, Hash128, InputView};
use briquette_methods::prune::SparsityPattern;
use std::fmt;

/// The extents of an empty tensor that identify the rules of a parameter.
///
/// burn compares extents when it loads a record, so it refuses a record of other rules by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) [usize; 4]);

impl Fingerprint {
    /// Returns the fingerprint of a text: `[0, a, b, c]` with 16 bits of its hash in each of `a`, `b` and `c`.
    pub(crate) fn of(content: &str) -> Self {
        let hash = Hash128::of_block(content.as_bytes()).0;
        let extent = |place: usize| 1 + (hash >> (16 * place) & 0xffff) as usize;
        Self([0, extent(0), extent(1), extent(2)])
    }
}

impl Prune {
    /// Returns all settings of the rule except its globs. `layer` is the path of the input statistics.
    pub(crate) fn content(&self, layer: &str) -> String {
        let amount = match &self.amount {
            Amount::Outside(mask) => format!("outside {:?} {}", mask.dim(), Hash128::of_block(mask.as_bits())),
            _ => self.amount.to_string(),
        };
        let inputs =
            self.inputs.get(layer).map_or_else(String::new, |view| Hash128::of_block(&bytes_of(view)).to_string());
        let (from, scope, schedule) = (self.from.get(), self.scope(), self.schedule);
        format!("prune {amount}, from {from}, {scope:?}, {:?}, {schedule:?}, inputs {inputs}", self.scoring)
    }

    /// Returns a short description of the amount of pruning.
    pub(crate) fn in_words(&self) -> String {
        format!("prune {}", self.amount)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(SparsityPattern::Unstructured(ratio) | SparsityPattern::PerRow(ratio)) => ratio.get().fmt(f),
            Self::Pattern(SparsityPattern::NOfM { n, m }) => write!(f, "{n}:{m}"),
            Self::Zeros => f.write_str("zeros"),
            Self::Outside(_) => f.write_str("a given mask"),
        }
    }
}

impl Quantize {
    /// Returns all settings of the rule except its globs.
    pub(crate) fn content(&self) -> String {
        let weights = &self.scheme.weights;
        let range = match &self.given {
            Some(params) => format!("scales {}", Hash128::of_block(&scale_bytes(&params.affines))),
            None => format!("{:?}", weights.range),
        };
        let (grouping, scale, activations) = (weights.grouping, weights.scale, self.scheme.activations);
        let (schedule, is_learned) = (self.schedule(), self.is_learned);
        let trellis = if weights.has_trellis { ", on a trellis" } else { "" };
        format!(
            "{}, {range}, scales of {scale:?}, activations {activations:?}, {schedule:?}, learned {is_learned}, {grouping:?}{trellis}",
            self.in_words()
        )
    }

    /// Returns a short description of the grid.
    pub(crate) fn in_words(&self) -> String {
        let weights = &self.scheme.weights;
        let (bits, kind, grouping) = (weights.grid.n_bits(), weights.grid.kind(), weights.grouping);
        format!("quantize to {bits} bits ({kind:?}, {grouping})")
    }
}

fn bytes_of(view: &InputView) -> Vec<u8> {
    view.rms.iter().chain(&view.mean_square).flat_map(|number| number.to_le_bytes()).collect()
}

fn scale_bytes(affines: &[Affine]) -> Vec<u8> {
    let bytes = |affine: &Affine| [affine.scale.to_le_bytes(), i32::from(affine.zero).to_le_bytes()];
    affines.iter().flat_map(bytes).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Schedule, Score};
    use briquette_core::Mask;

    #[test]
    fn different_rules_have_different_fingerprints() {
        let share = || Prune::new("a", 0.5).unwrap();
        let mask = |bit: u8| Prune::outside("a", Mask::from_bits(1, 8, vec![bit])).unwrap();
        let prunes = [
            share(),
            Prune::new("a", 0.6).unwrap(),
            share().starting_at(0.1).unwrap(),
            share().of_each_row(),
            share().of_each_columns(4),
            share().globally(),
            share().score(Score::Random(1)),
            share().score(Score::Random(2)),
            share().score_by(|row| row.weights.to_vec()),
            share().on(Schedule::linear(0..9)),
            share().on(Schedule::linear(0..9).every(3)),
            Prune::n_of_m("a", 2, 4).unwrap(),
            Prune::zeros("a").unwrap(),
            mask(1),
            mask(2),
        ];
        let named = |name: &str| Quantize::new("a", name).unwrap();
        let quants = [
            named("int8"),
            named("int4"),
            named("int4-g8"),
            named("int4-g16"),
            named("int4-asym"),
            named("int8-dynamic"),
            named("int4-g8-dynamic"),
            named("int4-g8-dynamic-sym"),
            named("int8").learned(),
            named("int8").on(Schedule::once()),
        ];
        let texts = prunes.iter().map(|rule| rule.content("a")).chain(quants.iter().map(Quantize::content));
        let mut found: Vec<[usize; 4]> = texts.map(|text| Fingerprint::of(&text).0).collect();
        let n = found.len();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), n);
        assert_eq!(share().content("a"), Prune::each(["b", "a"], 0.5).unwrap().content("x"), "globs do not count");
    }

    #[test]
    fn fingerprints_match_saved_records() {
        let prune = Prune::new("a", 0.5).unwrap().globally().on(Schedule::cubic(2..10).every(2));
        let quantize = Quantize::new("a", "int4-g8-asym").unwrap();
        let expected =
            "prune 0.5, from 0, Global, Magnitude, Schedule { course: Cubic, begin: 2, end: 10, every: 2 }, inputs ";
        assert_eq!(prune.content("a"), expected);
        let schedule = format!("Schedule {{ course: Constant, begin: 0, end: {}, every: 10 }}", usize::MAX);
        let expected = "quantize to 4 bits (Asymmetric, groups of 8), MinMax, scales of F32, activations Float";
        assert_eq!(quantize.content(), format!("{expected}, {schedule}, learned false, Group(8)"));
        assert_eq!(Fingerprint::of("briquette").0, [0, 49605, 64260, 38417]);
    }
}
