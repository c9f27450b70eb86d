#!/usr/bin/env python3
"""Quantize the weights of a checkpoint directory to symmetric int8 without data, with one scale per output channel.

usage: quant_ckpt.py CKPT OUT [--impl plain|torchq|numpy|ct|torchao|quanto] [--threads 1] [--check]

Saves `weight` I8 and `weight_scale` f32. Other tensors, including embeddings and lm_head, are unchanged. Prints one JSON line:
wall and CPU seconds of the process, seconds by stage, peak MB, bytes.

 plain     absmax / 127, round, clamp with torch operations
 torchq    torch.quantize_per_channel
 numpy     by row blocks; no torch import
 ct        compressed-tensors' own calculate_qparams and quantize
 torchao   quantize_(Int8DynamicActivationInt8WeightConfig) and torch.save     (needs torchao)
 quanto    optimum-quanto quantize(weights=qint8), freeze                      (needs optimum-quanto)
"""

import time

START = time.perf_counter()
import argparse
import os

from common import Stages, emit, is_linear_or_conv, set_threads, weight_files


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ckpt")
    p.add_argument("out")
    p.add_argument("--impl", choices=["plain", "torchq", "numpy", "ct", "torchao", "quanto"], default="plain")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--check", action="store_true", help="also the mean relative weight error (plain, torchq, ct)")
    return p.parse_args()


def is_coded(name, rank):
    return is_linear_or_conv(name, rank) and "lm_head" not in name


def with_numpy(args, files, stages):
    import numpy_ckpt

    stages.done("import_s")
    n_coded, written = 0, []
    for file in files:
        raw, tensors = numpy_ckpt.load(file)
        stages.done("load_s")
        writer = numpy_ckpt.Writer()
        for name, (dtype, shape, data) in tensors.items():
            if is_coded(name, len(shape)) and dtype in ("F32", "BF16"):
                codes, scales = numpy_ckpt.quantize_rows(numpy_ckpt.as_rows(dtype, shape, data))
                n_coded += codes.size
                writer.put(name, "I8", shape, codes)
                writer.put(name + "_scale", "F32", scales.shape, scales)
            else:
                writer.put(name, dtype, shape, data)
        stages.done("quant_s")
        written.append(os.path.join(args.out, os.path.basename(file)))
        writer.save(written[-1])
        del raw, tensors, data, writer
        stages.done("save_s")
    return n_coded, written, []


def channel_coder(impl):
    """Returns a function from a weight to (I8 codes of its shape, scales [out, 1])."""
    import torch

    if impl == "torchq":

        def code(weight):
            rows = weight.float()
            scale = (rows.abs().flatten(1).amax(1) / 127).clamp_min_(1e-12)
            zero = torch.zeros(len(scale), dtype=torch.long)
            return torch.quantize_per_channel(rows, scale, zero, 0, torch.qint8).int_repr(), scale.view(-1, 1)

    elif impl == "plain":

        def code(weight):
            rows = weight.float().flatten(1)
            scale = (rows.abs().amax(1, keepdim=True) / 127).clamp_min_(1e-12)
            return (rows / scale).round_().clamp_(-127, 127).to(torch.int8).view(weight.shape), scale

    else:
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.lifecycle.forward import quantize
        from compressed_tensors.quantization.utils import calculate_qparams

        args = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="channel")

        def code(weight):
            rows = weight.flatten(1)
            scale, zero = calculate_qparams(rows.amin(1, keepdim=True), rows.amax(1, keepdim=True), args)
            codes = quantize(x=rows, scale=scale, zero_point=zero, args=args, dtype=torch.int8)
            return codes.view(weight.shape), scale

    return code


def with_torch(args, files, stages):
    import torch
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    code = channel_coder(args.impl)
    stages.done("import_s")
    n_coded, written, errors = 0, [], []
    for file in files:
        state, out = load_file(file), {}
        stages.done("load_s")
        for name, weight in state.items():
            if not (is_coded(name, weight.dim()) and weight.is_floating_point()):
                out[name] = weight
                continue
            n_coded += weight.numel()
            codes, scale = out[name], out[name + "_scale"] = code(weight)
            if args.check:
                exact = weight.float().flatten(1)
                errors.append(((codes.flatten(1).float() * scale.float() - exact).norm() / exact.norm()).item())
        stages.done("quant_s")
        written.append(os.path.join(args.out, os.path.basename(file)))
        save_file(out, written[-1], {"format": "pt"})
        del state, out
        stages.done("save_s")
    return n_coded, written, errors


def with_modules(args, files, stages):
    """Puts the weights into Linear layers first, because torchao and quanto quantize modules."""
    import torch
    from safetensors.torch import load_file, save_file

    if args.impl == "torchao":
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    else:
        from optimum.quanto import freeze, qint8, quantize
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    stages.done("import_s")
    n_coded, written = 0, []
    for file in files:
        rest = load_file(file)
        stages.done("load_s")
        modules, names = torch.nn.ModuleDict(), {}
        for name in [name for name, w in rest.items() if is_coded(name, w.dim()) and w.dim() == 2]:
            weight = rest.pop(name)
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
            linear.weight = torch.nn.Parameter(weight, requires_grad=False)
            names[name] = name.removesuffix(".weight").replace(".", "__")
            modules[names[name]] = linear
            n_coded += weight.numel()
            del weight, linear
        written.append(os.path.join(args.out, os.path.basename(file)))
        if args.impl == "torchao":
            quantize_(modules, Int8DynamicActivationInt8WeightConfig())
            stages.done("quant_s")
            written[-1] += ".pt"
            torch.save({**rest, **{name: modules[key].weight for name, key in names.items()}}, written[-1])
        else:
            quantize(modules, weights=qint8)
            freeze(modules)
            stages.done("quant_s")
            coded = {k: v for k, v in modules.state_dict().items() if isinstance(v, torch.Tensor)}
            save_file({**coded, **rest}, written[-1])
        del rest, modules
        stages.done("save_s")
    return n_coded, written, []


def main():
    args = arguments()
    set_threads(args.threads)
    stages = Stages(START)
    os.makedirs(args.out, exist_ok=True)
    run = {"numpy": with_numpy, "torchao": with_modules, "quanto": with_modules}.get(args.impl, with_torch)
    n_coded, written, errors = run(args, weight_files(args.ckpt), stages)
    figures = {"rel_err": round(sum(errors) / len(errors), 5)} if errors else {}
    out_bytes = sum(os.path.getsize(path) for path in written)
    emit(impl=args.impl, threads=args.threads, quantized=n_coded, out_bytes=out_bytes, **figures, **stages.totals())


main()
