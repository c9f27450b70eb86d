#!/usr/bin/env python3
"""Measure the perplexity of a decoder after compression by llm-compressor, or by magnitude pruning in torch.

usage: quality.py MODEL TEXTS OUT --method NAME [--name NAME] [--threads 1]     one method, in a process of its own
       quality.py --table OUT                                                   all results in OUT, as a table
       quality.py MODEL TEXTS OUT --texts                                       only the two texts

Also measures wall and CPU seconds, peak memory, and the loss of each window, so that two results can be compared by window.

MODEL is a directory that transformers loads (models/smollm2). TEXTS has calibrate.txt and test.txt (models/brown). Needs
requirements-llmcompressor.txt. OUT gets NAME.json and the two texts, cut to the tokens in use. Give these texts to other programs.

 calibrate.txt   64 windows of 512 tokens: every 21st document of TEXTS/calibrate.txt, which covers each category
 test.txt        40 windows of 512 tokens: the first of TEXTS/test.txt; the first token of a window is not predicted

 dense                      the model without changes; for another model, `--name` names it
 magnitude50                half of each linear layer by magnitude
 wanda50, sparsegpt50       half of each linear layer; block by block, each with inputs from pruned blocks
 nearest4, nearest3         symmetric groups of 64
 gptq4, gptq3               the same; order by activations with fixed groups, damping of 1 %, block by block

The head and the embedding are not compressed.
"""

import time

START = time.perf_counter()
import argparse
import contextlib
import json
import math
import os
import pathlib
import statistics
import sys
import warnings

warnings.filterwarnings("ignore")
from common import Stages, emit, set_threads

WINDOW, N_CALIBRATE, N_TEST = 512, 64, 40
EVERY = 21
GROUP = 64
METHODS = ("dense", "magnitude50", "wanda50", "sparsegpt50", "nearest4", "nearest3", "gptq4", "gptq3")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path, nargs="?")
    p.add_argument("texts", type=pathlib.Path, nargs="?")
    p.add_argument("out", type=pathlib.Path, nargs="?")
    p.add_argument("--method", choices=METHODS)
    p.add_argument("--name", help="of the result; the method's where it is left out")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--texts", dest="only_texts", action="store_true")
    p.add_argument("--table", type=pathlib.Path, metavar="OUT")
    args = p.parse_args()
    if args.table is None and (args.out is None or (args.method is None and not args.only_texts)):
        p.error("expected MODEL, TEXTS, OUT and --method")
    return args


# ---- texts -----------------------------------------------------------------------------------------------------------


def windows_of(tokenizer, text, n, path):
    """Returns the first `n` windows of a text, and writes the text that they cover to `path`."""
    encoded = tokenizer(text, return_offsets_mapping=True)
    ids = encoded["input_ids"][: n * WINDOW]
    if len(ids) < n * WINDOW:
        sys.exit(f"the text has {len(ids)} tokens, expected at least {n * WINDOW}")
    used = text[: encoded["offset_mapping"][len(ids) - 1][1]]
    if tokenizer(used)["input_ids"] != ids:
        sys.exit(f"{path}: the text that was cut has other tokens")
    path.write_text(used, encoding="utf-8")
    return [ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW)]


def all_windows(args):
    """Returns (calibration windows, test windows)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    documents = (args.texts / "calibrate.txt").read_text(encoding="utf-8").strip().split("\n\n")
    calibrate = windows_of(tokenizer, "\n\n".join(documents[::EVERY]), N_CALIBRATE, args.out / "calibrate.txt")
    test = (args.texts / "test.txt").read_text(encoding="utf-8")
    return calibrate, windows_of(tokenizer, test, N_TEST, args.out / "test.txt")


def losses(model, windows):
    """Returns the mean negative log-likelihood of a predicted token, in nats, for each window."""
    import torch
    from torch.nn.functional import cross_entropy

    found = []
    with torch.inference_mode():
        for window in windows:
            ids = torch.tensor([window])
            found.append(cross_entropy(model(ids).logits[0, :-1].float(), ids[0, 1:]).item())
    return found


# ---- methods ---------------------------------------------------------------------------------------------------------


def linears(model):
    import torch

    return {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and name != "lm_head"}


def magnitude(model, sparsity):
    """Zeroes the smallest weights of each layer, the same ones as torch's l1_unstructured."""
    for layer in linears(model).values():
        weight = layer.weight.data
        smallest = weight.abs().flatten().argsort()[: round(sparsity * weight.numel())]
        weight.view(-1)[smallest] = 0


