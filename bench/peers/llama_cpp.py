"""Get llama.cpp's libraries for x86-64 Linux from npm: no build, no GPU. Needs npm."""

import hashlib
import subprocess
import sys
import tarfile

PACKAGE = "@node-llama-cpp/linux-x64@3.22.1"
TARBALL_SHA256 = "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0"
INSIDE = "package/bins/linux-x64"
LIBRARY = "libllama.v0.5.0.so"
BACKENDS = "libggml.v0.5.0.so"


def fetched(directory):
    """Returns the folder of the libraries inside a directory, and downloads them if they are missing."""
    libraries = directory / INSIDE
    if not (libraries / LIBRARY).exists():
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=directory, check=True, stdout=subprocess.DEVNULL)
        (tarball,) = directory.glob("*.tgz")
        if hashlib.sha256(tarball.read_bytes()).hexdigest() != TARBALL_SHA256:
            sys.exit(f"{PACKAGE}: its sha256 is not {TARBALL_SHA256}")
        with tarfile.open(tarball) as archive:
            archive.extractall(directory, filter="data")
    return libraries
