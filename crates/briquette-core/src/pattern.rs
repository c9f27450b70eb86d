//! Globs over tensor names, and suggestions for misspelt names.

use crate::{Error, Remedy, Result};
use globset::{Glob, GlobBuilder, GlobSet};

/// The longest pattern in bytes; no tensor name is as long.
const MAX_BYTES: usize = 1024;

/// A list of globs: `*` and `?` match within one segment between dots, `**` across segments.
#[derive(Debug, Clone, Default)]
pub struct Patterns {
    globs: Vec<String>,
    set: GlobSet,
}

impl Patterns {
    /// Compiles globs.
    ///
    /// # Errors
    /// - Config: a glob is invalid or longer than 1024 bytes.
    /// - Config: the globs are too large together.
    pub fn new<S: AsRef<str>>(globs: impl IntoIterator<Item = S>) -> Result<Self> {
        let globs: Vec<String> = globs.into_iter().map(|glob| glob.as_ref().to_string()).collect();
        let mut set = GlobSet::builder();
        for glob in &globs {
            set.add(compile(glob)?);
        }
        let set = set.build().map_err(|error| {
            Error::config(format!("{} patterns are too large together: {}; use fewer", globs.len(), error.kind()))
        })?;
        Ok(Self { globs, set })
    }

    /// Adds the globs of another list.
    ///
    /// # Errors
    /// Config: the globs are too large together.
    pub fn extend(&mut self, other: Self) -> Result<()> {
        *self = Self::new(self.globs.iter().chain(&other.globs))?;
        Ok(())
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.globs.is_empty()
    }

    /// Returns whether any glob matches the name.
    pub fn matches(&self, name: &str) -> bool {
        self.set.is_match(to_slashes(name))
    }

    /// Returns whether a glob equals the name, without wildcards.
    pub fn names_exactly(&self, name: &str) -> bool {
        self.globs.iter().any(|glob| glob == name)
    }

    /// Returns the first glob that matches none of the names.
    pub fn unused<'a>(&self, names: impl Iterator<Item = &'a str>) -> Option<&str> {
        let mut is_used = vec![false; self.globs.len()];
        for name in names {
            self.set.matches(to_slashes(name)).into_iter().for_each(|glob| is_used[glob] = true);
        }
        self.globs.iter().zip(is_used).find_map(|(glob, is_used)| (!is_used).then_some(glob.as_str()))
    }

    /// Refuses a glob that matches none of the names; `what` describes the named items in the message.
    ///
    /// # Errors
    /// Config: a glob matches none of the names; the message suggests a pattern or name.
    pub fn check_used<'a>(&self, what: &str, names: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        let Some(glob) = self.unused(names.clone()) else { return Ok(()) };
        let hint = match suggestion(glob, names.clone()) {
            Some(other) => {
                format!("; did you mean {other:?}? `**` matches whole segments between dots, `*` part of one")
            }
            None => nearest(glob, names).map_or(String::new(), |name| format!("; the nearest name is {name:?}")),
        };
        let error = Error::config(format!("pattern {glob:?} matches no {what}{hint}"));
        Err(error.with_remedy(Remedy::LookUpTensors))
    }
}

/// Returns a variant of an unmatched glob that does match.
///
/// Examples are `**.cls_token` for `**cls_token`, or a name with the modules around it.
fn suggestion<'a>(glob: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    let spaced = |filler: &str| {
        let mut parts = glob.split("**");
        let mut out = parts.next().unwrap_or_default().to_string();
        for part in parts {
            out += if out.is_empty() || out.ends_with('.') { "" } else { filler };
            out += if out.is_empty() || out.ends_with('.') { "**" } else { ".**" };
            let is_apart = part.is_empty() || part.starts_with('.');
            out += if is_apart { "" } else { "." };
            out += if is_apart { "" } else { filler };
            out += part;
        }
        out
    };
    let others = [spaced(""), spaced("*"), format!("**.{glob}"), format!("{glob}.**"), format!("**.{glob}.**")];
    let matches = |other: &String| {
        let patterns = Patterns::new([other]).ok();
        patterns.is_some_and(|patterns| names.clone().any(|name| patterns.matches(name)))
    };
    others.into_iter().find(matches)
}

/// Replaces dots by slashes, which separate segments in the glob library.
fn to_slashes(name: &str) -> String {
    name.replace('.', "/")
}

fn compile(glob: &str) -> Result<Glob> {
    if glob.len() > MAX_BYTES {
        let start: String = glob.chars().take(40).collect();
        let message = format!("found {} bytes, expected at most {MAX_BYTES}; write several patterns", glob.len());
        return Err(Error::config(message).at(format_args!("pattern {start:?}...")));
    }
    let built = GlobBuilder::new(&to_slashes(glob)).literal_separator(true).build();
    built.map_err(|error| Error::config(format!("pattern {glob:?} is not a valid glob: {}", error.kind())))
}

/// Returns the candidate most similar to `word`, if any is similar enough.
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
    fn long_patterns_do_not_panic() {
        let new = |glob: String| Patterns::new([glob]).map(|_| ()).map_err(|error| error.to_string());
        assert!(new("{a,b}".repeat(200_000)).unwrap_err().contains("found 1000000 bytes, expected at most 1024"));
        for unit in ["{a,b}", "*", "?", "**.", "[a-z]", "{", "[", "é"] {
            let _ = new(unit.repeat(MAX_BYTES / unit.len()));
        }
        let many: Vec<String> = (0..20_000).map(|i| format!("**.{i}.*?x")).collect();
        assert!(Patterns::new(&many).unwrap_err().to_string().contains("too large together"));
    }

    #[test]
    fn each_pattern_of_a_list_must_match() {
        let error = Patterns::new(["*.weight", "**.bias", "norm.*"])
            .unwrap()
            .check_used("tensor", ["a.weight", "a.b.bias"].into_iter());
        assert!(error.unwrap_err().to_string().contains("\"norm.*\" matches no tensor"));
    }

    #[test]
    fn near_misses_suggest_a_matching_pattern() {
        let names = ["vit.embeddings.cls_token", "vit.layer.0.fc1.weight", "vit.layer.0.fc1.bias"];
        let cases = [
            ("**cls_token", "**.cls_token"),
            ("**token", "**.*token"),
            ("vit**weight", "vit.**.weight"),
            ("cls_token", "**.cls_token"),
            ("fc?.bias", "**.fc?.bias"),
            ("vit.layer.0", "vit.layer.0.**"),
            ("*fc1*", "**.*fc1*.**"),
        ];
        for (glob, meant) in cases {
            let error = Patterns::new([glob]).unwrap().check_used("tensor", names.into_iter()).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean {meant:?}?")), "{glob}: {error}");
        }
    }

    #[test]
    fn a_pattern_that_matches_nothing_suggests_the_nearest_name() {
        let names = ["encoder.weight", "decoder.bias"];
        let error = Patterns::new(["encodr.weight"]).unwrap().check_used("tensor", names.into_iter()).unwrap_err();
        assert!(error.to_string().contains("\"encoder.weight\""), "{error}");
        assert!(Patterns::new(["*.bias"]).unwrap().check_used("tensor", names.into_iter()).is_ok());
    }
}
