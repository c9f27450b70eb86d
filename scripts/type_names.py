"""Count the names that several types share: structs, enums, traits, unions and aliases. Tests are ignored.

    python3 scripts/type_names.py

Associated types of traits do not count. Prints each shared name with its files. Exit code 1 if more than LIMIT names are shared.
"""

import re
import sys
from pathlib import Path

from circles import ROOT, closing, module_path, tokens

LIMIT = 8
KINDS = ("struct", "enum", "trait", "union", "type")


def declared(found):
    """Yields the names of types that a file declares outside of `impl` and `trait` bodies."""
    at = 0
    while at < len(found):
        word = found[at]
        if word in ("impl", "trait") and (at == 0 or found[at - 1] in ("}", ";", "]", "pub", ")", "unsafe", "{")):
            if word == "trait":
                yield found[at + 1]
            while found[at] not in ("{", ";"):
                at += 1
            at = closing(found, at) if found[at] == "{" else at + 1
            continue
        if word in KINDS and re.match(r"[A-Z]\w*$", found[at + 1] if at + 1 < len(found) else ""):
            yield found[at + 1]
        at += 1


def main():
    places = {}
    for source in sorted(ROOT.glob("crates/*/src")):
        found = {file: tokens(file.read_text()) for file in sorted(source.rglob("*.rs"))}
        tests = {
            "::".join(module_path(source, file) + [words[place + 1]])
            for file, words in found.items()
            for place, word in enumerate(words)
            if word == "#test-module"
        }
        for file, words in found.items():
            path = module_path(source, file)
            if not any("::".join(path[:n]) in tests for n in range(1, len(path) + 1)):
                for name in declared(words):
                    places.setdefault(name, []).append(str(file.relative_to(ROOT / "crates")))
    shared = {name: files for name, files in sorted(places.items()) if len(files) > 1}
    for name, files in shared.items():
        print(f"{name}: {', '.join(files)}")
    print(f"{len(shared)} names are shared by several types; at most {LIMIT} may be")
    return 1 if len(shared) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
