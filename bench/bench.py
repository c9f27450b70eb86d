#!/usr/bin/env python3
"""Compare the file flow with its peers in alternating runs, and print medians and ratios as Markdown tables.

usage: bench.py BRIQUETTE_BINARY CKPTS [--python PEERS_PYTHON] [--runs 5] [--only bertbase,llama1b,...]

CKPTS has the checkpoints bertbase, llama1b and minilm of bench/peers/make_ckpt.py. Writes only CKPTS/../bench-work.
Measures whole processes: wall seconds, and user and system CPU seconds and peak resident set by wait4.
Without --python, the peers that need torch or numpy are skipped.
"""

import argparse
import datetime
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time

JOB = ["--prune", "0.4", "--quantize", "int8"]
WORKS = ["startup", "bertbase", "llama1b", "scope", "threads", "minilm"]
# Replacement for the C library's fsync that does nothing.
NO_SYNC = "int fsync(int fd) { (void)fd; return 0; }\nint fdatasync(int fd) { (void)fd; return 0; }\n"


class Run:
    """One finished process."""

    def __init__(self, command, env=None):
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
        complaint = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.wall = time.perf_counter() - start
        self.cpu = usage.ru_utime + usage.ru_stime
        self.peak_mb = usage.ru_maxrss * 1024 / 1e6
        if process.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{complaint.decode()}")


def median(runs, what):
    return statistics.median(getattr(run, what) for run in runs)


