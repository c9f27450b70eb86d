//! Advice for models of the Hugging Face hub that are given instead of a path.

use briquette_core::{Error, Remedy, shown_path};
use briquette_formats::hub_id;
use briquette_recipe::Recipe;
use briquette_recipe::paths::Purpose;
use std::path::{Path, PathBuf};

/// Returns advice for getting a model from the hub, as the end of an error message.
///
/// `cache` is the directory of earlier downloads.
pub(crate) fn advice(id: &str, cache: Option<&Path>) -> String {
    let Some(cache) = cache else { return get(id) };
    let kept = cache.join(format!("models--{}", id.replace('/', "--"))).join("snapshots");
    match newest_in(&kept) {
        Some(snapshot) => format!("; it was downloaded before: use {}", snapshot.display()),
        None => format!("{}, or use the snapshot of `hf download {id}` in {}", get(id), kept.display()),
    }
}

/// Adds the id to the error for a missing model of a recipe, if its path may be meant as an id.
pub(crate) fn explain(error: Error, recipe: &Recipe) -> Error {
    if error.remedy != Some(Remedy::CheckPath) {
        return error;
    }
    let models = recipe.read.iter().filter(|named| named.purpose == Purpose::Model);
    let missing = models.filter(|named| error.message.contains(&format!("{}: no such", shown_path(&named.path))));
    match missing.filter_map(|named| hub_id::of_recipe(&named.path)).next() {
        Some(id) => error.with_remedy(Remedy::Download(id)),
        None => error,
    }
}

fn get(id: &str) -> String {
    let name = id.rsplit('/').next().unwrap_or(id);
    format!(
        "; if it is a model of the Hugging Face hub, run `hf download {id} --local-dir models/{name}` and use models/{name}"
    )
}

/// Returns the hub's download directory, as its own programs find it.
pub(crate) fn cache() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    named("HF_HUB_CACHE")
        .or_else(|| Some(named("HF_HOME")?.join("hub")))
        .or_else(|| Some(home()?.join("huggingface").join("hub")))
}

/// Returns the most recently modified entry of a directory.
fn newest_in(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let dated = entries.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())));
    dated.max().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_cached_model_or_the_download_command() {
        let cache = tempfile::tempdir().unwrap();
        let missing = advice("org/small", Some(cache.path()));
        assert!(missing.contains("`hf download org/small --local-dir models/small`"), "{missing}");
        assert!(missing.contains("models--org--small/snapshots"), "{missing}");
        let snapshot = cache.path().join("models--org--small/snapshots/0123abcd");
        std::fs::create_dir_all(&snapshot).unwrap();
        let found = advice("org/small", Some(cache.path()));
        assert!(found.ends_with(&format!("use {}", snapshot.display())), "{found}");
        assert!(advice("org/small", None).ends_with("use models/small"));
    }
}
