//! The parameters that a rule is for.

use crate::Patterns;

/// The paths that a rule is for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chosen {
    pub(crate) included: Patterns,
    pub(crate) excluded: Patterns,
}

impl Chosen {
    pub(crate) fn of(included: Patterns) -> Self {
        Self { included, ..Self::default() }
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        self.included.matches(path) && !self.excluded.matches(path)
    }

    /// A pattern that matches none of the names that rules are for, or excludes none of all.
    pub(crate) fn unused<'a>(
        &self,
        eligible: impl Iterator<Item = &'a str>,
        all: impl Iterator<Item = &'a str>,
    ) -> Option<&str> {
        self.included.unused(eligible).or_else(|| self.excluded.unused(all))
    }
}
