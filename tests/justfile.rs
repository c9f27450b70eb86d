//! Recipes of the justfile and its modules: names, comments and calls from other files.

use crate::sandbox::repository;
use std::collections::BTreeMap;
use std::path::Path;

/// Modules of the justfile; the empty name is the justfile itself.
const MODULES: [&str; 4] = ["", "bench", "cuda", "dev"];

/// Words that follow `just` in prose and options.
const NOT_RECIPES: [&str; 1] = ["--list"];

/// Returns the public recipes of a file, each with the comment lines above it.
fn recipes(text: &str) -> Vec<(String, Vec<String>)> {
    let (mut found, mut comments, mut is_private) = (Vec::new(), Vec::new(), false);
    for line in text.lines() {
        let is_recipe =
            line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains(':') && !line.contains(":=");
        match line {
            _ if line.starts_with('#') => comments.push(line.trim_start_matches('#').trim().to_string()),
            "[private]" => is_private = true,
            _ if line.starts_with('[') => {}
            _ if is_recipe && !is_private => {
                let name = line.split([' ', ':']).next().unwrap_or_default().to_string();
                found.push((name, std::mem::take(&mut comments)));
            }
            _ => (comments, is_private) = (Vec::new(), false),
        }
    }
    found
}

/// Returns the public recipes of each module.
fn modules() -> BTreeMap<&'static str, Vec<(String, Vec<String>)>> {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).unwrap();
    let path = |module: &str| if module.is_empty() { "justfile".into() } else { format!("{module}/mod.just") };
    MODULES.map(|module| (module, recipes(&read(&path(module))))).into_iter().collect()
}

#[test]
fn the_justfile_has_at_most_20_recipes_and_declares_each_module() {
    let (found, text) = (modules(), std::fs::read_to_string(repository().join("justfile")).unwrap());
    let n_recipes = found[""].len();
    assert!((10..=20).contains(&n_recipes), "{n_recipes} recipes");
    for module in &MODULES[1..] {
        assert!(text.lines().any(|line| line == format!("mod {module}")), "the justfile does not declare {module}");
        assert!(found[module].len() > 4, "{module}: {} recipes", found[module].len());
    }
}

#[test]
fn each_recipe_has_one_short_sentence_in_the_list() {
    for (name, comments) in modules().into_values().flatten() {
        let Some((shown, above)) = comments.split_last() else { panic!("{name} has no comment") };
        assert!(shown.starts_with(|c: char| c.is_uppercase()) && shown.len() <= 80, "{name}: {shown}");
        assert!(above.last().is_none_or(String::is_empty), "{name}: the list shows the end of a sentence: {shown}");
    }
}

/// Returns the calls of `just` in code spans, code blocks and scripts, as the words that follow `just`.
fn calls(text: &str, is_markdown: bool) -> Vec<Vec<&str>> {
    let (mut found, mut is_code) = (Vec::new(), !is_markdown);
    for line in text.lines() {
        is_code ^= is_markdown && line.trim_start().starts_with("```");
        for (at, _) in line.match_indices("just ") {
            let before = line[..at].trim_end();
            let is_command = is_code && (before.is_empty() || before == "#" || before.ends_with("&&"));
            let is_call = is_command || line[..at].ends_with('`');
            let words = line[at + 5..].split(['`', ';', '|', '&', '#']).next().unwrap_or_default();
            let words: Vec<&str> = words.split_whitespace().collect();
            if is_call && !words.is_empty() {
                found.push(words);
            }
        }
    }
    found
}

/// Collects the text files below a folder that may call recipes.
fn callers(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let extension = path.extension().unwrap_or_default().to_str().unwrap();
        if path.is_dir() {
            callers(&path, found);
        } else if ["md", "toml", "sh", "just", "yml", "yaml"].contains(&extension) {
            found.push(path);
        }
    }
}

#[test]
fn every_called_recipe_exists() {
    let root = repository();
    let names =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", ".ci/run", "justfile"];
    let mut files: Vec<_> = names.iter().map(|name| root.join(name)).filter(|path| path.exists()).collect();
    for folder in ["docs", "configs", "scripts", "bench", "cuda", "dev", ".github"] {
        if root.join(folder).exists() {
            callers(&root.join(folder), &mut files);
        }
    }
    let (modules, mut n_calls) = (modules(), 0);
    let has =
        |module: &str, name: &str| modules.get(module).is_some_and(|all| all.iter().any(|(known, _)| known == name));
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let is_markdown = file.extension().is_some_and(|extension| extension == "md");
        for words in calls(&text, is_markdown) {
            let is_module = MODULES[1..].contains(&words[0]);
            let is_known = match words.get(1) {
                _ if !is_module => has("", words[0]) || NOT_RECIPES.contains(&words[0]),
                Some(name) => has(words[0], name) || *name == "NAME",
                None => true,
            };
            assert!(is_known, "{}: there is no recipe `just {}`", file.display(), words.join(" "));
            n_calls += 1;
        }
    }
    assert!(n_calls > 30, "only {n_calls} calls were found");
}
