//! The code blocks of a Markdown page.

/// A fenced code block.
pub(super) struct Block {
    /// The words after the fence: `sh`, `sh,minilm`, `toml`.
    pub(super) info: String,
    /// The line of the page at which it begins.
    pub(super) line: usize,
    pub(super) text: String,
}

impl Block {
    /// Returns whether the block is in this language.
    pub(super) fn is(&self, language: &str) -> bool {
        self.info.split(',').next() == Some(language)
    }
}

/// Returns the fenced code blocks of a page.
///
/// # Panics
///
/// A block has no end.
pub(super) fn blocks_of(page: &str) -> Vec<Block> {
    let (mut found, mut open) = (Vec::new(), None::<Block>);
    for (index, line) in page.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open.as_mut()) {
            (Some(info), None) => {
                open = Some(Block { info: info.trim().to_string(), line: index + 1, text: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block has no end");
    found
}

/// Returns the page without its code blocks.
pub(super) fn prose_of(page: &str) -> String {
    let mut is_code = false;
    let is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    };
    page.lines().filter(is_prose).map(|line| format!("{line}\n")).collect()
}

/// Returns the lines of a shell script, joined at backslashes.
pub(super) fn logical_lines(script: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in script.lines() {
        match lines.last_mut().filter(|last| last.ends_with('\\')) {
            Some(last) => *last += &format!("\n{line}"),
            None => lines.push(line.to_string()),
        }
    }
    lines
}

/// Returns the words of each simple command of a shell line.
///
/// Quotes are removed; comments, redirections and operators end a command.
pub(super) fn commands_of(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let (mut quote, mut characters) = (None, line.replace("\\\n", " ").chars().collect::<Vec<_>>().into_iter());
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(end), _) if character == end => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '\\') => word.get_or_insert_default().extend(characters.next()),
            (None, '#') if word.is_none() => break,
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            (None, '|' | '&' | ';' | '(' | ')' | '<' | '>' | '`') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

#[test]
fn commands_are_found_in_shell_lines() {
    let line =
        "A=1 briquette eval out -p 'a --b; c' \\\n  --json | head -n 1 && echo \"$(briquette man)\" # not --this";
    let found = commands_of(line);
    assert_eq!(found[0], ["A=1", "briquette", "eval", "out", "-p", "a --b; c", "--json"]);
    assert_eq!(found[1..].concat(), ["head", "-n", "1", "echo", "$(briquette man)"]);
}

#[test]
fn blocks_have_their_language_and_line() {
    let page = "text\n```sh,no-run\na \\\n  b\nc\n```\n- x\n  ```toml\n  d\n  ```\nlast\n";
    let found = blocks_of(page);
    assert_eq!((found.len(), found[0].info.as_str(), found[0].line), (2, "sh,no-run", 2));
    assert!(found[0].is("sh") && !found[1].is("sh"));
    assert_eq!(logical_lines(&found[0].text), ["a \\\n  b", "c"]);
    assert_eq!(prose_of(page), "text\n- x\nlast\n");
}
