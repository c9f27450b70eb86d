#!/usr/bin/env python3
"""Measure MiniLM's latency against torch, OpenVINO and onnxruntime, in alternating runs, as a Markdown table.

usage: minilm_latency.py BENCH_MINILM --python PYTHON [--model models/minilm] [--threads 1] [--batches 1,32]
       [--length 128] [--rounds 3] [--seconds 3] [--baseline BENCH_MINILM] [--runtimes-python PYTHON] [--out bench-out/runtimes]

Ours runs in f32, dynamic int8 and sparse dynamic int8. torch runs in f32 and with quantize_dynamic. OpenVINO and onnxruntime run
in f32 and int8, if there is a RUNTIMES_PYTHON.

BENCH_MINILM is the example bench_minilm of briquette-eval, built with --release. PYTHON has torch and transformers, and onnx if the
runtimes are measured. RUNTIMES_PYTHON has bench/peers/requirements-runtimes.txt. The baseline is another build of ours, timed in f32
only. Each figure is the median of the rounds; a round's figure is the median of its calls. Ratios are of times: below 1, ours is
faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

ENGINES = ("fbgemm", "onednn")
OPENVINO = ("openvino int8, static by nncf", "openvino int8, dynamic")
RUNTIMES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "runtimes.py")
PEER = r"""
import json, statistics, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
import torch.ao.quantization as tq
from transformers import AutoModel
folder, threads, batches, length, seconds = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
torch.set_num_threads(threads)
plain = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
for kind in ("torch f32", "fbgemm", "onednn"):
    model = plain
    if kind != "torch f32":
        torch.backends.quantized.engine = kind
        model = tq.quantize_dynamic(plain, {torch.nn.Linear: tq.per_channel_dynamic_qconfig}, dtype=torch.qint8)
    for batch in batches:
        ids = torch.randint(1000, 21000, (batch, length))
        mask, times, start = torch.ones_like(ids), [], time.perf_counter()
        with torch.inference_mode():
            model(input_ids=ids, attention_mask=mask)
            while len(times) < 5 or time.perf_counter() - start < seconds:
                t = time.perf_counter()
                model(input_ids=ids, attention_mask=mask)
                times.append(time.perf_counter() - t)
        print(json.dumps({"what": kind, "batch": batch, "ms": statistics.median(times) * 1e3}))
"""


def lines_of(command, threads):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    # nncf prints its progress between the lines.
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def ours(args, bench, kinds):
    command = [bench, "--model", args.model, "--batches", args.batches, "--length", str(args.length)]
    return lines_of([*command, "--seconds", str(args.seconds), "--kinds", kinds], args.threads)


def theirs(args):
    batches = json.dumps([int(batch) for batch in args.batches.split(",")])
    command = [args.python, "-c", PEER, args.model, str(args.threads), batches, str(args.length), str(args.seconds)]
    return lines_of(command, args.threads)


def runtimes(args):
    command = [args.runtimes_python, RUNTIMES, "run", args.out, "--threads", str(args.threads), "--batches", args.batches]
    return lines_of([*command, "--length", str(args.length), "--seconds", str(args.seconds)], args.threads)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bench")
    p.add_argument("--python", required=True)
    p.add_argument("--model", default="models/minilm")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--batches", default="1,32")
    p.add_argument("--length", type=int, default=128)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--baseline")
    p.add_argument("--runtimes-python")
    p.add_argument("--out", default="bench-out/runtimes")
    args = p.parse_args()
    if args.runtimes_python:
        subprocess.run([args.python, RUNTIMES, "export", args.model, args.out], check=True, stdout=subprocess.DEVNULL)
    times, seen = {}, {}
    for _ in range(args.rounds):
        found = ours(args, args.bench, "f32,int8,sparse") + theirs(args)
        if args.runtimes_python:
            found += runtimes(args)
        if args.baseline:
            found += [{**line, "what": "baseline f32"} for line in ours(args, args.baseline, "f32")]
        for line in found:
            key = line["what"], line["batch"]
            times.setdefault(key, []).append(line.get("median_ms", line["ms"]))
            seen[line["what"]] = line
    table(args, {key: statistics.median(ms) for key, ms in times.items()}, seen)


def table(args, median, seen):
    batches = [int(batch) for batch in args.batches.split(",")]
    peer = {batch: min(median[engine, batch] for engine in ENGINES) for batch in batches}
    floats = {batch: median.get(("baseline f32", batch), median["f32", batch]) for batch in batches}
    print(f"MiniLM, {args.length} tokens, {args.threads} thread(s), median of {args.rounds} rounds\n")
    rivals = {batch: min(median.get((kind, batch), float("inf")) for kind in OPENVINO) for batch in batches}
    kinds = ("ms", "/ torch int8", "/ OpenVINO int8", "burn f32 /") if args.runtimes_python else ("ms", "/ torch int8", "burn f32 /")
    heads = [f"{what}, batch {batch}" for batch in batches for what in kinds]
    print("| | " + " | ".join(heads) + " | bytes | cosine, least, Spearman |")
    print("|---|" + "---|" * (len(heads) + 2))
    for what, line in seen.items():
        cells = []
        for batch in batches:
            ms = median[what, batch]
            against = [f"{ms / rivals[batch]:.2f}"] if args.runtimes_python else []
            cells += [f"{ms:.1f}", f"{ms / peer[batch]:.2f}", *against, f"{floats[batch] / ms:.2f}"]
        fidelity = line.get("fidelity")
        cells.append(f"{line['bytes'] / 1e6:.2f} MB" if "bytes" in line else "")
        cells.append(", ".join(f"{value:.4f}" for value in fidelity.values()) if fidelity else "")
        print(f"| {what} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main())
