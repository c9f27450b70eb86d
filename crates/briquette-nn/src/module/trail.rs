//! The position of a visitor in a module.

/// burn's container name for the parameters of a reparameterization.
const REPARAMETERIZATION: &str = "Reparameterization";
/// Container name of a linear layer, burn's or the one of `crate::layers`.
const LINEAR: &str = "Struct:Linear";

/// Path of the field that a visitor or mapper is at.
#[derive(Debug, Default)]
pub struct Trail {
    names: Vec<(String, String)>,
}

impl Trail {
    /// Enters a field of a container.
    pub fn enter(&mut self, name: &str, container: &str) {
        self.names.push((name.to_string(), container.to_string()));
    }

    /// Leaves the field.
    pub fn exit(&mut self) {
        self.names.pop();
    }

    /// Returns the dotted path.
    pub fn path(&self) -> String {
        let names: Vec<&str> = self.names.iter().map(|(name, _)| name.as_str()).collect();
        names.join(".")
    }

    /// Returns the path of the struct at the current position, and the name of the field.
    pub(crate) fn split(&self) -> (String, String) {
        let join =
            |names: &[(String, String)]| names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".");
        match self.names.split_last() {
            Some(((field, _), parents)) => (join(parents), field.clone()),
            None => Default::default(),
        }
    }

    /// Inside a reparameterization, returns the parameter's path, the reparameterization's name and the field's
    /// name.
    pub fn reparameterized(&self) -> Option<(String, &str, String)> {
        let at = self.names.iter().position(|(_, container)| container == REPARAMETERIZATION)?;
        let join =
            |names: &[(String, String)]| names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".");
        Some((join(&self.names[..at]), self.names[at].0.as_str(), join(&self.names[at + 1..])))
    }

    /// Returns whether the current field is the matrix of a `Linear`.
    pub fn is_linear_weight<const D: usize>(&self) -> bool {
        D == 2 && self.container() == LINEAR
    }

    pub(crate) fn container(&self) -> &str {
        self.names.last().map_or("", |(_, container)| container)
    }
}
