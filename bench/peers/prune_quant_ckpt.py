#!/usr/bin/env python3
"""Prune and quantize a checkpoint directory, as a user of torch or numpy would.

usage: prune_quant_ckpt.py CKPT OUT [--impl torch|numpy] [--amount 0.4] [--threads 1]

Loads safetensors and L1-prunes 40 % of every Linear and conv weight. Quantizes these and the embeddings to int8 (symmetric, one
scale per row, absmax / 127). Saves `weight` I8 and `weight_scale` f32. No hash, no fsync, no verification. Prints one JSON
line: wall and CPU seconds of the process, seconds by stage, peak MB, bytes.

 torch   torch.nn.utils.prune.l1_unstructured, then round and clamp with torch operations
 numpy   np.partition or a 16-bit histogram in place, then codes by row blocks; no torch import
"""

import time

START = time.perf_counter()
import argparse
import os

from common import Stages, copy_config, emit, is_embedding, is_linear_or_conv, set_threads, weight_files


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ckpt")
    p.add_argument("out")
    p.add_argument("--impl", choices=["torch", "numpy"], default="torch")
    p.add_argument("--amount", type=float, default=0.4)
    p.add_argument("--threads", type=int, default=1)
    return p.parse_args()


def is_coded(name, rank):
    return is_linear_or_conv(name, rank) or is_embedding(name, rank)


def with_numpy(args, files, stages):
    import numpy_ckpt

    stages.done("import_s")
    zeros, written = 0, []
    for file in files:
        raw, tensors = numpy_ckpt.load(file)
        stages.done("load_s")
        writer = numpy_ckpt.Writer()
        for name, (dtype, shape, data) in tensors.items():
            if not (is_coded(name, len(shape)) and dtype in ("F32", "BF16")):
                writer.put(name, dtype, shape, data)
                continue
            if is_linear_or_conv(name, len(shape)):
                zeros += numpy_ckpt.prune([data.view(numpy_ckpt.BITS[dtype])], args.amount)
                stages.done("prune_s")
            codes, scales = numpy_ckpt.quantize_rows(numpy_ckpt.as_rows(dtype, shape, data))
            writer.put(name, "I8", shape, codes)
            writer.put(name + "_scale", "F32", scales.shape, scales)
            stages.done("quant_s")
        written.append(os.path.join(args.out, os.path.basename(file)))
        writer.save(written[-1])
        del raw, tensors, data, writer
        stages.done("save_s")
    return zeros, written


def with_torch(args, files, stages):
    import torch
    from safetensors.torch import load_file, save_file
    from torch.nn.utils import prune

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    stages.done("import_s")

    class Holder(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def pruned(weight):
        holder = Holder(weight)
        prune.l1_unstructured(holder, "weight", args.amount)
        prune.remove(holder, "weight")
        return holder.weight.data

    def coded(weight):
        rows = weight.float().flatten(1)
        scale = (rows.abs().amax(1, keepdim=True) / 127).clamp_min_(1e-12)
        return (rows / scale).round_().clamp_(-127, 127).to(torch.int8).view(weight.shape), scale

    zeros, written = 0, []
    for file in files:
        state = load_file(file)
        stages.done("load_s")
        for name in list(state):
            weight = state[name]
            if not (is_coded(name, weight.dim()) and weight.is_floating_point()):
                continue
            if is_linear_or_conv(name, weight.dim()):
                zeros += round(args.amount * weight.numel())
                weight = pruned(weight)
                stages.done("prune_s")
            state[name], state[name + "_scale"] = coded(weight)
            stages.done("quant_s")
        written.append(os.path.join(args.out, os.path.basename(file)))
        save_file(state, written[-1], {"format": "pt"})
        del state, weight
        stages.done("save_s")
    return zeros, written


def main():
    args = arguments()
    set_threads(args.threads)
    stages = Stages(START)
    os.makedirs(args.out, exist_ok=True)
    zeros, written = (with_numpy if args.impl == "numpy" else with_torch)(args, weight_files(args.ckpt), stages)
    copy_config(args.ckpt, args.out)
    out_bytes = sum(os.path.getsize(path) for path in written)
    emit(impl=args.impl, threads=args.threads, zeros=zeros, out_bytes=out_bytes, **stages.totals())


main()
