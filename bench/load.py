#!/usr/bin/env python3
"""Time the loading of a model as int8 and as entropy-coded 3-bit codes, as a Markdown table.

usage: load.py BENCH_LOAD BENCH_ENTROPY INT8 CODED [--threads 2] [--rounds 31] [--runs 3]

Loading goes from files in the page cache to layers that are ready. The coded model may take as long as the int8 model, plus its
number of codes divided by the rate at which all threads decode.

The first two arguments are the examples bench_load and bench_entropy, built with --release. INT8 and CODED are outputs of one
model. Figures are medians of all runs. For the rate, one bench_entropy runs per thread.
"""

import argparse
import json
import math
import os
import statistics
import subprocess


def lines(texts):
    return [json.loads(line) for text in texts for line in text.splitlines()]


def loads(args):
    env = {**os.environ, "RAYON_NUM_THREADS": str(args.threads)}
    command = [args.bench_load, args.int8, args.coded, "--rounds", str(args.rounds)]
    found = lines(subprocess.check_output(command, env=env, text=True) for _ in range(args.runs))
    return [statistics.median(line["ms"] for line in found if line["model"] == path) for path in (args.int8, args.coded)]


def rate(args):
    """Returns the codes that all threads decode per second, each with its best instructions."""
    at_once = [subprocess.Popen([args.bench_entropy], stdout=subprocess.PIPE, text=True) for _ in range(args.threads)]
    found = lines(process.communicate()[0] for process in at_once)
    return args.threads * min(line["codes"] / min(line["decode_s"].values()) for line in found)


def n_codes(path):
    with open(os.path.join(path, "briquette.json")) as file:
        tensors = json.load(file)["tensors"].values()
    return sum(math.prod(tensor["shape"]) for tensor in tensors if tensor["coding"].get("codes"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bench_load", "bench_entropy", "int8", "coded"):
        parser.add_argument(name)
    for name, usual in (("--threads", 2), ("--rounds", 31), ("--runs", 3)):
        parser.add_argument(name, type=int, default=usual)
    args = parser.parse_args()
    (plain, coded), per_second = loads(args), rate(args)
    allowed = plain + n_codes(args.coded) / per_second * 1e3
    print(f"{args.threads} thread(s), {per_second / 1e9:.2f} G codes/s, median of {args.runs} runs\n")
    print("| int8, ms | coded, ms | allowed, ms | coded / allowed (target 1.0) |\n|---|---|---|---|")
    print(f"| {plain:.1f} | {coded:.1f} | {allowed:.1f} | {coded / allowed:.2f}x |")


if __name__ == "__main__":
    main()
