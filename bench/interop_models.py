#!/usr/bin/env python3
"""Compare full-size models in burn with torchvision and transformers on the same weights.

usage: interop_models.py FORWARD MINILM [--work DIR] [--briquette BIN] [--only PREFIX]
       FORWARD: target/release/examples/forward (cargo build --release -p briquette-eval --example forward)
       MINILM:  models/minilm; packages: bench/peers/requirements.txt

Weights are random for every ResNet (.pth and safetensors), BERT-base and a Llama. MiniLM has its real weights and tokenizer, on
bench/peers/sentences.txt; with --briquette its int8 form runs too. Prints one JSON line for each model. Exit code 1 if a limit
is exceeded:

- 1e-4 of the largest output;
- cosine 0.99999 (f32) and 0.9995 on average (int8);
- 1.15 times the bytes of the weights plus 64 MB of resident memory while MiniLM loads.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torchvision
import transformers
from safetensors.torch import save_file

SENTENCES = pathlib.Path(__file__).resolve().parent / "peers/sentences.txt"
failed = []


def report(name, ok, **figures):
    print(json.dumps({"model": name, "ok": bool(ok), **figures}), flush=True)
    if not ok:
        failed.append(name)


def forward(args, model, feed, like):
    """Runs burn on `feed`, a path or tensors. Returns the output in the shape of `like`, and the seconds."""
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        out = pathlib.Path(folder) / "out.f32"
        if isinstance(feed, dict):
            path = pathlib.Path(folder) / "in.safetensors"
            save_file({name: t.contiguous() for name, t in feed.items()}, path)
            feed = path
        start = time.perf_counter()
        subprocess.run([args.forward, model, feed, out], check=True)
        seconds = time.perf_counter() - start
        return torch.from_numpy(np.fromfile(out, dtype="<f4")).view(like.shape), round(seconds, 2)


def agree(args, name, model, feed, expected):
    found, seconds = forward(args, model, feed, expected)
    apart = ((found - expected).abs().max() / expected.abs().max()).item()
    report(name, apart <= 1e-4, relative=apart, seconds=seconds)


def randomized(model, seed):
    """Randomizes biases and norms too, and gives statistics the size of a trained network's, so that outputs stay finite."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point() and tensor.dim() == 1 and "inv_freq" not in name:
                noise = torch.randn(tensor.shape, generator=generator)
                is_gain = name.endswith("weight") or name.endswith("running_var")
                tensor.copy_((1 + 0.1 * noise.abs()) if is_gain else 0.1 * noise)
    return model.eval()


def resnets(args):
    for depth in (18, 34, 50, 101, 152):
        torch.manual_seed(depth)
        model = randomized(getattr(torchvision.models, f"resnet{depth}")(weights=None), depth)
        images = torch.randn(2, 3, 224, 224)
        with torch.inference_mode():
            expected = model(images)
        for extension in ("pth", "safetensors"):
            path = args.work / f"resnet{depth}.{extension}"
            torch.save(model.state_dict(), path) if extension == "pth" else save_file(model.state_dict(), path)
            agree(args, f"resnet{depth}.{extension}", path, {"images": images}, expected)
            path.unlink()


def text_model(args, name, model, causal, vocab):
    folder = args.work / name
    shutil.rmtree(folder, ignore_errors=True)
    randomized(model, 1).save_pretrained(folder)
    ids = torch.randint(5, vocab, (2, 96), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        if causal:
            expected = model(ids.long()).logits
        else:
            mask[1, 70:] = 0
            expected = model(input_ids=ids.long(), attention_mask=mask.long()).last_hidden_state
    agree(args, name, folder, {"ids": ids, "mask": mask}, expected)
    shutil.rmtree(folder)


def texts(args):
    torch.manual_seed(0)
    bert = transformers.BertConfig()
    text_model(args, "bert-base", transformers.BertModel(bert, add_pooling_layer=False), False, bert.vocab_size)
    llama = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=False,
    )
    text_model(args, "llama-220m", transformers.LlamaForCausalLM(llama), True, llama.vocab_size)


def embed(folder, sentences):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    batch = tokenizer(sentences, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch).last_hidden_state
    there = batch["attention_mask"].unsqueeze(-1).float()
    return torch.nn.functional.normalize((states * there).sum(1) / there.sum(1), dim=1)


def minilm(args):
    weights = os.path.getsize(args.minilm / "model.safetensors")
    # The child reads its own peak. A peak measured here would include pages of this process from before exec.
    peak = int(subprocess.run([args.forward, args.minilm], check=True, capture_output=True).stdout)
    report("minilm loading", peak <= 1.15 * weights + 64e6, peak_bytes=peak, of_weights=round(peak / weights, 3))
    sentences = SENTENCES.read_text().splitlines()
    expected = embed(args.minilm, sentences)
    found, seconds = forward(args, args.minilm, SENTENCES, expected)
    cosines = torch.nn.functional.cosine_similarity(found.double(), expected.double())
    report("minilm f32", cosines.min() >= 0.99999, cosine_min=cosines.min().item(), seconds=seconds)
    if args.briquette:
        out = args.work / "minilm-int8"
        subprocess.run([args.briquette, "compress", args.minilm, "-o", out, "--quantize", "int8", "--force", "--quiet"], check=True)
        found, seconds = forward(args, out, SENTENCES, expected)
        cosines = torch.nn.functional.cosine_similarity(found.double(), expected.double())
        figures = {"cosine": cosines.mean().item(), "cosine_min": cosines.min().item(), "seconds": seconds}
        report("minilm int8", cosines.mean() >= 0.9995, **figures)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forward", type=pathlib.Path)
    parser.add_argument("minilm", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("bench-out/interop-models"))
    parser.add_argument("--briquette", type=pathlib.Path)
    parser.add_argument("--only", default="", help="minilm, resnets or texts")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for part in (minilm, resnets, texts):
        if part.__name__.startswith(args.only):
            part(args)
    sys.exit(f"not as promised: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
