#!/usr/bin/env python3
"""Compare the size and speed of our entropy-coded blocks with zstd and nncodec (DeepCABAC) on the same codes.

usage: entropy.py EXAMPLE DIR [--largest N]

EXAMPLE is the built example bench_entropy. DIR is an output of `briquette compress --quantize int8`, or of any scheme with one
byte per code. Needs numpy, zstandard and nncodec. Each side runs on one thread, tensor by tensor. Prints a table with ratios.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import tempfile
import time

import numpy as np
import zstandard
from nncodec.extensions import deepCABAC


def codes_of(directory):
    """Yields (name, codes `[rows, columns]`) of each tensor with one byte per code."""
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        data = path.read_bytes()
        (n,) = struct.unpack_from("<Q", data)
        for name, info in json.loads(data[8 : 8 + n]).items():
            if name.endswith(".codes") and info["dtype"] == "I8":
                start, end = info["data_offsets"]
                yield name, np.frombuffer(data[8 + n + start : 8 + n + end], np.int8).reshape(info["shape"])


def timed(work):
    start = time.perf_counter()
    found = work()
    return found, time.perf_counter() - start


def zstd(codes):
    coded, encode_s = timed(lambda: zstandard.ZstdCompressor(level=1).compress(codes.tobytes()))
    decoded, decode_s = timed(lambda: zstandard.ZstdDecompressor().decompress(coded))
    assert decoded == codes.tobytes()
    return len(coded), encode_s, decode_s


def nncodec(codes):
    """Encodes codes without further quantization, with nncodec's default profile and contexts."""
    off, none = (deepCABAC.HdspMode.AlwaysOff, np.array([], np.int8)), np.array([], np.int32)
    values = np.ascontiguousarray(codes, np.int32)

    def encode():
        encoder = deepCABAC.Encoder()
        encoder.initCtxModels(10, 0)
        encoder.encodeLayer(values, 0, 0, 0, 0, 0, none, *off, 0, 0)
        return bytearray(encoder.finish().tobytes())

    def decode():
        decoder, found = deepCABAC.Decoder(), np.zeros_like(values)
        decoder.setStream(coded)
        decoder.initCtxModels(10)
        decoder.decodeLayer(found, 0, 0, 0, 0, *off, 0, 0)
        return found

    coded, encode_s = timed(encode)
    decoded, decode_s = timed(decode)
    assert (decoded == values).all(), "nncodec gave other codes"
    return len(coded), encode_s, decode_s


def ours(example, tensors):
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for name, codes in tensors:
            paths.append(pathlib.Path(directory) / name)
            paths[-1].write_bytes((codes.astype(np.int16) + 128).astype(np.uint8).tobytes())
        lines = subprocess.run([example, *map(str, paths)], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("example")
    p.add_argument("directory")
    p.add_argument("--largest", type=int, default=10**9, help="only so many tensors, the largest")
    args = p.parse_args()
    tensors = sorted(codes_of(args.directory), key=lambda found: -found[1].size)[: args.largest]
    measured = ours(args.example, tensors)
    n, entropy = (sum(found[key] for found in measured) for key in ("codes", "entropy"))
    rows = {}
    for path in measured[0]["decode_s"]:
        decode_s = sum(found["decode_s"][path] for found in measured)
        rows[f"briquette-entropy, {path}"] = [sum(f["bytes"] for f in measured), sum(f["encode_s"] for f in measured), decode_s]
    for name, coder in [("zstd -1", zstd), ("nncodec", nncodec)]:
        rows[name] = [sum(figures) for figures in zip(*(coder(codes) for _, codes in tensors))]
    print(f"{len(tensors)} tensors, {n / 1e6:.2f} million codes, {8 * entropy / n:.3f} bits of order-0 entropy each\n")
    print("| | bytes | over the entropy | to code | codes/s | to decode | codes/s |\n|---|---|---|---|---|---|---|")
    for name, (n_bytes, encode_s, decode_s) in rows.items():
        speed = f"{encode_s:.3f} s | {n / encode_s / 1e9:.3f} G | {decode_s:.4f} s | {n / decode_s / 1e9:.3f} G"
        print(f"| {name} | {n_bytes / 1e6:.3f} MB | {n_bytes / entropy:.4f}x | {speed} |")


if __name__ == "__main__":
    main()
