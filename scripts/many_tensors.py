#!/usr/bin/env python3
"""Writes a model of very many small tensors: N matrices [8, 8] in f32, no two alike. Needs nothing but Python.

    python3 scripts/many_tensors.py 200000 out/many          # a directory: one file, or shards and their index

A header may have 100 MB, so that more than 600,000 tensors lie in shards.
"""

import argparse
import json
import random
import struct
from pathlib import Path

KINDS = ["attn.qkv", "attn.out", "mlp.fc1", "mlp.fc2"]
N_BYTES = 8 * 8 * 4
MAX_IN_FILE = 600_000
# Values of the highest byte of an f32: magnitudes from 2**-7 to 2**-3, either sign.
HIGHEST = bytes([0x3C, 0x3D, 0xBC, 0xBD] * 64)


def name_of(index):
    return f"layers.{index // len(KINDS)}.{KINDS[index % len(KINDS)]}.weight"


def write_file(path, names, dice):
    """One safetensors file."""
    entries = []
    for place, name in enumerate(names):
        start = place * N_BYTES
        entry = f'"{name}":{{"dtype":"F32","shape":[8,8],"data_offsets":[{start},{start + N_BYTES}]}}'
        entries.append(entry)
    header = ("{" + ",".join(entries) + "}").encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        left = len(names) * N_BYTES
        while left:
            n = min(left, 1 << 24)
            values = bytearray(dice.randbytes(n))
            values[3::4] = values[3::4].translate(HIGHEST)
            file.write(values)
            left -= n


def write_model(n, directory):
    """The whole model; a directory that is there already is filled again."""
    directory.mkdir(parents=True, exist_ok=True)
    dice = random.Random(n)
    names = [name_of(index) for index in range(n)]
    files = [names[start : start + MAX_IN_FILE] for start in range(0, n, MAX_IN_FILE)]
    if len(files) == 1:
        write_file(directory / "model.safetensors", names, dice)
        return
    weight_map = {}
    for number, part in enumerate(files, 1):
        file = f"model-{number:05}-of-{len(files):05}.safetensors"
        write_file(directory / file, part, dice)
        weight_map |= {name: file for name in part}
    index = {"metadata": {"total_size": n * N_BYTES}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("n", type=int, help="tensors")
    arguments.add_argument("directory", type=Path)
    asked = arguments.parse_args()
    write_model(asked.n, asked.directory)


if __name__ == "__main__":
    main()
