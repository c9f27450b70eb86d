#!/usr/bin/env python3
"""Measure distillation on digits over several seeds, and compare the time of a step with torch.

usage: distill_digits.py BRIQUETTE [--seeds N] [--threads N] [--only WORDS] [--torch]

Trains a teacher of 1.03 million weights for each seed, then trains from it:

- a student of 50 thousand weights on labels of which 30 % are random, alone and distilled;
- the same student on a tenth of the images, alone and distilled;
- the teacher at 95 % sparsity with its mask fixed, fine-tuned on labels and distilled, on clean and on noisy labels.

Prints accuracy on the 360 test images.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "fixtures/digits-data.safetensors"
SMALL = "student = { conv_channels = [16, 32], hidden_size = 86 }"
LARGE = "student = { conv_channels = [64, 128], hidden_size = 464 }"
LABELS = '{ kind = "labels" }'
BOTH = '{ kind = "logits", weight = 0.7, temperature = 4 }, { kind = "labels", weight = 0.3 }'
TEACHER = '{ kind = "logits", temperature = 4 }'
MOSTLY_LABELS = '{ kind = "logits", weight = 0.3, temperature = 2 }, { kind = "labels", weight = 0.7 }'
PRUNE = '[[stage]]\nkind = "prune"\nscope = "global"\nsparsity = 0.95\n'
# name: student, losses, epochs, data, stages before
WORK = {
    "noisy, alone": (SMALL, LABELS, 40, "label_noise = 0.3", ""),
    "noisy, distilled": (SMALL, BOTH, 40, "label_noise = 0.3", ""),
    "few, alone": (SMALL, LABELS, 200, "share = 0.1", ""),
    "few, distilled": (SMALL, BOTH, 200, "share = 0.1", ""),
    "95 % sparse, fine-tuned": ("", LABELS, 30, "", PRUNE),
    "95 % sparse, distilled": ("", MOSTLY_LABELS, 30, "", PRUNE),
    "95 % sparse, fine-tuned on noisy": ("", LABELS, 30, "label_noise = 0.3", PRUNE),
    "95 % sparse, distilled on noisy": ("", TEACHER, 30, "label_noise = 0.3", PRUNE),
}


def recipe(model, out, work, seed):
    student, losses, epochs, data, before = work
    return f"""
[model]
path = "{model}"
[output]
path = "{out}"
[data]
train = "{DATA}"
eval = "{DATA}"
{data}
[memory]
batch_size = 64
{before}
[[stage]]
kind = "distill"
{student}
loss = [{losses}]
epochs = {epochs}
learning_rate = 1e-3
seed = {seed}
save_every = 100000
[[stage]]
kind = "evaluate"
"""


def run(briquette, folder, name, model, work, seed, threads):
    """Returns the accuracy in percent, the output, and the median milliseconds of a step with a full batch."""
    out, path = folder / f"{name}-{seed}", folder / "recipe.toml"
    path.write_text(recipe(model, out, work, seed))
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    command = [briquette, "distill", path, "--quiet", "--force", "--threads", str(threads)]
    subprocess.run(command, check=True, env=environment)
    report = json.loads((out / "report.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"]["seconds"] for line in lines if "step" in line]
    return 100 * report["evaluation"]["metrics"]["accuracy"], out, 1e3 * statistics.median(steps)


def torch_step(threads, n_steps=200):
    """Returns the median milliseconds of a distillation step in torch, with batch 64 and the same networks."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(threads)

    def net(first, second, hidden):
        return nn.Sequential(
            nn.Conv2d(1, first, 3, padding=1), nn.BatchNorm2d(first), nn.ReLU(),
            nn.Conv2d(first, second, 3, padding=1), nn.BatchNorm2d(second), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(second * 16, hidden), nn.ReLU(), nn.Linear(hidden, 10),
        )  # fmt: skip

    teacher, student = net(64, 128, 464).eval(), net(16, 32, 86)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3, weight_decay=0)
    x, y, times = torch.rand(64, 1, 8, 8), torch.randint(0, 10, (64,)), []
    for _ in range(n_steps):
        start = time.perf_counter()
        with torch.no_grad():
            t = F.log_softmax(teacher(x) / 4, 1)
        scores = student(x)
        loss = 0.7 * 16 * F.kl_div(F.log_softmax(scores / 4, 1), t, log_target=True, reduction="batchmean")
        loss = loss + 0.3 * F.cross_entropy(scores, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[20:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("briquette", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="work whose name has these words: sparse, noisy, few")
    parser.add_argument("--torch", action="store_true", help="time torch's step too")
    options = parser.parse_args()
    found, step_ms = {"teacher": []}, {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for seed in range(options.seeds):
            large = (LARGE, LABELS, 12, "", "")
            args = (options.briquette.resolve(), folder)
            base = ROOT / "fixtures/digits"
            accuracy, teacher, _ = run(*args, "teacher", base, large, seed, options.threads)
            found["teacher"].append(accuracy)
            for name, work in ((name, work) for name, work in WORK.items() if options.only in name):
                accuracy, _, ms = run(*args, name.replace(" ", "-"), teacher, work, seed, options.threads)
                found.setdefault(name, []).append(accuracy)
                step_ms.setdefault(name, []).append(ms)
            print(f"seed {seed}:", {name: round(values[-1], 2) for name, values in found.items()}, flush=True)
    for name, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name}: {statistics.mean(values):.2f} +- {spread:.2f} %")
    if "noisy, distilled" in step_ms:
        print(f"distillation step: {statistics.median(step_ms['noisy, distilled']):.2f} ms")
    if options.torch:
        print(f"the same in torch: {torch_step(options.threads):.2f} ms")


if __name__ == "__main__":
    main()
