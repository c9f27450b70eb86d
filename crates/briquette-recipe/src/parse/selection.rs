//! The tensors that a stage selects.

use crate::parse::raw::RawOverride;
use briquette_core::pattern::Patterns;
use briquette_core::{Result, Role};
use std::collections::BTreeSet;

/// The tensors that a stage selects.
#[derive(Debug, Clone)]
pub struct Selection {
    /// Patterns of names; `None` matches all.
    pub include: Option<Patterns>,
    /// Patterns of names to skip.
    pub exclude: Patterns,
    /// Roles to select.
    pub roles: Vec<Role>,
    /// The exact names that are chosen, whatever patterns and roles say: set by a budget.
    pub named: Option<BTreeSet<String>>,
    /// Exact names that are left out: set by a budget.
    pub unnamed: BTreeSet<String>,
}

impl Selection {
    /// Creates a selection from the keys of a stage; `default` has the default roles.
    pub(crate) fn new(
        include: Option<&Vec<String>>,
        exclude: &[String],
        roles: Option<&Vec<Role>>,
        default: &[Role],
    ) -> Result<Self> {
        Ok(Self {
            include: include.map(Patterns::new).transpose()?,
            exclude: Patterns::new(exclude)?,
            roles: roles.map_or(default, Vec::as_slice).to_vec(),
            named: None,
            unnamed: BTreeSet::new(),
        })
    }

    /// Selects all tensors of these roles.
    pub fn of_roles(roles: &[Role]) -> Self {
        Self {
            include: None,
            exclude: Patterns::default(),
            roles: roles.to_vec(),
            named: None,
            unnamed: BTreeSet::new(),
        }
    }

    /// Returns whether a tensor is selected.
    ///
    /// A name without wildcards selects its tensor regardless of its role, because no other tensor can be
    /// meant.
    pub fn chooses(&self, name: &str, role: Role) -> bool {
        if let Some(named) = &self.named {
            return named.contains(name);
        }
        let is_role = self.roles.contains(&role);
        let is_included = match &self.include {
            None => is_role,
            Some(patterns) => patterns.names_exactly(name) || is_role && patterns.matches(name),
        };
        is_included && !self.exclude.matches(name) && !self.unnamed.contains(name)
    }
}

/// Returns the values of overrides with their name patterns.
pub(crate) fn overrides_of<T>(
    raw: &[RawOverride],
    value: impl Fn(&RawOverride) -> Result<T>,
) -> Result<Vec<(Patterns, T)>> {
    raw.iter().map(|rule| Ok((Patterns::new(&rule.include)?, value(rule)?))).collect()
}
