//! The channels, heads and blocks that were removed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a shrink stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShrinkReport {
    /// The groups that lost units.
    pub groups: Vec<ShrunkGroup>,
    /// The blocks that were removed, counted from 0.
    pub dropped_blocks: Vec<usize>,
    /// Parameters before and after.
    pub parameters: [usize; 2],
    /// Multiply-adds of one example before and after.
    pub multiply_adds: [u64; 2],
    /// Bytes of all tensors before and after.
    pub tensor_bytes: [u64; 2],
    /// The number of layers whose weights were refitted.
    pub n_refitted: usize,
    /// The number of blocks whose last layer was refitted to take up what removed blocks did.
    #[serde(default)]
    pub n_refitted_blocks: usize,
    /// The number of biases that took up the mean of removed inputs.
    #[serde(default)]
    pub n_biases: usize,
    /// Changed keys of `config.json`, with their values.
    pub config: Vec<(String, String)>,
    /// Why programs that read only `config.json` cannot load the model; empty if they can.
    pub lost: Vec<String>,
}

/// A group of channels or heads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShrunkGroup {
    /// The kind of its units: feed-forward, heads, channels, experts or width.
    pub kind: String,
    /// The tensors that were cut.
    pub tensors: Vec<String>,
    /// Units before.
    pub before: usize,
    /// Units after.
    pub after: usize,
}

impl ShrinkReport {
    /// The name of its file in the directory of a shrunk model.
    pub const FILE: &str = "shrink.json";

    /// Describes the change in a few lines.
    pub fn in_words(&self) -> Vec<String> {
        let mut kinds: Vec<&str> = self.groups.iter().map(|group| group.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let mut lines: Vec<String> = kinds.into_iter().map(|kind| self.of_kind(kind)).collect();
        if !self.dropped_blocks.is_empty() {
            let blocks: Vec<String> = self.dropped_blocks.iter().map(usize::to_string).collect();
            lines.push(format!("Blocks {} are removed.", blocks.join(", ")));
        }
        let share = |[before, after]: [u64; 2]| 1e2 * after as f64 / before.max(1) as f64;
        let ([before, after], parameters) = (self.multiply_adds, self.parameters.map(|n| n as u64));
        lines.push(format!(
            "Multiply-adds fall from {before} to {after} ({:.1} %), parameters from {} to {} ({:.1} %).",
            share(self.multiply_adds),
            parameters[0],
            parameters[1],
            share(parameters)
        ));
        if self.n_refitted > 0 {
            lines.push(format!("{} layers that read removed units are refitted by least squares.", self.n_refitted));
        }
        if self.n_refitted_blocks > 0 {
            lines.push(format!(
                "The last layers of {} blocks are refitted, to take up what the removed blocks did.",
                self.n_refitted_blocks
            ));
        }
        if self.n_biases > 0 {
            lines.push(format!("{} biases take up the mean of removed inputs.", self.n_biases));
        }
        lines.push(self.loading());
        lines
    }

    fn of_kind(&self, kind: &str) -> String {
        let groups = || self.groups.iter().filter(|group| group.kind == kind);
        let sum = |of: fn(&ShrunkGroup) -> usize| groups().map(of).sum::<usize>();
        let (before, after) = (sum(|group| group.before), sum(|group| group.after));
        let range = |of: fn(&ShrunkGroup) -> usize| {
            let (least, most) = (groups().map(of).min().unwrap_or(0), groups().map(of).max().unwrap_or(0));
            if least == most { least.to_string() } else { format!("{least} to {most}") }
        };
        let left = range(|group| group.after);
        format!("{kind}: {before} units of {} groups become {after}; each group keeps {left}.", groups().count())
    }

    fn loading(&self) -> String {
        match (self.lost.as_slice(), self.config.as_slice()) {
            ([], []) => "config.json stays as it is.".into(),
            ([], changes) => {
                let changes: Vec<String> = changes.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                format!(
                    "config.json describes the new sizes ({}), so that other programs load the model.",
                    changes.join(", ")
                )
            }
            (lost, _) => format!("Only Briquette loads the model, by the shapes of its tensors: {}.", lost.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_have_units_sizes_and_programs() {
        let group = |kind: &str, before, after| ShrunkGroup { kind: kind.into(), tensors: Vec::new(), before, after };
        let report = ShrinkReport {
            groups: vec![group("heads", 12, 9), group("feed-forward", 64, 48), group("feed-forward", 64, 40)],
            parameters: [1000, 750],
            multiply_adds: [2000, 1000],
            config: vec![("n_inner".into(), "48".into())],
            ..ShrinkReport::default()
        };
        let words = report.in_words();
        assert_eq!(words[0], "feed-forward: 128 units of 2 groups become 88; each group keeps 40 to 48.");
        assert_eq!(words[1], "heads: 12 units of 1 groups become 9; each group keeps 9.");
        assert!(words[2].contains("from 2000 to 1000 (50.0 %)") && words[2].contains("1000 to 750 (75.0 %)"));
        assert!(words[3].contains("(n_inner = 48), so that other programs load"));
        let lost = ShrinkReport { lost: vec!["no key".into()], ..report };
        assert!(
            lost.in_words()[3].starts_with("Only Briquette loads the model") && lost.in_words()[3].ends_with("no key.")
        );
    }
}
