#!/usr/bin/env python3
"""Measure time and memory of each command on models of many small tensors, as a table for docs/benchmarks.md."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAKER = Path(__file__).resolve().parent.parent / "scripts/many_tensors.py"
COMMANDS = [
    ("inspect", "inspect {model}"),
    ("plan int8", "plan {model} --quantize int8"),
    ("plan prune + int8", "plan {model} --prune 0.4 --quantize int8"),
    ("compress int8", "compress {model} -o {out} --quantize int8 --force --quiet"),
    ("compress prune, layer by layer", "compress {model} -o {out} --prune 0.5 --force --quiet"),
    ("compress prune --scope global", "compress {model} -o {out} --prune 0.5 --scope global --force --quiet"),
    ("verify", "verify {out}"),
]


def measure(briquette, line):
    """Returns wall seconds, CPU seconds and peak memory in bytes."""
    started = time.monotonic()
    child = subprocess.Popen([briquette, *line], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(line)}: exit code {child.returncode}")
    return time.monotonic() - started, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("briquette")
    arguments.add_argument("--n", type=int, nargs="+", default=[20_000, 200_000, 1_200_000], help="tensors")
    arguments.add_argument("--only", default="", help="commands with this in their name")
    asked = arguments.parse_args()
    print("| tensors | command | seconds | CPU µs a tensor | peak memory | bytes a tensor |\n|---|---|---|---|---|---|")
    for n in asked.n:
        with tempfile.TemporaryDirectory() as directory:
            model, out = Path(directory, "model"), Path(directory, "out")
            # A separate process writes the model: memory of this process would count in the peaks of its children.
            subprocess.run([sys.executable, MAKER, str(n), model], check=True)
            for name, line in COMMANDS:
                if asked.only not in name:
                    continue
                words = line.format(model=model, out=out).split(" ")
                wall, cpu, peak = measure(asked.briquette, words)
                print(f"| {n:,} | {name} | {wall:.2f} | {1e6 * cpu / n:.1f} | {peak / 1e6:.0f} MB | {peak / n:.0f} |", flush=True)
            report = out / "report.html"
            if report.exists():
                print(f"| {n:,} | report.html | | | {report.stat().st_size / 1e3:.0f} kB | |", flush=True)


if __name__ == "__main__":
    main()
