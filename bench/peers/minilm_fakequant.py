#!/usr/bin/env python3
"""Measure MiniLM with fake-quantized weights and activations in every Linear: cosine to f32 over 40 sentences.

No integer kernels run, so the result is an upper bound for any runtime. Prints one JSON line per scheme.

usage: minilm_fakequant.py [--ckpt models/minilm] [--threads 1]
"""

import argparse
import copy
import warnings

warnings.filterwarnings("ignore")
from common import emit, sentences, set_threads

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--ckpt", default="models/minilm")
p.add_argument("--threads", type=int, default=1)
args = p.parse_args()
set_threads(args.threads)

import minilm
import torch

# (weights, activations)
SCHEMES = [
    ("tensor", "none"),
    ("channel", "none"),
    ("channel_mse", "none"),
    ("group128", "none"),
    ("group32", "none"),
    ("channel", "token_sym"),
    ("channel", "token_asym"),
    ("channel", "tensor_sym"),
    ("channel", "tensor_asym"),
    ("channel", "tensor_7bit_asym"),
    ("tensor", "token_asym"),
    ("none", "token_sym"),
    ("none", "token_asym"),
]


def rounded(x, scale, limit):
    return (x / scale).round().clamp(-limit, limit) * scale


def best_channel_scale(w, limit):
    """Returns, per row, the scale of least squared error among 31 shares of absmax between 0.7 and 1."""
    absmax = w.abs().amax(1, keepdim=True)
    best, scale = torch.full_like(absmax, 1e30), absmax / limit
    for share in torch.linspace(0.7, 1.0, 31):
        tried = absmax * share / limit
        error = (rounded(w, tried, limit) - w).pow(2).sum(1, keepdim=True)
        scale = torch.where(error < best, tried, scale)
        best = torch.minimum(error, best)
    return scale


def quantized_weight(w, mode, limit=127):
    """Fake-quantizes a weight to symmetric int8."""
    if mode == "none":
        return w
    if mode.startswith("group"):
        groups = w.view(w.shape[0], -1, int(mode.removeprefix("group")))
        return rounded(groups, groups.abs().amax(2, keepdim=True) / limit, limit).view_as(w)
    if mode == "channel_mse":
        return rounded(w, best_channel_scale(w, limit), limit)
    absmax = w.abs().max() if mode == "tensor" else w.abs().amax(1, keepdim=True)
    return rounded(w, absmax / limit, limit)


def quantized_activation(x, mode):
    """Fake-quantizes activations dynamically, per token or per tensor.

    7bit: the reduced range that fbgemm uses without VNNI.
    """
    if mode == "none":
        return x
    if mode.startswith("token"):
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    else:
        low, high = x.min(), x.max()
    if mode.endswith("_sym"):
        return rounded(x, torch.maximum(high, -low).clamp_min(1e-12) / 127, 127)
    n_steps = 127 if "7bit" in mode else 255
    low, high = low.clamp_max(0), high.clamp_min(0)
    scale = ((high - low) / n_steps).clamp_min(1e-12)
    zero = (-low / scale).round()
    return ((x / scale).round().add(zero).clamp(0, n_steps) - zero) * scale


class SimulatedLinear(torch.nn.Module):
    def __init__(self, linear, weights, activations):
        super().__init__()
        self.weight, self.bias = quantized_weight(linear.weight.data, weights), linear.bias
        self.activations = activations

    def forward(self, x):
        return torch.nn.functional.linear(quantized_activation(x, self.activations), self.weight, self.bias)


def simulated(model, weights, activations):
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, SimulatedLinear(child, weights, activations))
    return model


@torch.inference_mode()
def main():
    torch.set_num_threads(args.threads)
    tokenizer, model = minilm.load(args.ckpt)
    reference = minilm.embed(tokenizer, model, sentences())
    for weights, activations in SCHEMES:
        changed = minilm.embed(tokenizer, simulated(model, weights, activations), sentences())
        cosine = minilm.cosines(changed, reference)
        emit(
            weights=weights,
            acts=activations,
            cos_mean=round(cosine.mean().item(), 6),
            cos_min=round(cosine.min().item(), 6),
        )


main()
