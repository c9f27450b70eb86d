#!/usr/bin/env python3
"""Compare our Wanda masks with llm-compressor's, weight by weight, from the same statistics.

usage: wanda_masks.py MODEL STATISTICS PRUNED SPARSITY|N:M

MODEL is a directory with model.safetensors, and STATISTICS the output of `briquette calibrate` for it. PRUNED is the output of
`briquette compress MODEL --prune SPARSITY --prune-method wanda --statistics STATISTICS --format dense` (or `--prune-pattern N:M`).
Needs requirements-llmcompressor.txt. Prints the number of weights that differ by layer. Exit code 1 if any differs.
"""

import pathlib
import sys

import torch
from llmcompressor.modifiers.pruning.wanda.wanda_sparsify import sparsify_weight
from safetensors import safe_open


def tensors(path):
    files = sorted(pathlib.Path(path).glob("*.safetensors")) if pathlib.Path(path).is_dir() else [pathlib.Path(path)]
    return {name: file.get_tensor(name) for at in files for file in [safe_open(at, "pt")] for name in file.keys()}


def main():
    model, statistics, pruned = (tensors(path) for path in sys.argv[1:4])
    kept, _, of = sys.argv[4].partition(":")
    (n, m), sparsity = ((int(of) - int(kept), int(of)), 0.0) if of else ((0, 0), float(kept))
    seen = n_differ = n_weights = n_layers = 0
    for name, weight in model.items():
        squares = statistics.get(name.removesuffix(".weight") + ".sum_squares")
        if squares is None:
            continue
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight.data = weight.float()
        count = statistics[name.removesuffix(".weight") + ".count"].double()
        theirs = sparsify_weight(layer, {layer: (squares.double() / count).float()}, sparsity, n, m) == 0
        differ = (theirs != (pruned[name] == 0)).sum().item()
        if differ:
            print(f"{name}: {differ} of {weight.numel()} differ")
        n_differ, n_weights, n_layers = n_differ + differ, n_weights + weight.numel(), n_layers + 1
        seen += theirs.sum().item()
    print(f"{n_layers} layers: {n_differ} of {n_weights} weights differ; {seen} dropped")
    sys.exit(bool(n_differ) or not n_layers)


if __name__ == "__main__":
    main()
