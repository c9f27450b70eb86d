//! Globs over tensor names, and the nearest name to one that is none.

use briquette_core::{Error, Result};
use globset::{Glob, GlobBuilder, GlobMatcher};

/// A list of globs: `*` and `?` stay within a dotted segment, `**` does not.
#[derive(Debug, Clone, Default)]
pub struct Patterns(Vec<(String, GlobMatcher)>);

impl Patterns {
    /// Compiles globs.
    ///
    /// # Errors
    /// Config, where one is not a glob.
    pub fn new(globs: &[String]) -> Result<Self> {
        globs.iter().map(|glob| Ok((glob.clone(), compile(glob)?.compile_matcher()))).collect::<Result<_>>().map(Self)
    }

    /// Whether any matches.
    pub fn matches(&self, name: &str) -> bool {
        let path = to_path(name);
        self.0.iter().any(|(_, glob)| glob.is_match(&path))
    }

    /// Whether a name is written out in full.
    pub fn names_exactly(&self, name: &str) -> bool {
        self.0.iter().any(|(glob, _)| glob == name)
    }

    /// Refuses a glob that matches none of the names, those of `what`.
    ///
    /// # Errors
    /// Config, with the nearest names.
    pub fn check_used<'a>(&self, what: &str, names: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        for (glob, matcher) in &self.0 {
            if !names.clone().any(|name| matcher.is_match(to_path(name))) {
                let hint = nearest(glob, names).map_or(String::new(), |name| format!("; the nearest name is {name:?}"));
                return Err(Error::config(format!(
                    "pattern {glob:?} matches no {what}{hint}; see `briquette inspect`"
                )));
            }
        }
        Ok(())
    }
}

/// Names are dotted and globs know slashes.
fn to_path(name: &str) -> String {
    name.replace('.', "/")
}

fn compile(glob: &str) -> Result<Glob> {
    GlobBuilder::new(&to_path(glob))
        .literal_separator(true)
        .build()
        .map_err(|error| Error::config(format!("pattern {glob:?} is no glob: {}", error.kind())))
}

/// The candidate most like `word`, if any is like it at all.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.map(|candidate| (strsim::jaro_winkler(word, candidate), candidate));
    scored.filter(|(score, _)| *score > 0.6).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(globs: &[&str]) -> Patterns {
        Patterns::new(&globs.iter().map(|glob| glob.to_string()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn one_star_stays_in_a_segment_and_two_do_not() {
        assert!(patterns(&["encoder.**.weight"]).matches("encoder.layer.0.output.dense.weight"));
        assert!(!patterns(&["encoder.*.weight"]).matches("encoder.layer.0.weight"));
        assert!(patterns(&["*.weight"]).matches("fc.weight"));
        assert!(patterns(&["layer.[01].weight"]).matches("layer.1.weight"));
        assert!(patterns(&["**"]).matches("a.b.c"));
        assert!(!patterns(&[]).matches("a"));
    }

    #[test]
    fn a_pattern_that_matches_nothing_suggests_the_nearest_name() {
        let names = ["encoder.weight", "decoder.bias"];
        let error = patterns(&["encodr.weight"]).check_used("tensor", names.into_iter()).unwrap_err();
        assert!(error.to_string().contains("\"encoder.weight\""), "{error}");
        assert!(patterns(&["*.bias"]).check_used("tensor", names.into_iter()).is_ok());
    }
}
