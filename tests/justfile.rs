//! The list that `just --list` prints: the last comment line above each recipe.

use crate::sandbox::repository;

/// The names of recipes with the comment lines above each.
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

#[test]
fn each_recipe_has_one_short_sentence_in_the_list() {
    let text = std::fs::read_to_string(repository().join("justfile")).unwrap();
    let found = recipes(&text);
    assert!(found.len() > 40, "{}", found.len());
    for (name, comments) in found {
        let Some((shown, above)) = comments.split_last() else { panic!("{name} has no comment") };
        assert!(shown.starts_with(|c: char| c.is_uppercase()) && shown.len() <= 80, "{name}: {shown}");
        assert!(above.last().is_none_or(String::is_empty), "{name}: the list shows the end of a sentence: {shown}");
    }
}
