//! The parameters that a rule is for.

use crate::Patterns;

/// The paths that a rule is for.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChosenPaths {
    pub(crate) included: Patterns,
    pub(crate) excluded: Patterns,
}

impl ChosenPaths {
    pub(crate) fn of(included: Patterns) -> Self {
        Self { included, ..Self::default() }
    }

    /// Whether patterns choose one of the names of a parameter, and exclude none.
    pub(crate) fn chooses<'a>(&self, mut names: impl Iterator<Item = &'a str> + Clone) -> bool {
        names.clone().any(|name| self.included.matches(name)) && !names.any(|name| self.excluded.matches(name))
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
