#!/usr/bin/env python3
"""List Rust files and functions that are too long.

usage: size.py [ROOT]

A file should have about 150 lines, and at most 350 with its tests. A function should have about 10 lines, and rarely more than 40.
Prints every file above 350 lines and every function above 40. Exit code 1 if a function has more than 80 lines or a file more
than 400.
"""

import pathlib
import re
import sys

FUNCTION = re.compile(r"^\s*(?:pub(?:\([a-z]+\))? )?(?:const |unsafe |async |extern \"C\" )*fn (\w+)")


def functions(lines):
    """Yields (name, first line, length) of each function; rustfmt indents its closing brace like its `fn`."""
    for number, line in enumerate(lines):
        found = FUNCTION.match(line)
        if not found:
            continue
        indent = len(line) - len(line.lstrip())
        closing = " " * indent + "}"
        for end in range(number, len(lines)):
            if lines[end].rstrip() == closing:
                yield found[1], number + 1, end - number + 1
                break
            if end == number and line.rstrip().endswith(("}", ";")):
                break


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = sorted(path for folder in ("crates", "tests") for path in (root / folder).rglob("*.rs"))
    is_too_long, lengths = False, []
    for path in files:
        lines = path.read_text().splitlines()
        if len(lines) > 350:
            print(f"{path}: {len(lines)} lines")
            is_too_long |= len(lines) > 400
        for name, line, length in functions(lines):
            lengths.append(length)
            if length > 40:
                print(f"{path}:{line}: {name} has {length} lines")
                is_too_long |= length > 80
    lengths.sort()
    n = len(lengths)
    print(f"{len(files)} files, {n} functions; median {lengths[n // 2]} lines, 90th percentile {lengths[n * 9 // 10]}")
    sys.exit(is_too_long)


if __name__ == "__main__":
    main()