def modifier_of(method):
    """Returns llm-compressor's modifier, and whether it uses data."""
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.pruning import SparseGPTModifier, WandaPruningModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier

    which = {"targets": ["Linear"], "ignore": ["lm_head"]}
    if method == "wanda50":
        return WandaPruningModifier(sparsity=0.5, **which), True
    if method == "sparsegpt50":
        return SparseGPTModifier(sparsity=0.5, **which), True
    weights = {"num_bits": int(method[-1]), "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    grid = {"config_groups": {"all": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"]}
    if method.startswith("nearest"):
        return QuantizationModifier(**grid), False
    return GPTQModifier(actorder="static", dampening_frac=0.01, **grid), True


def compress(model, modifier, has_data, windows):
    """Compresses a model in place: changes its weights, or adds quantizers that run in the forward pass."""
    import torch
    from llmcompressor import oneshot

    data = {}
    if has_data:
        inputs = [{"input_ids": torch.tensor([w]), "attention_mask": torch.ones(1, WINDOW, dtype=torch.long)} for w in windows]
        loader = torch.utils.data.DataLoader(inputs, batch_size=1, collate_fn=lambda batch: batch[0])
        data = {"dataset": loader, "num_calibration_samples": len(windows), "max_seq_length": WINDOW}
    oneshot(model=model, recipe=modifier, **data)


def run(args):
    set_threads(args.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    stages = Stages(START)
    args.out.mkdir(parents=True, exist_ok=True)
    calibrate, test = all_windows(args)
    if args.only_texts:
        return
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    # llm-compressor's output goes to stderr; stdout has one JSON line.
    with contextlib.redirect_stdout(sys.stderr):
        modifier = None if args.method in ("dense", "magnitude50") else modifier_of(args.method)
        stages.done("load_s")
        if args.method == "magnitude50":
            magnitude(model, 0.5)
        elif modifier is not None:
            compress(model, *modifier, calibrate)
    stages.done("compress_s")
    # The peak includes loading and compression, not evaluation.
    figures = stages.totals()
    weights = [layer.weight for layer in linears(model).values()]
    zeros = sum((weight == 0).sum().item() for weight in weights) / sum(weight.numel() for weight in weights)
    if args.method.endswith("50") and abs(zeros - 0.5) > 0.01:
        sys.exit(f"{args.method}: {zeros:.4f} of the weights are zero, expected half")
    found = losses(model, test)
    stages.done("eval_s")
    name = args.name or args.method
    perplexity = math.exp(statistics.fmean(found))
    result = {"name": name, "threads": args.threads, "perplexity": perplexity, "zeros": round(zeros, 5), **figures}
    (args.out / f"{name}.json").write_text(json.dumps({**result, "losses": found}, indent=1) + "\n")
    emit(**{**result, "eval_s": stages.seconds["eval_s"]})


# ---- the table -------------------------------------------------------------------------------------------------------


def table(out):
    """Prints a row for each result: perplexity, loss above dense, time and memory.

    The loss is the mean over windows, with its standard error.
    """
    results = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    dense = results.get("dense", {}).get("losses")
    print("| | perplexity | loss above dense | compress | CPU, all | peak |\n|---|---|---|---|---|---|")
    for name in sorted(results, key=lambda name: (METHODS.index(name) if name in METHODS else len(METHODS), name)):
        result, above = results[name], ""
        if dense and name != "dense":
            gaps = [loss - base for loss, base in zip(result["losses"], dense, strict=True)]
            above = f"{statistics.fmean(gaps):.4f} ± {statistics.stdev(gaps) / math.sqrt(len(gaps)):.4f}"
        took = f"{result['compress_s']:.0f} s | {result['cpu_s']:.0f} s | {result['peak_mb']} MB"
        print(f"| {name} | {result['perplexity']:.3f} | {above} | {took} |")


def main():
    args = arguments()
    table(args.table) if args.table is not None else run(args)


if __name__ == "__main__":
    main()
