//! Checks recipes of `just` that pages name against the justfile and its modules.

use super::blocks::{blocks_of, commands_of, prose_of};
use super::{all_pages, read};
use crate::sandbox::repository;

/// Returns whether a justfile has a recipe of this name.
fn has_recipe(justfile: &str, name: &str) -> bool {
    justfile.lines().any(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', ':']));
        rest.is_some_and(|rest| rest.contains(':') && !rest.contains(":="))
    })
}

/// Returns whether the words after `just` name a recipe of the justfile or of a module.
fn exists(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    let module = |name: &str| std::fs::read_to_string(repository().join(name).join("mod.just")).ok();
    match words.as_slice() {
        [] => true,
        [first, rest @ ..] => match module(first) {
            Some(recipes) => rest.first().is_none_or(|name| has_recipe(&recipes, name)),
            None => has_recipe(&read("justfile"), first),
        },
    }
}

/// Returns the words after each `just` in code spans and shell blocks.
fn calls_of(page: &str) -> Vec<Vec<String>> {
    let prose = prose_of(page);
    let spans = prose.split('`').skip(1).step_by(2).map(str::to_string);
    let blocks = blocks_of(page).into_iter().filter(|block| block.is("sh"));
    let lines: Vec<String> =
        blocks.flat_map(|block| block.text.lines().map(str::to_string).collect::<Vec<_>>()).collect();
    let commands = spans.chain(lines).flat_map(|line| commands_of(&line));
    commands.filter_map(|words| Some(words.split_first().filter(|(first, _)| *first == "just")?.1.to_vec())).collect()
}

#[test]
fn every_recipe_that_a_page_names_exists() {
    let calls = all_pages().flat_map(|page| calls_of(&read(&page)).into_iter().map(move |words| (page.clone(), words)));
    let (found, missing): (Vec<_>, Vec<_>) = calls.partition(|(_, words)| exists(words));
    assert!(missing.is_empty(), "{missing:?}");
    assert!(found.len() > 5, "{found:?}");
}

#[test]
fn recipes_are_found_by_their_lines() {
    let justfile = "# Check all\ncheck: build\nfuzz SECONDS=\"60\" *FLAGS:\nvenv := \"out\"\n";
    assert!(has_recipe(justfile, "check") && has_recipe(justfile, "fuzz"));
    assert!(!has_recipe(justfile, "venv") && !has_recipe(justfile, "fuz") && !has_recipe(justfile, "build"));
    let calls = calls_of("Call `just fuzz 60`, not `justify`.\n```sh\njust check && ls\n```\n");
    assert_eq!(calls, [vec!["fuzz".to_string(), "60".into()], vec!["check".into()]]);
    assert!(!exists(&["no-such-recipe".into()]));
}
