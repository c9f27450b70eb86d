//! Checks commands and flags of shell blocks against `--help`.

use super::blocks::{blocks_of, commands_of, logical_lines};
use super::{all_pages, read};
use crate::sandbox::Sandbox;
use std::collections::{BTreeMap, BTreeSet};

/// The help of each command, read once.
struct Helps {
    sandbox: Sandbox,
    known: BTreeMap<String, Help>,
}

#[derive(Clone, Default)]
struct Help {
    commands: BTreeSet<String>,
    flags: BTreeSet<String>,
}

impl Help {
    fn of(text: &str) -> Self {
        let mut help = Self::default();
        let mut is_list = false;
        for line in text.lines() {
            if !line.starts_with(' ') {
                is_list = line == "Commands:";
            }
            let words = || line.split([' ', ',', ']']).filter(|word| !word.is_empty());
            if is_list && line.starts_with("  ") && !line.starts_with("   ") {
                help.commands.extend(words().next().map(str::to_string));
            }
            if line.trim_start().starts_with('-') {
                help.flags.extend(words().take_while(|word| word.starts_with('-')).map(str::to_string));
            }
            if line.trim_start().starts_with("[alias: ") {
                help.flags.extend(words().skip(1).map(str::to_string));
            }
        }
        help
    }
}

impl Helps {
    fn of(&mut self, command: &str) -> Help {
        if let Some(known) = self.known.get(command) {
            return known.clone();
        }
        let help = Help::of(&self.sandbox.ok(&format!("{command} --help")).stdout);
        self.known.insert(command.to_string(), help.clone());
        help
    }

    /// Returns the error in the words after `briquette`, if any.
    fn problem(&mut self, words: &[String]) -> Option<String> {
        let (mut command, mut rest) = (String::new(), words);
        while let Some((first, others)) = rest.split_first().filter(|(first, _)| !first.starts_with('-')) {
            let commands = self.of(&command).commands;
            if commands.is_empty() {
                break;
            }
            if !commands.contains(first) {
                return Some(format!("there is no command {first:?}"));
            }
            command = format!("{command} {first}").trim_start().to_string();
            rest = others;
        }
        let flags = self.of(&command).flags;
        let is_flag = |word: &&String| {
            word.starts_with('-') && word.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic())
        };
        let mut asked = rest.iter().take_while(|word| *word != "--").filter(is_flag);
        let unknown = asked.find(|word| !flags.contains(word.split('=').next().unwrap_or_default()))?;
        Some(format!("`briquette {command}` has no flag {unknown:?}"))
    }
}

#[test]
fn every_command_and_flag_of_a_shell_block_exists() {
    let mut helps = Helps { sandbox: Sandbox::new(), known: BTreeMap::new() };
    let (mut n_commands, mut problems) = (0, Vec::new());
    for page in all_pages() {
        for block in blocks_of(&read(&page)).iter().filter(|block| block.is("sh")) {
            for words in logical_lines(&block.text).iter().flat_map(|line| commands_of(line)) {
                let Some(at) = words.iter().position(|word| word == "briquette") else { continue };
                n_commands += 1;
                let problem = helps.problem(&words[at + 1..]);
                problems
                    .extend(problem.map(|problem| format!("{page}:{}: {problem}: {}", block.line, words.join(" "))));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(n_commands > 20, "{n_commands} commands in all pages");
}

#[test]
fn shell_blocks_have_a_known_kind() {
    for page in all_pages() {
        for block in blocks_of(&read(&page)) {
            let is_known = ["sh", "sh,minilm", "sh,no-run"].contains(&block.info.as_str());
            let is_shell = ["sh", "bash", "shell", "console", ""].iter().any(|language| block.is(language));
            assert!(is_known || !is_shell, "{page}:{}: found {:?}", block.line, block.info);
        }
    }
}

#[test]
fn wrong_commands_and_flags_are_found() {
    let mut helps = Helps { sandbox: Sandbox::new(), known: BTreeMap::new() };
    let mut problem = |line: &str| helps.problem(&commands_of(line)[0]);
    for right in [
        "--version",
        "recipe schema",
        "compress m -o out --prune 0.4 --json --nm 2:4",
        "compress m --output=out -q",
        "eval m --data -",
    ] {
        assert_eq!(problem(right), None, "{right}");
    }
    for wrong in ["shrink m", "compress m -z", "inspect m --prune 0.4", "compress m --zeros", "recipe plan", "--data x"]
    {
        assert!(problem(wrong).is_some(), "{wrong}");
    }
}
