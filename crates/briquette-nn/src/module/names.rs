//! Maps module paths to the names and layouts of a file.

use crate::module::{Parameter, Roles};
use briquette_core::{Patterns, Result};
use briquette_formats::WeightLayout;
use burn::module::Module;
use std::collections::BTreeSet;

/// Naming and layout conventions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// PyTorch: `Linear` weights are `[out, in]`, norms have `weight` and `bias`.
    #[default]
    Torch,
    /// burn: `Linear` weights are `[in, out]`, norms have `gamma` and `beta`.
    Burn,
}

impl Layout {
    /// Returns the weight layout of a file with these conventions.
    pub fn in_files(self) -> WeightLayout {
        match self {
            Self::Torch => WeightLayout::Torch,
            Self::Burn => WeightLayout::Burn,
        }
    }
}

/// A map between the paths of a module and the names and layouts of a file, for loading and export.
///
/// A path becomes a file name in two steps. In PyTorch's layout, `gamma` and `beta` of norms become `weight`
/// and `bias`. Then each [`rename`](Self::rename) is applied in order.
///
/// ```
/// use briquette_nn::NameMap;
///
/// let names = NameMap::torch().rename("blocks.*.attention", "encoder.layer.*.attention.self").rename("^", "bert");
/// assert_eq!(names.renamed("blocks.3.attention.query.weight"), "bert.encoder.layer.3.attention.self.query.weight");
/// ```
#[derive(Debug, Clone, Default)]
pub struct NameMap {
    layout: Layout,
    weights: Option<WeightLayout>,
    renames: Vec<Rename>,
    ignored: Patterns,
    optional: Patterns,
    by_input: BTreeSet<String>,
    takes_integers: bool,
    roles: Roles,
}

#[derive(Debug, Clone)]
struct Rename {
    is_anchored: bool,
    from: Vec<String>,
    to: Vec<String>,
}

impl NameMap {
    /// Creates a map with PyTorch's conventions; it ignores `num_batches_tracked` of batch norms.
    pub fn torch() -> Self {
        let ignored = Patterns::new(["**.num_batches_tracked"]).unwrap_or_default();
        Self { layout: Layout::Torch, ignored, ..Self::default() }
    }

    /// Creates a map with burn's conventions.
    pub fn burn() -> Self {
        Self { layout: Layout::Burn, ..Self::default() }
    }

    /// Sets the roles of parameters that belong to no layer of burn. Only weights of burn's `Linear` are
    /// transposed.
    #[must_use]
    pub fn roles(mut self, roles: Roles) -> Self {
        self.roles = roles;
        self
    }

    /// Returns the parameters of a module, with the roles of this map.
    ///
    /// # Errors
    /// See [`Roles::parameters`].
    pub fn parameters<M: Module>(&self, module: &M) -> Result<Vec<Parameter>> {
        self.roles.parameters(module)
    }

    /// Returns the conventions of the file.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Sets the layout of `Linear` weights, independently of the names.
    #[must_use]
    pub fn with_weights_in(mut self, layout: WeightLayout) -> Self {
        self.weights = Some(layout);
        self
    }

    /// Returns the layout of `Linear` weights in the file.
    pub fn weight_layout(&self) -> WeightLayout {
        self.weights.unwrap_or(self.layout.in_files())
    }

    /// Marks a `Linear` weight that the file stores `[in, out]`, whatever its layout, such as a `Conv1D` of GPT-2.
    #[must_use]
    pub fn stored_by_input(mut self, name: &str) -> Self {
        self.by_input.insert(name.into());
        self
    }

    /// Returns whether the file stores the matrix of a parameter transposed: `[out, in]`, for a file of this layout.
    pub fn is_turned(&self, parameter: &Parameter, layout: WeightLayout) -> bool {
        let is_by_output = layout == WeightLayout::Torch && !self.by_input.contains(&self.file_name(parameter));
        parameter.is_linear_weight() && is_by_output
    }

