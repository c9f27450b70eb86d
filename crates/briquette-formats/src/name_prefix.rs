//! Removes prefixes that wrappers such as `DataParallel` add to the names of all tensors.

use crate::TensorInfo;
use crate::tensor::first_repeated;
use briquette_core::{Error, Result};

/// The prefixes of `DataParallel` and similar wrappers, and of `torch.compile`.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];
/// The counter of `torch.optim.swa_utils.AveragedModel`, beside the wrapped model.
const COUNTER: &str = "n_averaged";

/// Removes the prefixes of nested wrappers from all names. Returns the prefixes, outermost first.
pub(crate) fn unwrap(infos: &mut [TensorInfo]) -> Vec<String> {
    let mut found = Vec::new();
    let is_named = |info: &TensorInfo| info.name != COUNTER;
    while let Some(prefix) = WRAPPERS.iter().find(|prefix| {
        let has_it = |info: &TensorInfo| info.name.len() > prefix.len() && info.name.starts_with(**prefix);
        infos.iter().any(is_named) && infos.iter().filter(|info| is_named(info)).all(has_it)
    }) {
        take(infos, prefix);
        found.push(prefix.to_string());
    }
    found
}

/// Removes a prefix from the names that have it.
///
/// # Errors
/// Config: no name has the prefix, unless it is optional.
pub(crate) fn strip(infos: &mut [TensorInfo], prefix: &str, is_optional: bool) -> Result<Vec<String>> {
    if take(infos, prefix) == 0 {
        if is_optional {
            return Ok(Vec::new());
        }
        let first = infos.first().map_or("", |info| info.name.as_str());
        let message = format!("strip_prefix: no name begins with {prefix:?}; the first tensor is {first:?}");
        return Err(Error::config(message));
    }
    Ok(vec![prefix.to_string()])
}

/// Removes the prefix from each name that has it, and returns their number. A name equal to the prefix stays.
fn take(infos: &mut [TensorInfo], prefix: &str) -> usize {
    let mut n_removed = 0;
    for info in infos {
        if let Some(rest) = info.name.strip_prefix(prefix).filter(|rest| !rest.is_empty()) {
            info.name = rest.into();
            n_removed += 1;
        }
    }
    n_removed
}

/// Refuses two names that became equal.
///
/// # Errors
/// Input: two names are equal. The error has the name.
pub(crate) fn check_unique(infos: &[TensorInfo]) -> Result<()> {
    match first_repeated(infos.len(), |index| &infos[index].name) {
        None => Ok(()),
        Some((first, _)) => {
            let message = "two tensors have this name without the prefix; keep the prefix with strip_prefix = \"\"";
            Err(Error::input(message).at(format_args!("tensor {:?}", infos[first].name)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::DType;

    fn infos(names: &[&str]) -> Vec<TensorInfo> {
        names.iter().map(|name| TensorInfo::checked(name.to_string(), DType::U8, vec![1]).unwrap()).collect()
    }

    fn names(infos: &[TensorInfo]) -> Vec<&str> {
        infos.iter().map(|info| info.name.as_str()).collect()
    }

    #[test]
    fn prefixes_of_all_names_are_removed_and_others_kept() {
        let cases: [(&[&str], &[&str], &[&str]); 5] = [
            (&["module.a", "module.b.c"], &["a", "b.c"], &["module."]),
            (&["module._orig_mod.a"], &["a"], &["module.", "_orig_mod."]),
            (&["n_averaged", "module.a"], &["n_averaged", "a"], &["module."]),
            (&["module.a", "b"], &["module.a", "b"], &[]),
            (&["n_averaged", "module."], &["n_averaged", "module."], &[]),
        ];
        for (before, after, found) in cases {
            let mut infos = infos(before);
            assert_eq!(unwrap(&mut infos), found);
            assert_eq!(names(&infos), after);
        }
    }

    #[test]
    fn missing_prefixes_and_equal_names_are_errors() {
        let mut infos = infos(&["model.a", "b", "a"]);
        let error = strip(&mut infos, "modle.", false).unwrap_err().to_string();
        assert!(error.contains("no name begins with \"modle.\"") && error.contains("\"model.a\""), "{error}");
        assert!(strip(&mut infos, "modle.", true).unwrap().is_empty());
        strip(&mut infos, "model.", false).unwrap();
        assert_eq!(names(&infos), ["a", "b", "a"]);
        assert!(check_unique(&infos).unwrap_err().to_string().contains("tensor \"a\": two tensors"));
    }
}
