#!/usr/bin/env python3
"""Measure the memory and time of two MiniLM training steps with and without gradient checkpointing.

usage: distill_memory.py BRIQUETTE MODEL [--batch N] [--length N] [--rounds N]

The batch has 32 texts of 128 tokens by default. MODEL is a sentence encoder with its tokenizer, such as models/minilm. Prints the
peak above the memory before training, as the allocator counts it, and the time of a step. Both are medians of all rounds, in
alternating runs.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Sentences of the training data, enough to fill 512 tokens.
JOINED = 128


def texts(n):
    """Returns `n` long texts."""
    lines = (ROOT / "fixtures/sentences/train.txt").read_text().splitlines()
    return "\n".join(" ".join(lines[(i * 7 + j) % len(lines)] for j in range(JOINED)) for i in range(n))


def recipe(model, out, batch, length, is_checkpointed):
    return f"""
[model]
path = "{model}"
[output]
path = "{out}"
[data]
train = "train.txt"
max_length = {length}
[memory]
batch_size = {batch}
gradient_checkpointing = {str(is_checkpointed).lower()}
[[stage]]
kind = "distill"
loss = [{{ kind = "embedding" }}]
epochs = 1
learning_rate = 1e-5
"""


def run(briquette, model, batch, length, is_checkpointed):
    """Returns the peak in MB and the seconds of the second step."""
    with tempfile.TemporaryDirectory() as folder:
        out, path = pathlib.Path(folder) / "out", pathlib.Path(folder) / "recipe.toml"
        path.write_text(recipe(model, out, batch, length, is_checkpointed))
        (pathlib.Path(folder) / "train.txt").write_text(texts(2 * batch))
        command = [briquette, "distill", path, "--json"]
        report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        steps = [line["step"]["seconds"] for line in lines if "step" in line]
        return report["trained"][0]["peak_bytes"] / 1e6, steps[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("briquette", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found = {False: [], True: []}
    for _ in range(options.rounds):
        for is_checkpointed, runs in found.items():
            args = (options.briquette.resolve(), options.model.resolve(), options.batch, options.length)
            runs.append(run(*args, is_checkpointed))
    (plain, plain_s), (less, less_s) = [[statistics.median(column) for column in zip(*runs)] for runs in found.values()]
    print("| batch x tokens | peak without | peak with | ratio | target | step without | step with |\n|---|---|---|---|---|---|---|")
    ratio = f"{less / plain:.2f}x"
    print(f"| {options.batch} x {options.length} | {plain:.0f} MB | {less:.0f} MB | {ratio} | ≤ 0.75x | {plain_s:.2f} s | {less_s:.2f} s |")


if __name__ == "__main__":
    main()
