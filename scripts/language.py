#!/usr/bin/env python3
"""Check the language of comments, documentation and messages.

    python3 scripts/language.py [--root DIR] [--path PREFIX ...] [--list]
    python3 scripts/language.py --self-test

Reads the comments, doc comments and string literals of Rust files, the prose of Markdown files, and the comments of recipes,
scripts and configuration files. Reports three kinds of findings:

- pattern: a phrase of PATTERNS;
- sentence: a sentence of more than 30 words;
- summary: a public item whose first sentence has more than 20 words.

A code span counts as one word. Headings, tables and code blocks are not sentences. A list item is a block of its own. String
literals outside of the command line are checked for patterns only.

Prints the patterns and a summary; `--list` prints every finding as PATH:LINE: KIND: TEXT. `--path` limits the check to files
whose path below the root starts with a PREFIX. Exit code 1 if there is a pattern, or if more than 2 % of the sentences or of
the items are too long.
"""

import argparse
import ast
import io
import re
import sys
import tempfile
import tokenize
from pathlib import Path

SENTENCE_LIMIT, SUMMARY_LIMIT, EXCEPTIONS = 30, 20, 0.02
START = r"(?:^|(?<=[.!?:;] ))"
PATTERNS = [
    ("riddle", r"\b(?:those|that|what|which) of (?:which|those|that|what)\b"),
    ("no antecedent", r"\b(?<!such )(?<!same )(?:as|As) (?:those|that) of\b"),
    ("no antecedent", r"\b[Ii]t is (?:that|those) of\b|\b[Tt]hey are those of\b"),
    ("no antecedent", START + r"(?:Those|That|What|Which) of\b"),
    ("archaism", r"\b[Ff]or(?:etold|etell\w*)\b"),
    ("archaism", r"\b(?:there|where)of\b|\b(?:where|there)in\b(?! lies$)|\bwho(?:so)?ever\b|\bwhomever\b|\bna?ught\b|\bwhence\b|\bthereto\b"),
    ("archaism", r"\b(?:is|are|was|were|be|being) held against\b|\bheld against\b"),
    ("archaism", r"\b(?:stand|stands|stood) for\b|\blies that way\b|\blie that way\b|\bgo(?:es)? on\b|\bspeaks\b"),
    ("riddle", r"\bwhat there is\b|\b[Ii]n so many\b|\bso many bytes\b|\bso many of\b"),
    ("riddle", START + r"What (?:is|are|was|were)\b[^.?!]*, as\b"),
]
COMPILED = [(name, re.compile(text)) for name, text in PATTERNS]
SUMMARY_PATTERNS = [("begins with What", re.compile(r"What\b(?![^.!]*\?)"))]
ABBREVIATIONS = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|al|fig|eq|no|resp|incl|ca)|(?:^|\s)[A-Z])\.$", re.IGNORECASE)
PROSE = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "python/**/*.md")
RUST = ("crates/**/*.rs", "tests/**/*.rs", "docs/*.rs", "fuzz/**/*.rs")
PYTHON = ("scripts/**/*.py", "bench/**/*.py", "python/**/*.py")
HASH = ("justfile", "**/*.just", "configs/**/*.toml", "configs/**/*.sh", "configs/**/*.yaml", "scripts/**/*.sh", ".ci/run",
        ".github/**/*.yml", "Dockerfile")
SKIPPED_FOLDERS = {"target", "bench-out", "models", "out", "vendor", "node_modules", ".git", "corpus", "book"}


class Findings:
    """The findings of all files, and the numbers of sentences and items that were read."""

    def __init__(self):
        self.found, self.sentences, self.items, self.files = [], 0, 0, 0

    def add(self, path, line, kind, text):
        self.found.append((path, line, kind, " ".join(text.split())))

    def of(self, kind):
        return [finding for finding in self.found if finding[2].split(" ")[0] == kind]


def plain(text):
    """The same number of characters, with each code span as one word and each link as its text."""
    text = re.sub(r"(`+)(.+?)\1", lambda span: "C" + "x" * (len(span[0]) - 1), text)
    text = re.sub(r"!?\[([^\[\]]*)\](\([^()\s]*\)|\[[^\[\]]*\])", lambda link: f" {link[1]}".ljust(len(link[0])), text)
    return re.sub(r"[*_]{1,3}(?=\w)|(?<=[\w.,;:!?])[*_]{1,3}(?!\w)", lambda marks: " " * len(marks[0]), text)


