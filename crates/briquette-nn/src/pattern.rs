//! Globs over parameter paths, and the nearest path to one that is none.

use briquette_core::{Error, Result};
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
    pub fn matches(&self, path: &str) -> bool {
        let path = to_slashes(path);
        self.0.iter().any(|(_, glob)| glob.is_match(&path))
    }

    /// Refuses a glob that matches none of the paths.
    ///
    /// # Errors
    /// Config, with the nearest path.
    pub fn check_used<'a>(&self, paths: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        for (glob, matcher) in &self.0 {
            if !paths.clone().any(|path| matcher.is_match(to_slashes(path))) {
                let hint = nearest(glob, paths).map_or(String::new(), |path| format!("; the nearest is {path:?}"));
                return Err(Error::config(format!("pattern {glob:?} matches no parameter{hint}")));
            }
        }
        Ok(())
    }
}

/// Paths are dotted and globs know slashes.
fn to_slashes(path: &str) -> String {
    path.replace('.', "/")
}

fn compile(glob: &str) -> Result<GlobMatcher> {
    let built = GlobBuilder::new(&to_slashes(glob)).literal_separator(true).build();
    built
        .map(|glob| glob.compile_matcher())
        .map_err(|error| Error::config(format!("pattern {glob:?} is no glob: {}", error.kind())))
}

/// The candidate most like `word`, if any is like it at all.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.map(|candidate| (strsim::jaro_winkler(word, candidate), candidate));
    scored.filter(|(score, _)| *score > 0.6).min_by(|a, b| b.0.total_cmp(&a.0)).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_that_matches_nothing_suggests_the_nearest_path() {
        let paths = ["blocks.0.weight", "head.bias"];
        let error = Patterns::new(["block.*.weight"]).unwrap().check_used(paths.into_iter()).unwrap_err();
        assert!(error.to_string().contains("\"blocks.0.weight\""), "{error}");
        assert!(Patterns::new(["**.weight"]).unwrap().check_used(paths.into_iter()).is_ok());
        assert!(Patterns::new(["a[".to_string()]).is_err());
    }
}
