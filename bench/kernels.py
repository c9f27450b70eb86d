#!/usr/bin/env python3
"""Compare int8 linear kernels with torch's fbgemm and oneDNN, cell by cell in alternating runs, as a Markdown table.

usage: kernels.py BENCH_LINEAR --python PYTHON [--layers BENCH_LAYERS] [--threads 1] [--kn 768x768,..] [--m 1,8,64,512] [--rounds 3] [--json FILE]

BENCH_LINEAR is the example bench_linear of briquette-cpu, built with --release. PYTHON has torch. Each side quantizes its
activations and adds its bias. Each cell is the median of the rounds; a round's figure is the median of its calls. A ratio above 1
means that ours is faster. With one thread, 4096x4096 on two threads follows if the machine has two processors. BENCH_LAYERS, the
example bench_layers of briquette-ops, adds convolutions and weight-only int8 and int4.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys

ENGINES = ("fbgemm", "onednn")
PEER = r"""
import json, statistics, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
import torch.ao.quantization as tq
threads, seconds = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(threads)
for line in sys.stdin:
    k, n, rows = json.loads(line)
    base = torch.nn.Sequential(torch.nn.Linear(k, n)).eval()
    for engine in ("fbgemm", "onednn"):
        torch.backends.quantized.engine = engine
        model = tq.quantize_dynamic(base, {torch.nn.Linear: tq.per_channel_dynamic_qconfig}, dtype=torch.qint8)
        with torch.inference_mode():
            for m in rows:
                x, times, start = torch.randn(m, k), [], time.perf_counter()
                model(x)
                while len(times) < 5 or time.perf_counter() - start < seconds:
                    t = time.perf_counter()
                    model(x)
                    times.append(time.perf_counter() - t)
                print(json.dumps({"what": engine, "k": k, "n": n, "m": m, "us": statistics.median(times) * 1e6}), flush=True)
    print("null", flush=True)