def word_count(text):
    return sum(any(c.isalnum() for c in word) for word in text.split())


def sentences(text):
    """(start, sentence) of each sentence in plain text."""
    start = 0
    for end in re.finditer(r"[.!?]+[)\"'”’]*(?=\s+[\"'“(\[]*[A-Za-z0-9–-])|[.!?]*$", text):
        until = text[start : end.end()]
        if end.end() < len(text) and ABBREVIATIONS.search(until):
            continue
        if until.strip():
            yield start + len(until) - len(until.lstrip()), until.strip()
        start = end.end()


class Block:
    """A paragraph, list item, heading or table row, joined to one line."""

    def __init__(self, kind):
        self.kind, self.text, self.lines = kind, "", []

    def push(self, number, line):
        self.lines.append((len(self.text), number))
        self.text += line.strip() + " "

    def line_at(self, offset):
        return max(number for start, number in self.lines if start <= offset)


def blocks(lines):
    """The blocks of Markdown in (number, text) lines; code and HTML are left out."""
    current, fence, is_code, is_html, after_blank = None, None, False, False, True
    for number, line in lines:
        bare = line.strip()
        marks = re.match(r"(?:[-*+] )?(```+|~~~+)", bare)
        if fence:
            fence = None if bare.startswith(fence) and bare.strip(fence[0]) == "" else fence
            continue
        if marks or not bare:
            fence = marks and marks[1]
            in_list = current is not None and current.kind == "item"
            is_html, after_blank = False, True
            if current:
                yield current
            current = Block("item") if in_list and not marks else None
            continue
        indent = len(line) - len(line.lstrip())
        in_list = current is not None and current.kind == "item"
        if in_list and not current.text and indent == 0:
            in_list, current = False, None
        is_code = indent >= 4 and not in_list and (after_blank or is_code)
        is_html = is_html or (after_blank and re.match(r"</?[a-zA-Z!]", bare) is not None and not bare.startswith("<http"))
        after_blank = False
        if is_code or is_html or re.match(r"\[[^\]]+\]: \S+$", bare) or re.fullmatch(r"[-=*_]{3,}", bare):
            continue
        is_row = bare.startswith(("|", "usage: ")) or re.search(r"[^\s.!?] {2,}\S", bare)
        kind = "row" if is_row else "heading" if re.match(r"#{1,6} ", bare) else None
        item = re.match(r"(?:[-*+]|\d+[.)]) +", bare)
        if kind or item:
            if current and current.text:
                yield current
            current = Block(kind or "item")
            current.push(number, bare.lstrip("#") if kind else bare[item.end() :])
            if kind:
                yield current
                current = None
            continue
        current = current or Block("paragraph")
        current.push(number, re.sub(r"^> ?", "", bare))
    if current and current.text:
        yield current


def check_block(found, path, block, with_lengths):
    """Reports the patterns and, of running text, the long sentences of a block."""
    text = plain(block.text)
    for name, pattern in COMPILED:
        for match in pattern.finditer(text):
            around = block.text[max(0, match.start() - 30) : match.end() + 40]
            found.add(path, block.line_at(match.start()), f"pattern ({name})", around)
    if not with_lengths or block.kind in ("heading", "row"):
        return
    for start, sentence in sentences(text.rstrip()):
        if block.kind == "item" and not sentence.endswith((".", "!", "?")):
            continue
        found.sentences += 1
        if word_count(sentence) > SENTENCE_LIMIT:
            found.add(path, block.line_at(start), f"sentence of {word_count(sentence)} words", block.text[start : start + len(sentence)])


def check_text(found, path, lines, with_lengths=True, is_item=False):
    """Checks the Markdown of one comment, file or message."""
    is_first = True
    for block in blocks(lines):
        check_block(found, path, block, with_lengths)
        if is_item and is_first and block.text:
            found.items += 1
            _, summary = next(sentences(plain(block.text).rstrip()), (0, ""))
            for name, pattern in SUMMARY_PATTERNS:
                if pattern.match(plain(block.text)) and not summary.endswith("?"):
                    found.add(path, block.lines[0][1], f"pattern ({name})", block.text[:100])
            if word_count(summary) > SUMMARY_LIMIT:
                found.add(path, block.lines[0][1], f"summary of {word_count(summary)} words", block.text[: len(summary)])
        is_first = is_first and not block.text


