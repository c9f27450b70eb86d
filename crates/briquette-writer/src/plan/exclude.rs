//! Patterns for the exclusion of tensors.

use briquette_core::pattern::Patterns;
use std::collections::BTreeSet;

/// Returns patterns that match each of `names`.
///
/// Names that only differ in numbers share a pattern, unless it also matches one of `others`.
pub(super) fn patterns(names: &[&str], others: &[&str]) -> Vec<String> {
    let is_safe = |pattern: &String| {
        Patterns::new(std::slice::from_ref(pattern)).is_ok_and(|glob| !others.iter().any(|other| glob.matches(other)))
    };
    // There are many names and few patterns, so each pattern is tried once.
    let tried: BTreeSet<String> = names.iter().map(|name| generalised(name)).collect();
    let safe: BTreeSet<String> = tried.into_iter().filter(is_safe).collect();
    let pattern = |name: &&str| Some(generalised(name)).filter(|pattern| safe.contains(pattern));
    let patterns: BTreeSet<String> =
        names.iter().map(|name| pattern(name).unwrap_or_else(|| name.to_string())).collect();
    patterns.into_iter().collect()
}

/// Replaces numbers in a name: `layer.11.weight` becomes `layer.*.weight`.
fn generalised(name: &str) -> String {
    let is_number = |segment: &str| !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit());
    let segments = name.split('.').map(|segment| if is_number(segment) { "*" } else { segment });
    segments.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_numbers_share_a_pattern_unless_it_matches_others() {
        let names = ["layer.0.up", "layer.1.up", "head"];
        assert_eq!(patterns(&names, &["layer.0.down"]), ["head", "layer.*.up"]);
        assert_eq!(patterns(&names, &["layer.2.up"]), ["head", "layer.0.up", "layer.1.up"]);
    }
}
