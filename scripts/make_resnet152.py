#!/usr/bin/env python3
"""Make a ResNet-152 with random weights and torchvision's names, and large images. Downloads nothing.

usage: make_resnet152.py DIRECTORY [--images 1] [--size 2240]

Writes DIRECTORY/model/model.safetensors (241 MB) and DIRECTORY/images-SIZE/CLASS/0.bmp. Convolutions have He initialization
(normal, variance 2 / fan out). The last norm of each block starts at 0.2, so that outputs of 50 blocks stay bounded.
Existing files are not written again. Uses the standard library only.
"""

import argparse
import array
import json
import math
import pathlib
import random
import struct
import sys

BLOCKS, POOL = (3, 8, 36, 3), 1 << 18


def norm(name, channels, gamma=1.0):
    """Yields (name, shape, kind, value) of a batch norm's tensors."""
    yield f"{name}.weight", [channels], "constant", gamma
    for field, value in (("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
        yield f"{name}.{field}", [channels], "constant", value


def conv(name, n_in, n_out, kernel):
    yield f"{name}.weight", [n_out, n_in, kernel, kernel], "normal", math.sqrt(2 / (n_out * kernel * kernel))


def tensors():
    """Returns every tensor of the network."""
    yield from conv("conv1", 3, 64, 7)
    yield from norm("bn1", 64)
    n_in = 64
    for stage, n_blocks in enumerate(BLOCKS):
        width = 64 << stage
        for block in range(n_blocks):
            at, n_out = f"layer{stage + 1}.{block}", 4 * width
            yield from conv(f"{at}.conv1", n_in, width, 1)
            yield from norm(f"{at}.bn1", width)
            yield from conv(f"{at}.conv2", width, width, 3)
            yield from norm(f"{at}.bn2", width)
            yield from conv(f"{at}.conv3", width, n_out, 1)
            yield from norm(f"{at}.bn3", n_out, 0.2)
            if block == 0:
                yield from conv(f"{at}.downsample.0", n_in, n_out, 1)
                yield from norm(f"{at}.downsample.1", n_out)
            n_in = n_out
    yield "fc.weight", [1000, n_in], "normal", 1 / math.sqrt(n_in)
    yield "fc.bias", [1000], "constant", 0.0


def write_model(path, rng):
    """Writes one safetensors file. Random numbers are sampled once and repeated from random offsets."""
    pool, scaled = [rng.gauss(0, 1) for _ in range(POOL)], {}
    header, end, all_tensors = {"__metadata__": {"format": "pt"}}, 0, list(tensors())
    for name, shape, _, _ in all_tensors:
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape, kind, value in all_tensors:
            if kind == "normal" and value not in scaled:
                scaled[value] = array.array("f", [value * x for x in pool]).tobytes()
            left = 4 * math.prod(shape)
            while left > 0:
                at = 4 * rng.randrange(POOL) if kind == "normal" else 0
                piece = scaled[value][at : at + left] if kind == "normal" else array.array("f", [value]).tobytes() * (left // 4)
                file.write(piece)
                left -= len(piece)
    partial.rename(path)


def write_image(path, size, rng):
    """Writes a bitmap of soft waves, discs and noise."""
    cell, n = 8, -(-size // 8)
    waves = [[rng.uniform(0.01, 0.2), rng.uniform(0.01, 0.2), rng.uniform(0, 6.28)] for _ in range(3)]
    discs = [(rng.randrange(n), rng.randrange(n), rng.randrange(n // 8 + 1, n // 3 + 2)) for _ in range(4)]
    rows = []
    for y in range(n):
        pixels = []
        for x in range(n):
            lift = sum(40 for cx, cy, r in discs if (x - cx) ** 2 + (y - cy) ** 2 < r * r)
            pixel = bytes(int(max(0, min(255, 100 + 60 * math.sin(a * x + b * y + c) + lift + rng.randrange(16)))) for a, b, c in waves)
            pixels.append(pixel * cell)
        rows.append(b"".join(pixels)[: 3 * size] + bytes(-3 * size % 4))
    body = b"".join(row * cell for row in rows)[: size * len(rows[0])]
    head = struct.pack("<2sIHHI", b"BM", 54 + len(body), 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, size, size, 1, 24, 0, len(body), 2835, 2835, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + body)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--size", type=int, default=2240)
    args = parser.parse_args()
    if args.images < 1 or args.size < 1:
        sys.exit("make_resnet152.py: expected at least one image of at least one pixel")
    model = args.directory / "model" / "model.safetensors"
    if not model.exists():
        write_model(model, random.Random(0))
    for index in range(args.images):
        image = args.directory / f"images-{args.size}" / f"{index:04}" / "0.bmp"
        if not image.exists():
            write_image(image, args.size, random.Random(index))


if __name__ == "__main__":
    main()