RUST_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\bb?r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\\n])'", re.DOTALL
)
PRIVATE = re.compile(r"(?:pub\(|(?:const|unsafe|async|extern|fn|struct|enum|union|trait|type|static|mod|impl|let|use|if|for|match|return)\b|macro_rules!)")


def is_public(lines, number):
    """Whether the item below line `number` is public: marked `pub`, a variant, or an argument of the command line."""
    depth, is_argument = 0, False
    for line in lines[number:]:
        bare = line.strip()
        if not bare or bare.startswith("//"):
            continue
        if bare.startswith("#[") or depth > 0:
            is_argument = is_argument or bare.startswith(("#[arg", "#[command"))
            depth += bare.count("[") - bare.count("]") + bare.count("(") - bare.count(")")
            continue
        return is_argument or bare.startswith("pub ") or (bare[:1].isupper() and not PRIVATE.match(bare))
    return False


def check_rust(found, path, source, is_command_line):
    lines = source.splitlines()
    run, previous = [], None

    def flush():
        if run:
            kind = run[0][2]
            is_item = kind == "//!" or (kind == "///" and is_public(lines, run[-1][0]))
            check_text(found, path, [(number, text) for number, text, _ in run], is_item=is_item)
        run.clear()

    for token in RUST_TOKEN.finditer(source):
        text, number = token[0], source.count("\n", 0, token.start()) + 1
        before = lines[number - 1][: token.start() - (source.rfind("\n", 0, token.start()) + 1)]
        if text.startswith("//"):
            kind = re.match(r"//[/!]?(?!/)", text)
            kind = kind[0] if kind else "//"
            body = text[len(kind) :]
            is_alone = not before.strip()
            if run and (not is_alone or previous != (number - 1, kind)):
                flush()
            run.append((number, body[1:] if body.startswith(" ") else body, kind))
            previous = (number, kind) if is_alone else None
            continue
        flush()
        if text.startswith("/*"):
            check_text(found, path, [(number + n, line.strip(" */!")) for n, line in enumerate(text.splitlines())])
        elif '"' in text[:3] or text.startswith(("r#", "br#")):
            is_doc = re.search(r"\b(?:doc|about|help|long_about|long_help|after_help|after_long_help) = $", before) is not None
            is_help = is_doc or (is_command_line and re.search(r"const [A-Z_]+: &str =\s*$", before) is not None)
            check_text(found, path, string_lines(text, number), with_lengths=is_help)
    flush()


def string_lines(literal, number):
    """The lines of a Rust string literal as (number, text); empty if it is data rather than words."""
    body = literal[literal.index('"') + 1 : literal.rindex('"')]
    if "r" not in literal[: literal.index('"')]:
        # A line that ends in a backslash continues below; the mark keeps the count of lines.
        body = re.sub(r"\\\n\s*", "\0", body).replace("\\\"", "'").replace("\\t", " ")
    result = []
    for part in body.split("\n"):
        for line in part.split("\\n"):
            result.append((number, line.replace("\0", "")))
            number += line.count("\0")
        number += 1
    return result if word_count(body) >= 4 else []


def check_markdown(found, path, source):
    check_text(found, path, list(enumerate(source.splitlines(), 1)))


def check_hash(found, path, source):
    """Checks the comments of a file whose comments begin with `#`."""
    run = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        match = re.match(r"\s*#(?!!)+ ?(.*)", line)
        if match:
            run.append((number, match[1]))
            continue
        if run:
            check_text(found, path, run)
            run = []
        trailing = re.search(r"\s# (\w.*)$", line)
        if trailing and line[: trailing.start()].count('"') % 2 == 0 and line[: trailing.start()].count("'") % 2 == 0:
            check_text(found, path, [(number, trailing[1])])


def check_python(found, path, source):
    run = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            if run and run[-1][0] != token.start[0] - 1:
                check_text(found, path, run)
                run = []
            run.append((token.start[0], token.string.lstrip("#").removeprefix(" ")))
    if run:
        check_text(found, path, run)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            first = node.body[0]
            check_text(found, path, list(enumerate(ast.get_docstring(node).splitlines(), first.lineno)), is_item=True)


def check_all(root, prefixes):
    found = Findings()
    for globs, check in ((PROSE, check_markdown), (RUST, None), (PYTHON, check_python), (HASH, check_hash)):
        for file in sorted({file for glob in globs for file in root.glob(glob) if file.is_file()}):
            path = file.relative_to(root)
            if SKIPPED_FOLDERS & set(path.parts) or not str(path).startswith(prefixes):
                continue
            source = file.read_text()
            found.files += 1
            if check:
                check(found, str(path), source)
            else:
                check_rust(found, str(path), source, "briquette-cli" in path.parts)
    return found


