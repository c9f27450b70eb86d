#!/usr/bin/env python3
"""Measure a decoder's latency against torch and llama.cpp, in alternating runs, as Markdown tables.

usage: decoder_latency.py BENCH_DECODER BRIQUETTE --python PYTHON --llama-python PYTHON [--model models/smollm2]
       [--text models/brown/test-20k.txt] [--out bench-out/decoder] [--threads 1] [--windows 128,512] [--prompt 128] [--steps 64]
       [--rounds 3] [--seconds 3] [--only ours,torch,llama.cpp]

Measures whole windows of tokens, and one token at a time. Ours runs in f32, dynamic int8, int4, and int4 with int8 activations; torch in f32 and dynamic int8;
llama.cpp with Q8_0 and Q4_0.

BENCH_DECODER is the example bench_decoder of briquette-eval and BRIQUETTE the command, both built with --release. The first PYTHON
has torch and transformers, the second has bench/peers/requirements-llama.txt.

Each figure is the median of the rounds; a round's figure is the median of its calls. CPU is the time of all threads in the mean
call of a round. Ratios are of CPU time for windows and of wall time for single tokens: below 1, ours is faster. Bytes are the
weights that each token reads. Their share is of the bytes that one thread reads per second, as BENCH_DECODER measures it.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SCHEMES = {"int8-dynamic": ["--quantize", "int8-dynamic"], "int4-g32": ["--quantize", "int4-g32"], "int4-g32-dynamic": ["--quantize", "int4-g32-dynamic"]}
TYPES = ("Q8_0", "Q4_0")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bench", type=pathlib.Path)
    p.add_argument("briquette", type=pathlib.Path)
    p.add_argument("--python", required=True)
    p.add_argument("--llama-python", required=True)
    p.add_argument("--model", type=pathlib.Path, default=pathlib.Path("models/smollm2"))
    p.add_argument("--text", type=pathlib.Path, default=pathlib.Path("models/brown/test-20k.txt"))
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench-out/decoder"))
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--windows", default="128,512")
    p.add_argument("--prompt", type=int, default=128)
    p.add_argument("--steps", type=int, default=64)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--only", type=lambda sides: sides.split(","), default=["ours", "torch", "llama.cpp"])
    return p.parse_args()


def run(command, threads=None):
    threads = {} if threads is None else {name: str(threads) for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS")}
    return subprocess.run([str(part) for part in command], env=dict(os.environ, **threads), check=True, stdout=subprocess.PIPE, text=True).stdout


def prepare(args):
    """Makes the inputs of each side: our outputs, llama.cpp's files, and the tokens."""
    args.out.mkdir(parents=True, exist_ok=True)
    args.tokens = args.out / "tokens.json"
    args.tokens.write_text(run([args.python, HERE / "peers" / "decoder.py", "tokens", args.model, args.text, 1024]))
    for scheme, flags in SCHEMES.items():
        if not (args.out / scheme).exists():
            run([args.briquette, "compress", args.model, "-o", args.out / scheme, *flags, "--quiet"])
    if "llama.cpp" in args.only:
        sys.path.insert(0, str(HERE / "peers"))
        import llama_cpp

        args.libraries = llama_cpp.fetched(args.out.absolute() / "llama.cpp")
        if not all((args.out / f"{name}.gguf").exists() for name in TYPES):
            run([args.llama_python, HERE / "peers" / "llama_cpp_files.py", args.model, args.out, "--types", ",".join(TYPES)])


def flags(args):
    return ["--windows", args.windows, "--prompt", args.prompt, "--steps", args.steps, "--seconds", args.seconds]


def lines(args):
    """Returns the lines that each side prints in one round."""
    if "ours" in args.only:
        for name, path in {"f32": args.model, **{name: args.out / name for name in SCHEMES}}.items():
            output = run([args.bench, path, "--tokens", args.tokens, *flags(args)], args.threads)
            yield from ({"engine": name, **json.loads(line)} for line in output.splitlines())
    peer = [HERE / "peers" / "decoder.py"]
    if "torch" in args.only:
        output = run([args.python, *peer, "torch", args.model, args.tokens, "--threads", args.threads, *flags(args)], args.threads)
        yield from map(json.loads, output.splitlines())
    if "llama.cpp" in args.only:
        for name in TYPES:
            path = args.out / f"{name}.gguf"
            command = [args.llama_python, *peer, "llama.cpp", path, args.tokens, "--libraries", args.libraries]
            output = run([*command, "--threads", args.threads, *flags(args)], args.threads)
            # The embedding is also the head, so each token reads all of it.
            yield from ({**json.loads(line), "held_bytes": path.stat().st_size} for line in output.splitlines())


def median_of(rounds):
    """Returns the last round's line with the median of each time; `ms` is the best call of all rounds."""
    times = {name: statistics.median(line[name] for line in rounds) for name in ("median_ms", "cpu_ms")}
    return {**rounds[-1], **times, "ms": min(line["ms"] for line in rounds)}


def table(args, median, what, key, ratios):
    rows = {engine: line for (engine, of), line in median.items() if of == what}
    print(f"\n{what}, {args.threads} thread(s), median of {args.rounds} rounds\n")
    heads = [f"/ {name}" for name, _ in ratios]
    print("| | ms | best | CPU ms | " + " | ".join(heads) + " | peak resident, MB | nll | weights, MB | GB/s | of read bandwidth |")
    print("|---|" + "---|" * (len(heads) + 8))
    for engine, line in rows.items():
        cells = [f"{line[name]:.2f}" for name in ("median_ms", "ms", "cpu_ms")]
        for _, peers in ratios:
            known = [rows[peer][key] for peer in peers if peer in rows]
            cells.append(f"{line[key] / min(known):.2f}" if known else "")
        cells += [f"{line['peak_bytes'] / 1e6:.0f}", f"{line['nll']:.5f}" if line["nll"] else ""]
        rate = line.get("held_bytes", 0) / line["median_ms"] / 1e6 if what.startswith("token") else 0
        cells += [f"{line['held_bytes'] / 1e6:.1f}" if "held_bytes" in line else ""]
        cells += [f"{rate:.1f}", f"{100 * rate / args.bandwidth:.0f} %"] if rate else ["", ""]
        print(f"| {engine} | " + " | ".join(cells) + " |")


def main():
    args = arguments()
    prepare(args)
    args.bandwidth = json.loads(run([args.bench, "--bandwidth"]))["read_gb_per_s"]
    rounds = {}
    for _ in range(args.rounds):
        for line in lines(args):
            rounds.setdefault((line["engine"], line["what"]), []).append(line)
    median = {key: median_of(found) for key, found in rounds.items()}
    print(f"{args.model}; one thread reads {args.bandwidth:.1f} GB/s")
    for what in dict.fromkeys(what for _, what in median):
        if what.startswith("window"):
            ratios = [("torch f32", ["torch f32"]), ("torch int8", ["torch fbgemm", "torch onednn"]), ("Q8_0", ["llama.cpp Q8_0"])]
            table(args, median, what, "cpu_ms", ratios)
        else:
            table(args, median, what, "median_ms", [(name, [f"llama.cpp {name}"]) for name in TYPES])


if __name__ == "__main__":
    sys.exit(main())
