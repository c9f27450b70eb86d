//! How the names and layouts of a file relate to the paths of a module.

use crate::module::{Parameter, Roles};
use briquette_core::{Patterns, Result};
use briquette_formats::WeightLayout;
use burn::module::Module;

/// Whose conventions a file follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// PyTorch's: `Linear` is `[out, in]`, normalisations have `weight` and `bias`.
    #[default]
    Torch,
    /// burn's: `Linear` is `[in, out]`, normalisations have `gamma` and `beta`.
    Burn,
}

impl Layout {
    /// The same in a file's words.
    pub fn in_files(self) -> WeightLayout {
        match self {
            Self::Torch => WeightLayout::Torch,
            Self::Burn => WeightLayout::Burn,
        }
    }
}

/// How the names and layouts of a file relate to the paths of a module, for loading and for exporting.
///
/// A path becomes a file's name in three steps: `gamma` and `beta` of normalisations become `weight` and `bias` (PyTorch
/// layout only), then each [`rename`](Self::rename) is applied in order.
///
/// ```
/// use briquette_nn::module::NameMap;
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
    roles: Roles,
}

#[derive(Debug, Clone)]
struct Rename {
    is_anchored: bool,
    from: Vec<String>,
    to: Vec<String>,
}

impl NameMap {
    /// PyTorch's conventions; `num_batches_tracked` of batch normalisations is ignored.
    pub fn torch() -> Self {
        let ignored = Patterns::new(["**.num_batches_tracked"]).unwrap_or_default();
        Self { layout: Layout::Torch, ignored, ..Self::default() }
    }

    /// burn's own conventions.
    pub fn burn() -> Self {
        Self { layout: Layout::Burn, ..Self::default() }
    }

    /// Says what parameters are that nothing shows: only the weights of what is a `Linear` of burn's are transposed.
    #[must_use]
    pub fn roles(mut self, roles: Roles) -> Self {
        self.roles = roles;
        self
    }

    /// The parameters of a module, with what is said of them.
    ///
    /// # Errors
    /// As [`Roles::parameters`].
    pub fn parameters<M: Module>(&self, module: &M) -> Result<Vec<Parameter>> {
        self.roles.parameters(module)
    }

    /// Whose conventions the file follows.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Stores `Linear` weights in this layout, whoever's names the file has.
    #[must_use]
    pub fn with_weights_in(mut self, layout: WeightLayout) -> Self {
        self.weights = Some(layout);
        self
    }

    /// The layout of `Linear` weights in the file.
    pub fn weight_layout(&self) -> WeightLayout {
        self.weights.unwrap_or(self.layout.in_files())
    }

    /// Replaces the first run of segments that equals `from` by `to`.
    ///
    /// A `*` in `from` stands for one segment, and the n-th `*` in `to` for the segment that the n-th one of `from` matched. A leading
    /// `^` ties the run to the start of the path; `^` alone puts `to` in front.
    #[must_use]
    pub fn rename(mut self, from: &str, to: &str) -> Self {
        let is_anchored = from.starts_with('^');
        let from = from.strip_prefix('^').unwrap_or(from);
        self.renames.push(Rename { is_anchored, from: segments(from), to: segments(to) });
        self
    }

    /// Ignores tensors of the file that the module does not have: a glob over the file's names.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn ignore(mut self, glob: &str) -> Result<Self> {
        self.ignored.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Allows parameters to be missing in the file; these stay as they are. A glob over the module's paths.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob.
    pub fn optional(mut self, glob: &str) -> Result<Self> {
        self.optional.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// A path after all renames.
    pub fn renamed(&self, path: &str) -> String {
        let renamed = self.renames.iter().fold(segments(path), |path, rename| rename.apply(path));
        renamed.join(".")
    }

    /// The name a file has for a parameter.
    pub fn file_name(&self, parameter: &Parameter) -> String {
        let path = match (self.layout, parameter.path.rsplit_once('.')) {
            (Layout::Torch, Some((parent, "gamma"))) if parameter.is_norm() => format!("{parent}.weight"),
            (Layout::Torch, Some((parent, "beta"))) if parameter.is_norm() => format!("{parent}.bias"),
            _ => parameter.path.clone(),
        };
        self.renamed(&path)
    }

    /// Whether a tensor of the file may be one that the module does not have.
    pub fn is_ignored(&self, name: &str) -> bool {
        self.ignored.matches(name)
    }

    /// Whether a parameter may be missing in the file.
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

    /// What the stars of `from` stand for, where `run` matches it.
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