    /// Replaces the first sequence of segments that matches `from` by `to`.
    ///
    /// A `*` in `from` matches one segment; the n-th `*` in `to` inserts the segment matched by the n-th `*` of
    /// `from`. A leading `^` anchors the match at the start of the path. `^` alone inserts `to` at the front.
    #[must_use]
    pub fn rename(mut self, from: &str, to: &str) -> Self {
        let is_anchored = from.starts_with('^');
        let from = from.strip_prefix('^').unwrap_or(from);
        self.renames.push(Rename { is_anchored, from: segments(from), to: segments(to) });
        self
    }

    /// Lets 8-bit integers of the file fill parameters of floats, as numbers: the network itself turns these codes into weights.
    #[must_use]
    pub fn with_integers(self) -> Self {
        Self { takes_integers: true, ..self }
    }

    /// Returns whether 8-bit integers fill parameters of floats.
    pub(crate) fn takes_integers(&self) -> bool {
        self.takes_integers
    }

    /// Ignores extra tensors of the file whose names match this glob.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn ignore(mut self, glob: &str) -> Result<Self> {
        self.ignored.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Allows parameters whose paths match this glob to be missing in the file; they stay unchanged.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn optional(mut self, glob: &str) -> Result<Self> {
        self.optional.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Applies all renames to a path.
    pub fn renamed(&self, path: &str) -> String {
        let renamed = self.renames.iter().fold(segments(path), |path, rename| rename.apply(path));
        renamed.join(".")
    }

    /// Returns the name of a parameter in the file.
    pub fn file_name(&self, parameter: &Parameter) -> String {
        let path = match (self.layout, parameter.path.rsplit_once('.')) {
            (Layout::Torch, Some((parent, "gamma"))) if parameter.is_norm() => format!("{parent}.weight"),
            (Layout::Torch, Some((parent, "beta"))) if parameter.is_norm() => format!("{parent}.bias"),
            _ => parameter.path.clone(),
        };
        self.renamed(&path)
    }

    /// Returns whether the module may lack this tensor of the file.
    pub fn is_ignored(&self, name: &str) -> bool {
        self.ignored.matches(name)
    }

    /// Returns whether the file may lack this parameter.
    pub fn is_optional(&self, path: &str) -> bool {
        self.optional.matches(path)
    }
}

impl Rename {
    fn apply(&self, path: Vec<String>) -> Vec<String> {
        let last = path.len().saturating_sub(self.from.len());
        let starts = if self.is_anchored { 0..=0 } else { 0..=last };
        for start in starts {
            let Some(met) = path.get(start..start + self.from.len()).and_then(|run| self.meets(run)) else { continue };
            let mut met = met.into_iter();
            let to = self.to.iter().map(|segment| match segment.as_str() {
                "*" => met.next().unwrap_or_default(),
                _ => segment.clone(),
            });
            let to: Vec<String> = to.collect();
            return [&path[..start], &to, &path[start + self.from.len()..]].concat();
        }
        path
    }

    /// Matches `from` with a sequence of segments and returns the segments matched by its stars.
    fn meets(&self, run: &[String]) -> Option<Vec<String>> {
        let mut met = Vec::new();
        for (wanted, found) in self.from.iter().zip(run) {
            match wanted.as_str() {
                "*" => met.push(found.clone()),
                wanted if wanted == found => {}
                _ => return None,
            }
        }
        Some(met)
    }
}

fn segments(path: &str) -> Vec<String> {
    path.split('.').filter(|segment| !segment.is_empty()).map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_apply_in_order_and_once_each() {
        let names = NameMap::torch().rename("conv", "0").rename("^head", "classifier.out").rename("b.*.*", "*.c.*");
        assert_eq!(names.renamed("conv.weight"), "0.weight");
        assert_eq!(names.renamed("head.head.bias"), "classifier.out.head.bias");
        assert_eq!(names.renamed("a.head.bias"), "a.head.bias");
        assert_eq!(names.renamed("a.b.1.2.d"), "a.1.c.2.d");
        assert_eq!(NameMap::burn().rename("^", "model").renamed("x.y"), "model.x.y");
        assert_eq!(NameMap::burn().rename("a.b.c", "d").renamed("a"), "a");
    }
}
