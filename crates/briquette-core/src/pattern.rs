//! Globs over the names of tensors, and the nearest name to one that is none.

use crate::{Error, Result};
use globset::{GlobBuilder, GlobMatcher};

/// A list of globs: `*` and `?` stay within a dotted segment, `**` does not.
#[derive(Debug, Clone, Default)]
pub struct Patterns(Vec<(String, GlobMatcher)>);

impl Patterns {
    /// Compiles globs.
    ///
    /// # Errors
    /// Config, where one is not a glob.
    pub fn new<S: AsRef<str>>(globs: impl IntoIterator<Item = S>) -> Result<Self> {
        let compiled = globs.into_iter().map(|glob| Ok((glob.as_ref().to_string(), compile(glob.as_ref())?)));
        compiled.collect::<Result<_>>().map(Self)
    }

    /// Adds the globs of another list.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any matches.
    pub fn matches(&self, name: &str) -> bool {
        let path = to_slashes(name);
        self.0.iter().any(|(_, glob)| glob.is_match(&path))
    }

    /// Whether a name is written out in full.
    pub fn names_exactly(&self, name: &str) -> bool {
        self.0.iter().any(|(glob, _)| glob == name)
    }

    /// Refuses a glob that matches none of the names, those of `what`.
    ///
    /// # Errors
    /// Config, with the nearest name.
    pub fn check_used<'a>(&self, what: &str, names: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        for (glob, matcher) in &self.0 {
            if !names.clone().any(|name| matcher.is_match(to_slashes(name))) {
                let hint = nearest(glob, names).map_or(String::new(), |name| format!("; the nearest name is {name:?}"));
                return Err(Error::config(format!("pattern {glob:?} matches no {what}{hint}")));
            }
        }
        Ok(())
    }
}

/// Names are dotted and globs know slashes.
fn to_slashes(name: &str) -> String {
    name.replace('.', "/")
}

fn compile(glob: &str) -> Result<GlobMatcher> {
    let built = GlobBuilder::new(&to_slashes(glob)).literal_separator(true).build();
    built
        .map(|glob| glob.compile_matcher())
        .map_err(|error| Error::config(format!("pattern {glob:?} is no glob: {}", error.kind())))
}

/// The candidate most like `word`, if any is like it at all.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.map(|candidate| (strsim::jaro_winkler(word, candidate), candidate));
    scored.filter(|(score, _)| *score > 0.6).min_by(|a, b| b.0.total_cmp(&a.0)).map(|(_, candidate)| candidate)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_star_stays_in_a_segment_and_two_do_not() {
        let matches = |glob: &str, name: &str| Patterns::new([glob]).unwrap().matches(name);
        assert!(matches("encoder.**.weight", "encoder.layer.0.output.dense.weight"));
        assert!(!matches("encoder.*.weight", "encoder.layer.0.weight"));
        assert!(matches("*.weight", "fc.weight") && matches("layer.[01].weight", "layer.1.weight"));
        assert!(matches("**", "a.b.c") && !Patterns::default().matches("a"));
        assert!(Patterns::new(["a[".to_string()]).is_err());
    }

    #[test]
    fn a_pattern_that_matches_nothing_suggests_the_nearest_name() {
        let names = ["encoder.weight", "decoder.bias"];
        let error = Patterns::new(["encodr.weight"]).unwrap().check_used("tensor", names.into_iter()).unwrap_err();
        assert!(error.to_string().contains("\"encoder.weight\""), "{error}");
        assert!(Patterns::new(["*.bias"]).unwrap().check_used("tensor", names.into_iter()).is_ok());
    }
}
