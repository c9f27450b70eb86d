#!/usr/bin/env python3
"""Prune a checkpoint directory by unstructured L1: zero the smallest |w| of every Linear and conv weight.

usage: prune_ckpt.py CKPT OUT [--scope local|global] [--amount 0.4] [--impl torch|kth|numpy] [--threads 1]

Loads and saves safetensors. Prints one JSON line: wall and CPU seconds of the process, seconds by stage, peak MB.

 torch   torch.nn.utils.prune
 kth     torch.kthvalue and a mask in place, by hand
 numpy   np.partition (f32) or a 16-bit histogram (bf16, f16); no torch import; a shard at a time in local scope
"""

import time

START = time.perf_counter()
import argparse
import os

from common import Stages, copy_config, emit, is_linear_or_conv, set_threads, weight_files


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ckpt")
    p.add_argument("out")
    p.add_argument("--scope", choices=["local", "global"], default="local")
    p.add_argument("--amount", type=float, default=0.4)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--impl", choices=["torch", "kth", "numpy"], default="torch")
    return p.parse_args()


def with_numpy(args, files, stages):
    import numpy_ckpt

    stages.done("import_s")
    zeros = total = 0
    held = []
    for file in files:
        raw, tensors = numpy_ckpt.load(file)
        weights = [
            data.view(numpy_ckpt.BITS[dtype])
            for name, (dtype, shape, data) in tensors.items()
            if is_linear_or_conv(name, len(shape))
        ]
        del tensors
        stages.done("load_s")
        total += sum(bits.size for bits in weights)
        held.append((os.path.join(args.out, os.path.basename(file)), raw, weights))
        if args.scope == "local":
            zeros += sum(numpy_ckpt.prune([bits], args.amount) for bits in weights)
            stages.done("prune_s")
            raw.tofile(held.pop()[0])
            del raw, weights
            stages.done("save_s")
    if args.scope == "global":
        zeros = numpy_ckpt.prune([bits for _, _, weights in held for bits in weights], args.amount)
        stages.done("prune_s")
        for path, raw, _ in held:
            raw.tofile(path)
        stages.done("save_s")
    return total, zeros


def with_torch(args, files, stages):
    import torch
    from safetensors.torch import load_file, save_file

    if args.impl == "torch":
        from torch.nn.utils import prune

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    stages.done("import_s")

    class Holder(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def local(state):
        for name, weight in state.items():
            if not is_linear_or_conv(name, weight.dim()):
                continue
            if args.impl == "torch":
                holder = Holder(weight)
                prune.l1_unstructured(holder, "weight", args.amount)
                prune.remove(holder, "weight")
                state[name] = holder.weight.data
            else:
                limit = weight.abs().view(-1).kthvalue(round(args.amount * weight.numel())).values
                weight[weight.abs() <= limit] = 0

    def globally(states):
        chosen = [(state, name) for state in states for name, w in state.items() if is_linear_or_conv(name, w.dim())]
        if args.impl == "torch":
            holders = [(Holder(state[name]), "weight") for state, name in chosen]
            prune.global_unstructured(holders, pruning_method=prune.L1Unstructured, amount=args.amount)
            for (holder, _), (state, name) in zip(holders, chosen):
                prune.remove(holder, "weight")
                state[name] = holder.weight.data
        else:
            magnitudes = torch.cat([state[name].view(-1) for state, name in chosen]).abs_()
            limit = magnitudes.kthvalue(round(args.amount * len(magnitudes))).values
            del magnitudes
            for state, name in chosen:
                state[name][state[name].abs() <= limit] = 0

    sizes = []

    def save(state, file):
        save_file(state, os.path.join(args.out, os.path.basename(file)), {"format": "pt"})
        stages.done("save_s")

    states = []
    for file in files:
        state = load_file(file)
        sizes += [w.numel() for name, w in state.items() if is_linear_or_conv(name, w.dim())]
        stages.done("load_s")
        if args.scope == "local":
            local(state)
            stages.done("prune_s")
            save(state, file)
            del state
        else:
            states.append(state)
    if args.scope == "global":
        globally(states)
        stages.done("prune_s")
        for file, state in zip(files, states):
            save(state, file)
        return sum(sizes), round(args.amount * sum(sizes))
    return sum(sizes), sum(round(args.amount * size) for size in sizes)


def main():
    args = arguments()
    set_threads(args.threads)
    stages = Stages(START)
    os.makedirs(args.out, exist_ok=True)
    total, zeros = (with_numpy if args.impl == "numpy" else with_torch)(args, weight_files(args.ckpt), stages)
    copy_config(args.ckpt, args.out)
    emit(impl=args.impl, scope=args.scope, threads=args.threads, total=total, zeros=zeros, **stages.totals())


main()
