#!/usr/bin/env python3
"""Load shrunk models in transformers and compare them with Briquette's own figures.

usage: shrunk_models.py BRIQUETTE ORIGINAL SHRUNK TEXTS [--perplexity]

Encoders: prints the mean cosine of the embeddings of SHRUNK to those of ORIGINAL on the lines of TEXTS, as `briquette eval SHRUNK
--against ORIGINAL --data TEXTS` does, and the difference to its figure. Decoders (`--perplexity`): the same for the perplexity of
SHRUNK on TEXTS in windows of 64 tokens. Needs torch and transformers. Exit code 1 if the figures differ by more than 1e-4 (relative).
"""

import json
import math
import subprocess
import sys

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

WINDOW = 64


def embeddings(path, lines):
    """Mean of the last hidden states over tokens, with length 1; one row for each line."""
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    rows = []
    for start in range(0, len(lines), 32):
        batch = tokenizer(lines[start : start + 32], padding=True, truncation=True, max_length=128, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).float()
        rows.append(torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1))
    return torch.cat(rows)


def perplexity(path, text):
    """Perplexity of consecutive windows."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    windows = ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
    total = 0.0
    with torch.no_grad():
        for window in windows:
            total += model(input_ids=window[None], labels=window[None]).loss.item()
    return math.exp(total / len(windows))


def ours(briquette, arguments):
    """The metrics that `briquette eval` measures."""
    found = subprocess.run([briquette, "eval", *arguments, "--json"], check=True, capture_output=True, text=True)
    return json.loads(found.stdout)["metrics"]


def main():
    briquette, original, shrunk, texts = sys.argv[1:5]
    lines = [line.rstrip("\n") for line in open(texts, encoding="utf-8") if line.strip()]
    if "--perplexity" in sys.argv:
        found = perplexity(shrunk, open(texts, encoding="utf-8").read())
        expected = ours(briquette, [shrunk, "--data", texts, "--max-length", str(WINDOW)])["perplexity"]
    else:
        found = (embeddings(original, lines) * embeddings(shrunk, lines)).sum(1).mean().item()
        expected = ours(briquette, [shrunk, "--data", texts, "--against", original, "--max-length", "128"])["cosine"]
    difference = abs(found - expected) / abs(expected)
    print(f"transformers {found:.6f}, Briquette {expected:.6f}, relative difference {difference:.1e}")
    sys.exit(difference > 1e-4)


if __name__ == "__main__":
    main()
