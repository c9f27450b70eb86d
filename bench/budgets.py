#!/usr/bin/env python3
"""Check that size budgets are kept and used: random budgets for several models, compressed without data, as a Markdown table.

usage: budgets.py BRIQUETTE [MODEL ...] [--count 20] [--seed 0] [--out bench-out/budgets]

MODEL is a directory (default: fixtures/digits, models/minilm and models/smollm2). Budgets are sampled uniformly between 2 and 6
bits per element of the model's file. A budget is kept if the weight files are no larger. It is used if they are at most 0.5 %
smaller.
"""

import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import time

MODELS = ["fixtures/digits", "models/minilm", "models/smollm2"]


def run(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("briquette", type=pathlib.Path)
    p.add_argument("models", nargs="*", default=MODELS)
    p.add_argument("--count", type=int, default=20)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench-out/budgets"))
    args = p.parse_args()
    draw, n_over = random.Random(args.seed), 0
    print("| model | budgets | bytes | over | most under | seconds each |\n|---|---|---|---|---|---|")
    for model in args.models:
        tensors = run(args.briquette, "plan", model, "--quantize", "int8", "--json", "--quiet")["tensors"]
        n_elements = sum(math.prod(tensor["shape"]) for tensor in tensors)
        low, high = (int(n_elements * bits / 8) for bits in (2, 6))
        sizes, shares, start = [], [], time.monotonic()
        for _ in range(args.count):
            size = draw.randint(low, high)
            report = run(args.briquette, "compress", model, "-o", args.out, "--force", "--bytes", size, "--cast", "f16", "--json", "--quiet")
            sizes.append(size)
            shares.append(report["after"]["file_bytes"] / size)
        over, seconds = sum(share > 1 for share in shares), (time.monotonic() - start) / args.count
        n_over += over + sum(share < 0.995 for share in shares)
        print(f"| {model} | {args.count} | {min(sizes):,} to {max(sizes):,} | {over} | {100 * (1 - min(shares)):.2f} % | {seconds:.1f} |", flush=True)
    return int(n_over > 0)


if __name__ == "__main__":
    sys.exit(main())
