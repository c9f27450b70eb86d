#!/usr/bin/env python3
"""Kill a run of a recipe at random times, resume it, and compare its output with a run without kills.

usage: kills.py BRIQUETTE RECIPE [--kills 20] [--seed 0]

The recipe's output must not exist; it is removed at the end. Prints the progress of each killed run. Exit code 1 if the
weights differ.
"""

import argparse
import hashlib
import pathlib
import random
import shutil
import subprocess
import sys
import time
import tomllib


def weights(output):
    digest = hashlib.sha256()
    for path in sorted(output.glob("*.safetensors")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("briquette")
    p.add_argument("recipe", type=pathlib.Path)
    p.add_argument("--kills", type=int, default=20)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    output = args.recipe.parent / tomllib.loads(args.recipe.read_text())["output"]["path"]
    stages = output.with_name(output.name + ".stages")
    if output.exists() or stages.exists():
        sys.exit(f"{output} or {stages} exists; expected neither")
    line = [args.briquette, "run", str(args.recipe), "--quiet"]
    since = time.monotonic()
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    whole, seconds = weights(output), time.monotonic() - since
    print(f"left alone: {seconds:.1f} s, {whole[:16]}", flush=True)
    chance = random.Random(args.seed)
    n_kills = n_runs = 0
    while n_kills < args.kills:
        shutil.rmtree(output, ignore_errors=True)
        n_runs += 1
        while not output.exists():
            child = subprocess.Popen(line, stdout=subprocess.DEVNULL)
            try:
                # The last run is not killed, so that the loop ends.
                code = child.wait(chance.uniform(0, seconds / 4) if n_kills < args.kills else None)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                n_kills += 1
                print(f"kill {n_kills}: {len(list(stages.glob('*/*.safetensors')))} files kept", flush=True)
            else:
                if code != 0:
                    sys.exit(f"a run after {n_kills} kills ended with {code}")
        subprocess.run([args.briquette, "verify", str(output)], check=True, stdout=subprocess.DEVNULL)
        if weights(output) != whole:
            sys.exit(f"after {n_kills} kills the weights differ")
    shutil.rmtree(output)
    left = [str(path) for path in output.parent.glob(f"*{output.name}*") if path != args.recipe]
    print(f"{n_kills} kills in {n_runs} runs: the same bytes each time; left over: {left or 'nothing'}")
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
