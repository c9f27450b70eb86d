#!/usr/bin/env python3
"""Measure MiniLM's ONNX exports in onnxruntime: bytes, cosine to f32 on held-out sentences, and CPU time of 128 tokens.

usage: onnx_minilm.py F32_DIR TOKENIZER HELD_OUT NAME=DIR [NAME=DIR ..]

F32_DIR is an f32 export; quantize_dynamic of onnxruntime, with and without per_channel, is applied to it for comparison. Sentences run one
by one without padding; vectors are means of the last hidden states. One thread; the time is the median of 30 runs, in rounds
over all models. Needs onnx, onnxruntime, numpy and tokenizers.
"""

import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feed(ids):
    ids = np.array([ids], dtype=np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def vectors(run, texts):
    found = [run.run(["last_hidden_state"], feed(ids))[0][0].mean(axis=0) for ids in texts]
    return np.stack([vector / np.linalg.norm(vector) for vector in found])


def main():
    f32, tokenizer, held_out, *named = sys.argv[1:]
    models = {"f32": pathlib.Path(f32) / "model.onnx"}
    scratch = pathlib.Path(tempfile.mkdtemp())
    for name, per_channel in (("ort dynamic", False), ("ort dynamic per channel", True)):
        models[name] = scratch / f"{per_channel}.onnx"
        quantize_dynamic(models["f32"], models[name], per_channel=per_channel, weight_type=QuantType.QInt8)
    for one in named:
        name, path = one.split("=")
        models[name] = pathlib.Path(path) / "model.onnx"
    encoder = Tokenizer.from_file(tokenizer)
    encoder.no_padding()
    encoder.enable_truncation(128)
    lines = [line.strip() for line in open(held_out) if line.strip()]
    texts = [encoder.encode(line).ids for line in lines]
    runs = {name: session(path) for name, path in models.items()}
    expected = vectors(runs["f32"], texts)
    long = feed(([101] + [2000 + 7 * i for i in range(126)] + [102])[:128])
    seconds = {name: [] for name in runs}
    for _ in range(30):
        for name, run in runs.items():
            start = time.process_time()
            run.run(["last_hidden_state"], long)
            seconds[name].append(time.process_time() - start)
    print(f"{len(texts)} sentences of {held_out}")
    for name, run in runs.items():
        cosine = (vectors(run, texts) * expected).sum(axis=1)
        size = models[name].stat().st_size / 1e6
        print(f"{name:26} {size:7.2f} MB  cosine {cosine.mean():.5f}, least {cosine.min():.5f}  {statistics.median(seconds[name]) * 1e3:6.2f} ms")


if __name__ == "__main__":
    main()