SELF_TEST = {
    "README.md": """# What of those of which

One two three, e.g. `a code. Span` is four. A [link text](https://example.org/a.b) is two words.

- an item
- one of that of which nothing is known
  and its second line

```sh
# what there is
```

| what there is | in a table |

Long """ + "word " * 30 + "end.\n\nShort again, as it must\nbe; the value is\nheld against its limit.\n",
    "crates/a/src/lib.rs": '''//! A short summary. Then more.

/// What is smallest, as a mask.
#[must_use]
pub fn mask() -> String {
    // Those of the past
    // are in a comment.
    let quote = '"'; // whoever reads this
    format!("no file of that of which it was {quote}", "http://stands.for")
}

/// A summary with ''' + "word " * 20 + '''at its end.
///
/// ```
/// // What there is, foretold.
/// ```
pub struct Long;

/// What a private item is.
fn private() {}

struct Flags {
    /// What an argument does.
    #[arg(long)]
    flag: bool,
}

/// Is this wherein? `thereof` is code.
const TEXT: &str = r#"naught in a raw "string" of words"#;
''',
    "justfile": "# It goes on\n# and on.\nbuild:\n  echo '# stands for nothing'\n",
    "scripts/a.py": '"""It lies that way."""\n\n# Foretold.\nvalue = "whoever"\n',
}
EXPECTED = [
    ("README.md", 1, "pattern"),
    ("README.md", 1, "pattern"),
    ("README.md", 6, "pattern"),
    ("README.md", 13, "pattern"),
    ("README.md", 15, "sentence"),
    ("README.md", 18, "pattern"),
    ("crates/a/src/lib.rs", 3, "pattern"),
    ("crates/a/src/lib.rs", 3, "pattern"),
    ("crates/a/src/lib.rs", 6, "pattern"),
    ("crates/a/src/lib.rs", 8, "pattern"),
    ("crates/a/src/lib.rs", 9, "pattern"),
    ("crates/a/src/lib.rs", 12, "summary"),
    ("crates/a/src/lib.rs", 23, "pattern"),
    ("crates/a/src/lib.rs", 28, "pattern"),
    ("crates/a/src/lib.rs", 29, "pattern"),
    ("justfile", 1, "pattern"),
    ("scripts/a.py", 1, "pattern"),
    ("scripts/a.py", 3, "pattern"),
]


def self_test():
    """Checks a small tree with one case of each rule."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in SELF_TEST.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        found = check_all(Path(folder), ("",))
        only = check_all(Path(folder), ("scripts/",))
    actual = sorted((path, line, kind.split(" ")[0]) for path, line, kind, _ in found.found)
    missing, extra = list(EXPECTED), []
    for finding in actual:
        missing.remove(finding) if finding in missing else extra.append(finding)
    counts = [word_count(plain("One `a b c`, [two words](url) - end. ")), len(list(sentences("See e.g. A. It is 3.5 MB. torch ends")))]
    if missing or extra or counts != [5, 2] or (only.files, len(only.found)) != (1, 2):
        print(f"language.py: self-test failed: missing {missing}, extra {extra}, counts {counts}, {len(only.found)}", file=sys.stderr)
        return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--path", nargs="+", default=[""], metavar="PREFIX")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    flags = parser.parse_args()
    if flags.self_test:
        return self_test()
    found = check_all(flags.root, tuple(flags.path))
    patterns, long, summaries = found.of("pattern"), found.of("sentence"), found.of("summary")
    for path, line, kind, text in sorted(found.found if flags.list else patterns):
        print(f"{path}:{line}: {kind}: {text}")
    shares = len(long) / max(1, found.sentences), len(summaries) / max(1, found.items)
    print(f"{found.files} files: {len(patterns)} patterns; {len(long)} of {found.sentences} sentences ({shares[0]:.1%}) have more than "
          f"{SENTENCE_LIMIT} words; {len(summaries)} of {found.items} first sentences of items ({shares[1]:.1%}) have more than "
          f"{SUMMARY_LIMIT}; at most {EXCEPTIONS:.0%} may")
    return int(bool(patterns) or max(shares) > EXCEPTIONS)


if __name__ == "__main__":
    sys.exit(main())
