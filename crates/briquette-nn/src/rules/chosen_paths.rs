//! The parameters that a rule selects.

use crate::Patterns;

/// Globs over the paths that a rule selects.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChosenPaths {
    pub(crate) included: Patterns,
    pub(crate) excluded: Patterns,
}

impl ChosenPaths {
    pub(crate) fn of(included: Patterns) -> Self {
        Self { included, ..Self::default() }
    }

    /// Returns whether a parameter with these paths is selected and not excluded.
    pub(crate) fn chooses<'a>(&self, mut names: impl Iterator<Item = &'a str> + Clone) -> bool {
        names.clone().any(|name| self.included.matches(name)) && !names.any(|name| self.excluded.matches(name))
    }

    /// Returns an included glob that matches no eligible path, or an excluded glob that matches no path.
    pub(crate) fn unused<'a>(
        &self,
        eligible: impl Iterator<Item = &'a str>,
        all: impl Iterator<Item = &'a str>,
    ) -> Option<&str> {
        self.included.unused(eligible).or_else(|| self.excluded.unused(all))
    }
}
