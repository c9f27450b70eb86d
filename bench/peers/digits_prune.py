#!/usr/bin/env python3
"""Prune the digits teacher in torch like the example `one_shot`: globally by magnitude, then fine-tuned with the mask fixed.

usage: digits_prune.py [SEEDS [FIRST]]

Uses the same split as the fixtures. Prints a line for each seed, then means and standard deviations of accuracy in percent. At each
sparsity there are three figures: after pruning, after 3 epochs at a learning rate of 1e-3, and after 3 epochs with a linear schedule
from 3e-3 to 0.
"""

import copy
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
import torch.nn.utils.prune as prune
from safetensors.numpy import load_file
from torch import nn

BATCH = 64
DATA = pathlib.Path(__file__).resolve().parents[2] / "fixtures/digits-data.safetensors"


def net():
    """Returns the network: 64 and 128 channels, 1536 hidden units, about a million weights."""
    conv = lambda a, b: [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]
    body = [*conv(1, 64), *conv(64, 128), nn.MaxPool2d(2), *conv(128, 128), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(512, 1536), nn.ReLU(), nn.Linear(1536, 10))


def accuracy(model, x, y):
    with torch.inference_mode():
        return 100 * (model(x).argmax(1) == y).float().mean().item()


def train(model, x, y, epochs, seed, rate=lambda left: 1e-3, masks=()):
    shuffle, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters())
    n_steps = epochs * -(-len(x) // BATCH)
    step = 0
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=shuffle).split(BATCH):
            optimizer.param_groups[0]["lr"] = rate(1 - step / n_steps)
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            with torch.no_grad():
                for weight, mask in masks:
                    weight.mul_(mask)
            step += 1
    return model


def pruned(model, sparsity):
    model = copy.deepcopy(model)
    layers = [(layer, "weight") for layer in model if hasattr(layer, "weight")]
    prune.global_unstructured(layers, pruning_method=prune.L1Unstructured, amount=sparsity)
    for layer, name in layers:
        prune.remove(layer, name)
    return model, [(layer.weight, (layer.weight != 0).float()) for layer, _ in layers]


def main():
    torch.set_num_threads(1)
    n_seeds, first = (int(sys.argv[i]) if len(sys.argv) > i else usual for i, usual in ((1, 5), (2, 0)))
    data = {name: torch.tensor(values) for name, values in load_file(DATA).items()}
    image = lambda name: data[name].float().reshape(-1, 1, 8, 8) / 16
    x, y, test = image("train_x"), data["train_y"].long(), (image("test_x"), data["test_y"].long())
    rows = []
    for seed in range(first, first + n_seeds):
        torch.manual_seed(seed)
        teacher = train(net(), x, y, 12, seed)
        row = [accuracy(teacher, *test)]
        for sparsity in (0.8, 0.9):
            row.append(accuracy(pruned(teacher, sparsity)[0], *test))
            for rate in (lambda left: 1e-3, lambda left: 3e-3 * left):
                model, masks = pruned(teacher, sparsity)
                row.append(accuracy(train(model, x, y, 3, seed + 100, rate, masks), *test))
        rows.append(row)
        print(seed, np.round(row, 2), flush=True)
    print("mean", np.mean(rows, 0).round(2), "std", np.std(rows, 0).round(2))


if __name__ == "__main__":
    main()
