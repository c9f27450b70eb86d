#!/usr/bin/env python3
"""Count the crates that the library adds to burn's own, with its default features.

usage: light.py [MOST]

Exit code 1 if there are more than MOST (40). Crates that burn also depends on do not count.
"""

import re
import subprocess
import sys

LINE = re.compile(r"^(\d+)(\S+ v\S+)")


def graph():
    """Returns the dependencies of each crate in the library's tree, without tests and examples."""
    command = ["cargo", "tree", "--quiet", "--locked", "-p", "briquette", "-e", "normal,build", "--prefix", "depth"]
    below, path = {}, []
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        found = LINE.match(line)
        if not found:
            continue
        depth, name = int(found[1]), found[2]
        del path[depth:]
        if path:
            below.setdefault(path[-1], set()).add(name)
        path.append(name)
    return below


def reached(below, start):
    seen, open_ends = {start}, [start]
    while open_ends:
        for name in below.get(open_ends.pop(), ()):
            if name not in seen:
                seen.add(name)
                open_ends.append(name)
    return seen


def main():
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    below = graph()
    names = set(below) | set().union(*below.values())
    own, burn = (next(name for name in names if name.startswith(f"{crate} v")) for crate in ("briquette", "burn"))
    of_burn = reached(below, burn)
    beside = sorted(reached(below, own) - of_burn)
    print(f"{len(beside)} crates beside the {len(of_burn)} of burn; at most {most} may be")
    if len(beside) > most:
        print("\n".join(beside))
    sys.exit(len(beside) > most)


if __name__ == "__main__":
    main()
