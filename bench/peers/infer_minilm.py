#!/usr/bin/env python3
"""Compare MiniLM in torch f32 with other modes: fidelity, bytes and latency. Prints one JSON line per mode.

usage: infer_minilm.py [--ckpt models/minilm] [--modes fp32,x86,...] [--threads 1] [--prune local:0.4] [--nolat]

Fidelity is the cosine and the ranking of pairs over 40 sentences. Latency is at sequence length 128.

modes: fp32, bf16, torchao (needs torchao), and torch.ao's dynamic int8 of every Linear by engine: x86, onednn, fbgemm,
qnnpack (with the suffix `_pc`: one weight scale per channel).
"""

import argparse
import copy
import io
import warnings

warnings.filterwarnings("ignore")
from common import bench, emit, rss_mb, sentences, set_threads

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--ckpt", default="models/minilm")
p.add_argument("--threads", type=int, default=1)
p.add_argument("--modes", default="fp32,x86,x86_pc,onednn,fbgemm")
p.add_argument("-n", type=int, default=7, help="samples per latency")
p.add_argument("--prune", default="", help="local:0.4 or global:0.4: L1-prune every Linear weight first")
p.add_argument("--nolat", action="store_true", help="no latencies")
p.add_argument("--attn", default="sdpa")
args = p.parse_args()
set_threads(args.threads)

import minilm
import torch
import torch.ao.quantization as tq
from torch.nn.utils import prune

PLAIN_MODES = ("fp32", "bf16", "torchao")


def pruned(model, scope, amount):
    model = copy.deepcopy(model)
    weights = [(m, "weight") for m in model.modules() if isinstance(m, torch.nn.Linear)]
    if scope == "local":
        for module, name in weights:
            prune.l1_unstructured(module, name, amount)
    else:
        prune.global_unstructured(weights, pruning_method=prune.L1Unstructured, amount=amount)
    for module, name in weights:
        prune.remove(module, name)
    return model


def in_mode(model, mode):
    """Returns a copy of the f32 model in a mode."""
    if mode == "fp32":
        return model
    model = copy.deepcopy(model)
    if mode == "bf16":
        return model.to(torch.bfloat16)
    if mode == "torchao":
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(model, Int8DynamicActivationInt8WeightConfig())
        return model
    torch.backends.quantized.engine = mode.removesuffix("_pc")
    qconfig = tq.per_channel_dynamic_qconfig if mode.endswith("_pc") else tq.default_dynamic_qconfig
    return tq.quantize_dynamic(model, {torch.nn.Linear: qconfig}, dtype=torch.qint8)


def state_bytes(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()


def fidelity(embeddings, reference):
    """Returns cosines, and how well the ranking of all pairs by similarity is preserved."""
    upper = torch.triu_indices(len(embeddings), len(embeddings), 1)
    ours, theirs = embeddings @ embeddings.T, reference @ reference.T
    pairs = torch.stack([ours[upper[0], upper[1]], theirs[upper[0], upper[1]]])
    ranks = pairs.argsort(1).argsort(1).double()
    nearest = [similarity.clone().fill_diagonal_(-1).argmax(1) for similarity in (ours, theirs)]
    cosine = minilm.cosines(embeddings, reference)
    return {
        "cos_mean": round(cosine.mean().item(), 6),
        "cos_min": round(cosine.min().item(), 6),
        "pair_spearman": round(torch.corrcoef(ranks)[0, 1].item(), 5),
        "top1_agree": round((nearest[0] == nearest[1]).float().mean().item(), 4),
        "max_pair_delta": round((pairs[0] - pairs[1]).abs().max().item(), 4),
    }


def latencies(model):
    figures = {}
    for batch in (1, 32):
        ids = torch.randint(1000, 30000, (batch, 128))
        mask = torch.ones_like(ids)
        t = bench(lambda: model(input_ids=ids, attention_mask=mask), n=args.n, target=0.3)
        figures[f"b{batch}_ms"] = [round(t[k] * 1e3, 2) for k in ("min", "med", "max")]
        figures[f"b{batch}_cpu_ms"] = round(t["cpu"] * 1e3, 2)
        figures[f"b{batch}_other"] = t["other_max"]
    return figures


@torch.inference_mode()
def main():
    torch.set_num_threads(args.threads)
    tokenizer, model = minilm.load(args.ckpt, attn_implementation=args.attn)
    base = model
    if args.prune:
        scope, amount = args.prune.split(":")
        base = pruned(model, scope, float(amount))
    reference = minilm.embed(tokenizer, model, sentences())
    for mode in args.modes.split(","):
        changed = in_mode(base, mode)
        emit(
            mode=mode,
            prune=args.prune,
            threads=args.threads,
            attn=args.attn,
            **fidelity(minilm.embed(tokenizer, changed, sentences()), reference),
            state_bytes=state_bytes(changed),
            **({} if args.nolat else latencies(changed)),
            peak_mb=round(rss_mb()),
        )


main()