"""


def ours(args, shape, path="active", rows=None, threads=None, more=()):
    """Runs our benchmark on one shape. Returns the median microseconds of each kind, and the register peak."""
    command = [args.bench, "--kn", shape, "--m", rows or args.m, "--seconds", str(args.seconds)]
    command += ["--path", path, *more]
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads or args.threads))
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


class Peer:
    """torch in its own process, which measures one shape per request."""

    def __init__(self, args):
        environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), **dict(e.split("=", 1) for e in args.peer_env))
        command = [args.python, "-c", PEER, str(args.threads), str(args.seconds)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def ask(self, shape, rows):
        """Returns the lines for one shape."""
        self.process.stdin.write(json.dumps([*map(int, shape.split("x")), rows]) + "\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line == "null\n":
                return lines
            lines.append(json.loads(line))
        sys.exit("kernels.py: the peer ended early; does its python have torch?")


def measure(args):
    """Returns {(k, n, m): {what: median microseconds}} and the highest register peak in GOP/s."""
    rows, cells, peak, path, n_bytes = [int(m) for m in args.m.split(",")], {}, 0.0, "", {}
    peer = Peer(args)
    for _ in range(args.rounds):
        for shape in args.kn.split(","):
            for line in ours(args, shape, args.path, more=("--rten", "--sparse")) + peer.ask(shape, rows):
                if line["what"] == "peak":
                    peak, path = max(peak, line["gops"]), line["path"]
                    continue
                key = line["k"], line["n"], line["m"]
                times = cells.setdefault(key, {})
                times.setdefault(line["what"], []).append(line["us"])
                n_bytes[key[:2] + (line["what"],)] = line.get("bytes", 0)
    peer.process.stdin.close()
    cells = {key: {what: statistics.median(us) for what, us in times.items()} for key, times in cells.items()}
    return cells, peak, path, n_bytes


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table(cells, peak, path, threads):
    """Prints the dense cells against the better peer."""
    print(f"int8 linear, {threads} thread(s), path {path}, GOP/s; VNNI register peak of one core {peak:.0f}\n")
    print("| K x N | M | ours | symmetric | rten | fbgemm | onednn | ours / better peer | ours / rten | ours / peak |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for (k, n, m), us in cells.items():
        gops = {what: 2e-3 * k * n * m / value for what, value in us.items()}
        ratio = gops["asymmetric"] / max(gops[engine] for engine in ENGINES)
        ratios.append(ratio)
        columns = [f"{gops[what]:.0f}" for what in ("asymmetric", "symmetric", "rten", *ENGINES)]
        columns += [f"{ratio:.2f}", f"{gops['asymmetric'] / gops['rten']:.2f}", f"{gops['asymmetric'] / peak / threads:.2f}"]
        print(f"| {k}x{n} | {m} | " + " | ".join(columns) + " |")
    print(f"\nGeometric mean {geometric_mean(ratios):.2f}, smallest {min(ratios):.2f}.")


def sparse_table(cells, n_bytes):
    """Prints sparse against our own dense weights."""
    kinds = [what for what in next(iter(cells.values())) if what.startswith("sparse")]
    print("\nSparse int8, speed relative to dense (and bytes):\n")
    print("| K x N | M | " + " | ".join(kinds) + " |")
    print("|---|---|" + "---|" * len(kinds))
    for (k, n, m), us in cells.items():
        columns = []
        for kind in kinds:
            size = n_bytes[k, n, kind] / n_bytes[k, n, "asymmetric"]
            columns.append(f"{us['asymmetric'] / us[kind]:.2f} ({size:.2f})")
        print(f"| {k}x{n} | {m} | " + " | ".join(columns) + " |")


def other_paths(args, peak):
    """Measures AVX-512 VNNI against its own register peak, if another instruction set is in use."""
    print("\nAVX-512 VNNI alone, GOP/s and share of the register peak:\n\n| K x N | M | GOP/s | of peak |\n|---|---|---|---|")
    for shape in args.kn.split(","):
        found = {}
        for line in [line for _ in range(args.rounds) for line in ours(args, shape, "avx512-vnni")]:
            if line["what"] == "asymmetric":
                found.setdefault(line["m"], []).append(line["gops"])
        for m, gops in ((m, statistics.median(gops)) for m, gops in found.items()):
            print(f"| {shape} | {m} | {gops:.0f} | {gops / peak:.2f} |")


def two_threads(args):
    """Measures 4096x4096 at M = 512 on one thread and on two, in alternating runs."""
    found = {1: [], 2: []}
    for _ in range(args.rounds):
        for threads in found:
            for line in ours(args, "4096x4096", args.path, "512", threads):
                if line["what"] == "asymmetric":
                    found[threads].append(line["gops"])
    one, two = (statistics.median(gops) for gops in found.values())
    print(f"\nTwo threads, 4096x4096, M=512: {two:.0f} against {one:.0f} GOP/s, {two / one:.2f}x")


def layers(args):
    """Prints the table of bench_layers, with the same number of threads."""
    print("\nConvolutions, weight-only int8 and int4 against burn's f32:\n", flush=True)
    environment = dict(os.environ, RAYON_NUM_THREADS=str(args.threads))
    subprocess.run([args.layers, "--seconds", str(args.seconds)], env=environment, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--python", required=True)
    parser.add_argument("--layers", help="the example bench_layers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kn", default="768x768,768x3072,3072x768,4096x4096,4096x11008")
    parser.add_argument("--m", default="1,8,64,512")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--path", default="active", help="force one of our paths, such as avx512-vnni")
    parser.add_argument("--peer-env", action="append", default=[], help="NAME=VALUE for torch, such as DNNL_MAX_CPU_ISA=AVX512_CORE_VNNI")
    parser.add_argument("--json", help="also write the median times there")
    args = parser.parse_args()
    cells, peak, path, n_bytes = measure(args)
    table(cells, peak, path, args.threads)
    sparse_table(cells, n_bytes)
    if path == "amx":
        other_paths(args, peak)
    if args.threads == 1 and (os.cpu_count() or 1) > 1:
        two_threads(args)
    if args.layers:
        layers(args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"peak": peak, "cells": [{"k": k, "n": n, "m": m, **us} for (k, n, m), us in cells.items()]}, file)


if __name__ == "__main__":
    main()