class Bench:
    def __init__(self, args):
        self.args = args
        self.work = args.ckpts.resolve().parent / "bench-work"
        self.work.mkdir(exist_ok=True)
        self.rows = []

    def row(self, work, ours, peer, ratio, target):
        self.rows.append((work, ours, peer, ratio, target))
        print("|", " | ".join(self.rows[-1]), "|", flush=True)

    def model(self, name):
        path = self.args.ckpts / name
        return path if path.exists() else sys.exit(f"{path} is missing; make it with bench/peers/make_ckpt.py {name}")

    def compress(self, model, threads, job=JOB, env=None):
        out = self.work / "out"
        shutil.rmtree(out, ignore_errors=True)
        command = [self.args.binary, "compress", model, "-o", out, "--quiet", "--threads", str(threads), *job]
        return Run(command, env), out

    def copy(self, model):
        """Runs `cp` of the weight files, then `sync` of the copies."""
        target = self.work / "copy"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        files = sorted(map(str, model.glob("*.safetensors")))
        return Run(["sh", "-c", 'out=$1; shift; cp "$@" "$out" && sync "$out"/*', "sh", str(target), *files])

    def in_turn(self, *sides):
        """Runs every side once per round, after one round to warm the cache. Returns a list of runs for each side."""
        rounds = [[side() for side in sides] for _ in range(self.args.runs + 1)]
        return list(zip(*rounds[1:]))

    def peer(self, model, impl):
        out = self.work / f"out-{impl}"
        shutil.rmtree(out, ignore_errors=True)
        script = pathlib.Path(__file__).parent / "peers" / "prune_quant_ckpt.py"
        run = Run([self.args.python, script, model, out, "--impl", impl, "--threads", "1"])
        shutil.rmtree(out, ignore_errors=True)
        return run

    def startup(self):
        (runs,) = self.in_turn(*[lambda: Run([self.args.binary, "--version"])] * 1)
        self.row("start-up, `--version`", f"{1000 * median(runs, 'wall'):.1f} ms", "", "", "≤ 10 ms")

    def checkpoint(self, name, cpu_target):
        model = self.model(name)
        ours, copies = self.in_turn(lambda: self.compress(model, 2)[0], lambda: self.copy(model))
        a, b = median(ours, "wall"), median(copies, "wall")
        self.row(f"{name}, 2 threads, wall", f"{a:.3f} s", f"`cp` + `sync` {b:.3f} s", f"{a / b:.2f}x", "≤ 1.0x")
        (single,) = self.in_turn(lambda: self.compress(model, 1)[0])
        cpu = median(single, "cpu")
        self.row(f"{name}, 1 thread, CPU", f"{cpu:.2f} s", "", "", f"≤ {cpu_target} s")
        peak = max(median(ours, "peak_mb"), median(single, "peak_mb"))
        self.row(f"{name}, peak RSS", f"{peak:.0f} MB", "", "", "≤ 100 MB")
        for impl in ["numpy", "torch"] if self.args.python else []:
            run = self.peer(model, impl)
            words = f"{impl} {run.cpu:.1f} s, {run.peak_mb:.0f} MB"
            self.row(f"{name}, 1 thread, CPU, against {impl}", f"{cpu:.2f} s", words, f"{cpu / run.cpu:.3f}x", "")

    def bertbase(self):
        self.checkpoint("bertbase", 0.45)

    def llama1b(self):
        self.checkpoint("llama1b", 4)

    def scope(self):
        model = self.model("bertbase")
        everywhere = [*JOB, "--scope", "global"]
        a, b = self.in_turn(
            lambda: self.compress(model, 1, job=everywhere)[0], lambda: self.compress(model, 1)[0]
        )
        a, b = median(a, "cpu"), median(b, "cpu")
        self.row("bertbase, global scope, CPU", f"{a:.2f} s", f"layer scope {b:.2f} s", f"{a / b:.2f}x", "≤ 1.6x")

    def threads(self):
        """Measures two threads on the same file system, with a preloaded library that makes fsync return at once."""
        model = self.model("bertbase")
        library = self.work / "no_sync.so"
        compiler = ["cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"]
        subprocess.run(compiler, input=NO_SYNC, text=True, check=True)
        env = {**os.environ, "LD_PRELOAD": str(library)}
        # Flushes dirty pages of other programs first, so that they are not written during the measurement.
        os.sync()
        one, two = self.in_turn(
            lambda: self.compress(model, 1, env=env)[0], lambda: self.compress(model, 2, env=env)[0]
        )
        a, b = median(one, "wall"), median(two, "wall")
        self.row("bertbase, 2 threads, no fsync", f"{b:.3f} s", f"1 thread {a:.3f} s", f"{a / b:.2f}x faster", "≥ 1.7x")

    def minilm(self):
        model = self.model("minilm")
        jobs = [
            ("int8", ["--quantize", "int8"], 23.3),
            ("40 % of Linear + int8", JOB, 20.4),
            ("40 % of Linear and embeddings + int8", [*JOB, "--prune-roles", "linear,conv,embedding"], 17.4),
        ]
        before = sum(path.stat().st_size for path in model.glob("*.safetensors"))
        for words, job, target in jobs:
            _, out = self.compress(model, 2, job=job)
            after = sum(path.stat().st_size for path in out.glob("*.safetensors"))
            ratio = f"{before / after:.2f}x smaller"
            self.row(f"minilm, {words}", f"{after / 1e6:.2f} MB", f"f32 {before / 1e6:.2f} MB", ratio, f"≤ {target} MB")


def machine():
    models = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} CPUs, {platform.system()}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary", type=pathlib.Path)
    p.add_argument("ckpts", type=pathlib.Path)
    p.add_argument("--python", help="an interpreter with bench/peers/requirements.txt")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--only", default=",".join(WORKS), help="comma list of " + ", ".join(WORKS))
    args = p.parse_args()
    works = args.only.split(",")
    if unknown := [work for work in works if work not in WORKS]:
        p.error(f"--only: found {', '.join(unknown)}, expected some of {', '.join(WORKS)}")
    bench = Bench(args)
    print(f"{machine()}; {datetime.date.today()}; medians of {bench.args.runs} runs, both sides in turn\n")
    print("| work | briquette | other side | ratio | target |\n|---|---|---|---|---|")
    for work in works:
        getattr(bench, work)()
    shutil.rmtree(bench.work)


if __name__ == "__main__":
    main()
