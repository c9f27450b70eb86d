#!/usr/bin/env python3
"""Compress a sparse model file of 24 GiB in a process with a memory limit of 256 MiB.

usage: huge.py BRIQUETTE_BINARY [GIB]     (24)

The file is sparse: it takes no disk space, but every byte is read. Prints seconds and peak memory. Exit code 1 if the limit
was exceeded or the output does not verify.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

LIMIT = 256 << 20
ROWS, COLS = 4096, 16384


def make(path, n_gib):
    """Writes tensors `layers.N.weight`, f32 [4096, 16384], a quarter of a GiB each; the data is one hole."""
    n_tensor = 4 * ROWS * COLS
    n = (n_gib << 30) // n_tensor
    tensors = {
        f"layers.{i}.weight": {"dtype": "F32", "shape": [ROWS, COLS], "data_offsets": [i * n_tensor, (i + 1) * n_tensor]}
        for i in range(n)
    }
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + n * n_tensor)


def limited():
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))


def run(*command):
    start = time.perf_counter()
    process = subprocess.Popen(command, preexec_fn=limited)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    print(f"{command[1]}: {time.perf_counter() - start:.1f} s, peak {usage.ru_maxrss / 1024:.0f} MiB", flush=True)
    if process.returncode or usage.ru_maxrss * 1024 > LIMIT:
        sys.exit(f"exit code {process.returncode}, limit {LIMIT >> 20} MiB")


def main():
    binary, n_gib = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 24
    with tempfile.TemporaryDirectory(dir=".") as directory:
        model, out = pathlib.Path(directory) / "huge.safetensors", pathlib.Path(directory) / "out"
        make(model, n_gib)
        run(binary, "compress", model, "-o", out, "--prune", "0.4", "--quantize", "int8", "--quiet")
        run(binary, "verify", out, "--quiet")


if __name__ == "__main__":
    main()
