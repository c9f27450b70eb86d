#!/usr/bin/env python3
"""Decodes entropy-coded outputs by docs/guide/src/file-format.md alone, and compares the codes with those of the same output in dense storage.

usage: read_blocks.py ENTROPY_DIR DENSE_DIR

Needs numpy and safetensors. Rows without bitmasks only: make DENSE_DIR with `--quantize` alone.
"""

import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file


def table_of(block):
    first, last = (int(code) for code in np.frombuffer(block[:2], np.int8))
    at, frequencies = 2, np.zeros(256, np.int64)
    for code in range(first, last + 1):
        low = block[at]
        frequencies[code & 0xFF] = low if low < 0x80 else (low & 0x7F) | block[at + 1] << 7
        at += 1 if low < 0x80 else 2
    assert frequencies.sum() == 4096, frequencies.sum()
    return frequencies, at


def decode(block, n, bits):
    if len(block) == (n * bits + 7) // 8:
        stream = np.unpackbits(np.frombuffer(block, np.uint8), bitorder="little")[: n * bits].reshape(n, bits)
        return (stream @ (1 << np.arange(bits)) - (1 << bits - 1)).astype(np.int8)
    frequencies, at = table_of(block)
    starts = np.concatenate([[0], np.cumsum(frequencies)[:-1]])
    symbols = np.repeat(np.arange(256), frequencies)
    x = np.frombuffer(block[at : at + 128], "<u4").astype(np.int64)
    words, used = np.frombuffer(block[at + 128 :], "<u2").astype(np.int64), 0
    codes = np.empty(n, np.uint8)
    for turn in range(0, n, 32):
        k = min(32, n - turn)
        slot = x[:k] & 4095
        symbol = symbols[slot]
        codes[turn : turn + k] = symbol
        x[:k] = frequencies[symbol] * (x[:k] >> 12) + slot - starts[symbol]
        low = np.flatnonzero(x[:k] < 1 << 15)
        x[low] = x[low] << 16 | words[used : used + len(low)]
        used += len(low)
    assert used == len(words) and (x == 1 << 15).all()
    return codes.view(np.int8)


def unpacked(codes, bits, n_cols):
    if codes.dtype == np.int8:
        return codes
    stream = np.unpackbits(codes, axis=1, bitorder="little")[:, : n_cols * bits].reshape(len(codes), n_cols, bits)
    return (stream @ (1 << np.arange(bits)) - (1 << bits - 1)).astype(np.int8)


def main():
    coded, dense = (pathlib.Path(path) for path in sys.argv[1:3])
    manifest = json.loads((coded / "briquette.json").read_text())
    tensors, expected = (load_file(path / "model.briquette.safetensors") for path in (coded, dense))
    n_codes = n_bytes = 0
    for name, entry in manifest["tensors"].items():
        if not isinstance(entry["coding"]["storage"], dict) or "tied_to" in entry:
            continue
        bits = entry["coding"]["codes"]["bits"]
        rows = tensors[name + ".scale"].shape[0] if entry["coding"]["codes"]["grouping"] != "tensor" else entry["shape"][0]
        n = int(np.prod(entry["shape"]))
        cols, found, start = n // rows, [], 0
        step = 4 * max(1, 65536 // cols)
        blocks = tensors[name + ".blocks"].tobytes()
        for number, end in enumerate(tensors[name + ".block_ends"]):
            count = (min(rows, (number + 1) * step) - number * step) * cols
            found.append(decode(blocks[start:end], count, bits))
            start = end
        same = np.concatenate(found).reshape(rows, cols) == unpacked(expected[name + ".codes"].reshape(rows, -1), bits, cols)
        assert same.all(), f"{name}: {(~same).sum()} of {n} codes differ"
        n_codes, n_bytes = n_codes + n, n_bytes + len(blocks)
    print(f"{n_codes} codes in {n_bytes} bytes, {8 * n_bytes / n_codes:.3f} bits each: all as in {dense}")


if __name__ == "__main__":
    main()
