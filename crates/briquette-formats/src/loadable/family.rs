//! Which modules of a family are Linear layers, and what they are called.

/// One or more model types whose weights have the same names and the same layers.
#[derive(Debug)]
pub struct LoadableFamily {
    /// `model_type`, as `config.json` has it.
    pub(super) model_types: &'static [&'static str],
    /// What classes with a head call the bare model; names come with this in front of them and without.
    pub(super) base: &'static str,
    /// Modules that are plain Linear layers: `*` is a number, `|` stands between alternatives.
    pub(super) linear: &'static [&'static str],
    /// Those among them that are experts: transformers puts them together, which it can do with packed codes only.
    pub(super) experts: &'static [&'static str],
    /// Linear layers that stay as they are; those that share the embedding are not in files.
    pub(super) heads: &'static [&'static str],
    /// Linear layers below the base that files may lack, and that are made anew then.
    pub(super) optional: &'static [&'static str],
    /// How names in files differ from those of modules.
    pub(super) renamed: &'static [(&'static str, &'static str)],
    /// Why no layer of it can be codes, or why packed ones cannot be loaded.
    pub(super) limits: Limits,
}

/// What of a family cannot be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    /// Nothing.
    None,
    /// Packed codes, which all are but int8 with int8 activations; for this reason.
    Packed(&'static str),
    /// Any codes; for this reason.
    Codes(&'static str),
}

/// Why transformers cannot load packed codes of some families: it writes to `weight` while it looks for what is missing.
pub(super) const INITIALISES: Limits =
    Limits::Packed("transformers sets up its layers by a `weight` that packed codes do not have");

/// What a family has where it says nothing else.
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
    /// The first of its model types, which stands for all.
    pub fn name(&self) -> &'static str {
        self.model_types.first().copied().unwrap_or_default()
    }

    /// What of it cannot be loaded.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether a tensor is the weight of a plain Linear layer.
    pub fn is_linear(&self, tensor: &str) -> bool {
        self.is_expert(tensor) || self.names(tensor, self.linear)
    }

    /// Whether a tensor is the weight of an expert.
    pub fn is_expert(&self, tensor: &str) -> bool {
        self.names(tensor, self.experts)
    }

    /// Whether a tensor is the weight of a head, which stays as it is.
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

    /// What a module is called by the bare model, by one with a head, and by versions that renamed it.
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
        names.extend(names.iter().filter_map(renamed).collect::<Vec<_>>());
        names
    }

    /// Whether names lack what classes with a head put in front.
    pub(crate) fn is_bare<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> bool {
        !names.any(|name| self.below_base(name).is_some())
    }

    /// Linear layers that transformers makes though the file has no weight for them. Of a head with several parts only
    /// where the file has another.
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

/// Whether a module is one that a pattern names.
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
    fn a_pattern_takes_whole_names_whose_numbers_are_numbers() {
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
