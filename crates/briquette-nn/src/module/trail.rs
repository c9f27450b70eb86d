//! Where a visitor is in a module.

/// The container burn announces for the parameters of a reparameterization.
const REPARAMETERIZATION: &str = "Reparameterization";
/// The container of a linear layer, either burn's or the one of `crate::layers`.
const LINEAR: &str = "Struct:Linear";

/// The path of the module that a visitor or mapper is at.
#[derive(Debug, Default)]
pub struct Trail {
    names: Vec<(String, String)>,
}

impl Trail {
    /// A visitor enters a field of a container.
    pub fn enter(&mut self, name: &str, container: &str) {
        self.names.push((name.to_string(), container.to_string()));
    }

    /// It leaves the field.
    pub fn exit(&mut self) {
        self.names.pop();
    }

    /// The dotted path.
    pub fn path(&self) -> String {
        let names: Vec<&str> = self.names.iter().map(|(name, _)| name.as_str()).collect();
        names.join(".")
    }

    /// The path of the struct that has the field where the visitor is, and the field's name.
    pub(crate) fn split(&self) -> (String, String) {
        let join =
            |names: &[(String, String)]| names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".");
        match self.names.split_last() {
            Some(((field, _), parents)) => (join(parents), field.clone()),
            None => Default::default(),
        }
    }

    /// Inside a reparameterization: the path of its parameter, its name, and the field's name.
    pub fn reparameterized(&self) -> Option<(String, &str, String)> {
        let at = self.names.iter().position(|(_, container)| container == REPARAMETERIZATION)?;
        let join =
            |names: &[(String, String)]| names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".");
        Some((join(&self.names[..at]), self.names[at].0.as_str(), join(&self.names[at + 1..])))
    }

    /// Whether this is a matrix of a `Linear`.
    pub fn is_linear_weight<const D: usize>(&self) -> bool {
        D == 2 && self.container() == LINEAR
    }

    pub(crate) fn container(&self) -> &str {
        self.names.last().map_or("", |(_, container)| container)
    }
}
