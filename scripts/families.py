#!/usr/bin/env python3
"""Print the lines of each file of a family of networks, and where a family is named. Exit code 1 if the median exceeds 120.

usage: families.py

A family is a file with a function `build` in crates/briquette-graph/src/families, and a row of `FAMILIES`. Lines count code, comments and
blank lines, without tests.
"""

import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "crates/briquette-graph/src/families"
MOST = 120


def n_lines(path):
    return len(path.read_text().split("#[cfg(test)]")[0].rstrip().splitlines())


def families():
    """Return the lines of each family by its module."""
    rows = re.findall(r"\b(\w+)::build\w*", (FOLDER.parent / "families.rs").read_text())
    return {name: n_lines(FOLDER / f"{name}.rs") for name in sorted(set(rows))}


def edits(module):
    """Return the lines of the table that name a module, and the files that use it."""
    table = (FOLDER.parent / "families.rs").read_text().splitlines()
    lines = [line.strip() for line in table if re.search(rf"\b{module}\b", line)]
    others = subprocess.run(["git", "grep", "-lw", f"{module}::build", "--", "crates"], cwd=ROOT, capture_output=True, text=True)
    return lines, others.stdout.split()


def main():
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    found = families()
    for name, lines in sorted(found.items(), key=lambda item: item[1]):
        print(f"{lines:4} {name}")
    median = statistics.median(found.values())
    print(f"{len(found)} families, median {median:g} lines; at most {MOST}")
    lines, files = edits("whisper")
    print(f"whisper: its file, and {len(lines)} lines of {' '.join(files)}: {'; '.join(lines)}")
    sys.exit(int(median > MOST))


if __name__ == "__main__":
    main()
