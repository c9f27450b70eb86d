//! Linear layers of a family and their names.

/// One or more model types with the same layers and names of weights.
#[derive(Debug)]
pub struct LoadableFamily {
    /// `model_type` in `config.json`.
    pub(super) model_types: &'static [&'static str],
    /// The name of the bare model in classes with a head. Tensor names occur with and without this prefix.
    pub(super) base: &'static str,
    /// Modules that are plain Linear layers: `*` matches a number, `|` separates alternatives.
    pub(super) linear: &'static [&'static str],
    /// Linear layers of experts. transformers merges them, which it can do with packed codes only.
    pub(super) experts: &'static [&'static str],
    /// Linear layers that stay floats. If they share the embedding, files lack them.
    pub(super) heads: &'static [&'static str],
    /// Linear layers below the base that files may lack. transformers then initializes them.
    pub(super) optional: &'static [&'static str],
    /// How names of modules differ from names in files.
    pub(super) renamed: &'static [(&'static str, &'static str)],
    /// Why no layer can be codes, or why packed codes cannot be loaded.
    pub(super) limits: Limits,
}

/// Which codes of a family transformers cannot load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    /// transformers loads all codes.
    None,
    /// transformers cannot load packed codes (all except int8 with int8 activations), for this reason.
    Packed(&'static str),
    /// transformers cannot load any codes, for this reason.
    Codes(&'static str),
}

/// For families whose missing layers transformers initializes by writing to `weight`.
pub(super) const INITIALISES: Limits =
    Limits::Packed("transformers initializes its layers through a `weight` that packed codes do not have");

/// The defaults of a family.
pub(super) const FAMILY: LoadableFamily = LoadableFamily {
    model_types: &[],
    base: "",
    linear: &[],
    experts: &[],
    heads: &[],
    optional: &[],
    renamed: &[],
    limits: Limits::None,
};

impl LoadableFamily {
    /// Returns the first model type of the family, as its name.
    pub fn name(&self) -> &'static str {
        self.model_types.first().copied().unwrap_or_default()
    }

    /// Returns which codes transformers cannot load.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns whether a tensor is the weight of a plain Linear layer.
    pub fn is_linear(&self, tensor: &str) -> bool {
        self.is_expert(tensor) || self.names(tensor, self.linear)
    }

    /// Returns whether a tensor is the weight of an expert.
    pub fn is_expert(&self, tensor: &str) -> bool {
        self.names(tensor, self.experts)
    }

    /// Returns whether a tensor is the weight of a head, which stays floats.
    pub(crate) fn is_head(&self, tensor: &str) -> bool {
        self.names(tensor, self.heads)
    }

    fn names(&self, tensor: &str, patterns: &[&str]) -> bool {
        let Some(module) = tensor.strip_suffix(".weight") else { return false };
        let below = self.below_base(module);
        patterns.iter().any(|pattern| fits(pattern, module) || below.is_some_and(|module| fits(pattern, module)))
    }

    fn below_base<'a>(&self, module: &'a str) -> Option<&'a str> {
        module.strip_prefix(self.base)?.strip_prefix('.').filter(|_| !self.base.is_empty())
    }

    /// Returns the names of a module in the bare model, in classes with a head, and in versions that renamed
    /// it.
    pub(crate) fn aliases(&self, module: &str, is_bare: bool) -> Vec<String> {
        let mut names = vec![module.to_string()];
        match self.below_base(module) {
            Some(below) => names.push(below.into()),
            None if is_bare && !self.base.is_empty() => names.push(format!("{}.{module}", self.base)),
            None => {}
        }
        let renamed = |name: &String| {
            let new = self.renamed.iter().fold(name.clone(), |name, (old, new)| name.replace(old, new));
            (new != *name).then_some(new)
        };
        let new: Vec<String> = names.iter().filter_map(renamed).collect();
        let below = new.iter().filter_map(|name| self.below_base(name).map(str::to_string));
        let below: Vec<String> = below.filter(|name| !new.contains(name) && !names.contains(name)).collect();
        names.extend(new.into_iter().chain(below));
        names
    }

    /// Returns whether all names lack the prefix that classes with a head add.
    pub(crate) fn is_bare<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> bool {
        !names.any(|name| self.below_base(name).is_some())
    }

    /// Returns the Linear layers that transformers creates although the files have no weight for them.
    ///
    /// A head with several parts counts only if the files have another part of it.
    pub(crate) fn unsaved<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
        let is_saved = |module: &str| names.clone().any(|name| name.strip_suffix(".weight") == Some(module));
        let has = |start: &str| {
            let is_below = |name: &str| name.strip_prefix(start).is_some_and(|rest| rest.starts_with('.'));
            names.clone().any(is_below)
        };
        let is_made =
            |module: &&&str| module.rsplit_once('.').is_none_or(|(parent, _)| has(parent)) && !is_saved(module);
        let mut modules: Vec<String> = self.heads.iter().filter(is_made).map(|module| module.to_string()).collect();
        for module in self.optional {
            let below = format!("{}.{module}", self.base);
            if !is_saved(module) && !is_saved(&below) {
                modules.extend([below, module.to_string()]);
            }
        }
        modules
    }
}

/// Returns whether a pattern matches a module.
fn fits(pattern: &str, module: &str) -> bool {
    let is_number = |segment: &str| !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit());
    let mut segments = module.split('.');
    let fits = |part: &str| {
        segments.next().is_some_and(|segment| match part {
            "*" => is_number(segment),
            part => part.split('|').any(|name| name == segment),
        })
    };
    pattern.split('.').all(fits) && segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names_with_numbers() {
        let pattern = "layers.*.mlp.up|down";
        for (module, expected) in [
            ("layers.0.mlp.up", true),
            ("layers.17.mlp.down", true),
            ("layers.x.mlp.up", false),
            ("layers..mlp.up", false),
            ("layers.0.mlp.up|down", false),
            ("layers.0.mlp", false),
            ("layers.0.mlp.up.lora", false),
            ("layers.0.mlp.upper", false),
            ("model.layers.0.mlp.up", false),
        ] {
            assert_eq!(fits(pattern, module), expected, "{module}");
        }
    }
}
