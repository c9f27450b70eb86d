#!/usr/bin/env python3
"""Prune, quantize and run a ResNet-152 in tiles, on images that exceed the memory limit.

usage: resnet152.py BRIQUETTE [--model MODEL] [--images DIRECTORY] [--limit 1GiB] [--tile 512] [--device cpu] [--work bench-out/resnet152]

Prints the time and peak memory of each step. Without MODEL and DIRECTORY, the script makes random weights and images of
2240x2240 (scripts/make_resnet152.py). The first run takes whole images without a limit. A run of whole images with the limit
must be refused. The other steps run in tiles with the limit. Peaks are bytes above the start of the step, counted by its meter;
the peak of compression is the resident set.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

def run(args, *command, expect=0):
    """Returns (seconds, stdout, stderr) of briquette; an unexpected exit code ends the script."""
    start = time.perf_counter()
    done = subprocess.run([args.briquette, *map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != expect:
        sys.exit(f"briquette {' '.join(map(str, command))}: exit {done.returncode}, expected {expect}\n{done.stderr}{done.stdout[-2000:]}")
    return time.perf_counter() - start, done.stdout, done.stderr


def evaluate(args, model, *flags):
    """Runs a model on the images and returns (seconds, report)."""
    command = ["eval", model, "--arch", "resnet152", "--data", args.images, "--device", args.device, "--json", *flags]
    seconds, out, _ = run(args, *command)
    return seconds, json.loads(out)


def row(step, seconds, peak, note):
    mb = f"{peak / 1e6:.0f} MB" if peak is not None else "-"
    print(f"| {step} | {seconds:.1f} s | {mb} | {note} |", flush=True)


def figures(run_figures):
    memory = run_figures["memory"][0]
    return memory["peak_bytes"], memory["weights_bytes"]


def side(image):
    """Returns the height of the first bitmap, or None."""
    header = image.read_bytes()[:26] if image else b""
    return int.from_bytes(header[22:26], "little", signed=True) if header[:2] == b"BM" else 2240


def steps(args, out):
    whole = side(next(iter(sorted(args.images.glob("*/*.bmp"))), None))
    recipe = args.work / "whole.toml"
    recipe.write_text(f"[data]\neval = {json.dumps(str(args.images.resolve()))}\nsize = {whole}\ncrop = [{whole}, {whole}]\n", encoding="utf-8")
    common = ["--arch", "resnet152", "--recipe", recipe, "--device", args.device]
    print("| step | time | peak | |\n|---|---|---|---|")
    seconds, text, _ = run(args, "eval", args.model, *common, "--batch-size", 1, "--json")
    plain = json.loads(text)
    peak, weights = figures(plain["after"])
    row("plain f32, whole images", seconds, peak, f"{plain['n_items']} images, weights {weights / 1e6:.0f} MB, no limit")
    seconds, _, error = run(args, "eval", args.model, *common, "--batch-size", "auto", "--memory-limit", args.limit, expect=6)
    row(f"the same within {args.limit}", seconds, None, error.strip().splitlines()[-1])
    steps_within(args, out)


def steps_within(args, out):
    flags = ["--prune", 0.4, "--quantize", "int8-dynamic", "--force", "--quiet"]
    seconds, _, _ = run(args, "compress", args.model, "-o", out, *flags)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    size = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    row("prune 40 %, quantize", seconds, report.get("peak_bytes"), f"{size / 1e6:.0f} MB on disk")
    limit = ["--batch-size", "auto", "--memory-limit", args.limit]
    for name, flags in (("tiles", ["--tile", args.tile, *limit]), ("resized to 224", ["--batch-size", 1])):
        _, found = evaluate(args, out, "--against", args.model, *flags)
        before, after = found["before"], found["after"]
        for what, figure, batch in (("f32", before, found["batch_size_before"]), ("int8", after, found["batch_size"])):
            peak, weights = figures(figure)
            took = found["n_items"] / figure["items_per_s"]
            note = f"weights {weights / 1e6:.0f} MB, batches of {batch}, {figure['p50_ms']:.0f} ms each"
            if what == "int8":
                metrics = found["metrics"]
                note += f", cosine of scores {metrics['cosine']:.4f}, agreement {metrics['agreement']:.2f}"
            row(f"{what}, {name}", took, peak, note)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("briquette")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--images", type=pathlib.Path)
    parser.add_argument("--limit", default="1GiB")
    parser.add_argument("--tile", default="512")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("bench-out/resnet152"))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.model is None or args.images is None:
        script = pathlib.Path(__file__).with_name("make_resnet152.py")
        subprocess.run([sys.executable, script, args.work], check=True)
    args.model = args.model or args.work / "model"
    args.images = args.images or args.work / "images-2240"
    print(f"{os.cpu_count()} CPUs, device {args.device}\n")
    steps(args, args.work / "small")


if __name__ == "__main__":
    main()
