#!/usr/bin/env python3
"""Measure the perplexity of SmolLM2 with 4-bit weights in onnxruntime: Briquette's exports beside onnxruntime's own quantizers.

usage: onnx_smollm2.py F32_DIR TOKENIZER TEXT CALIBRATION [NAME=DIR ..] [--windows N] [--groups N] [--samples N]

F32_DIR is an f32 export. The quantizers of onnxruntime (RTN, k-quant, HQQ and GPTQ) get groups of `--groups` weights of all linear layers
but the head, and GPTQ `--samples` windows of 512 tokens of CALIBRATION. TEXT is split into windows of 512 tokens, of which the
first `--windows` are run one by one. The bytes are those of all files. Needs onnx, onnxruntime, numpy, tokenizers, sympy and tqdm.
"""

import argparse
import logging
import pathlib
import sys
import tempfile
import unittest.mock

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader
from onnxruntime.quantization import matmul_nbits_quantizer as nbits
from tokenizers import Tokenizer

WINDOW = 512


def windows_of(tokenizer, path, count):
    """Returns windows of tokens of a text, joined line by line."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    ids = tokenizer.encode(text[: count * WINDOW * 8], add_special_tokens=False).ids
    return [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW + 1, WINDOW)][:count]


def feed(names, ids):
    """Returns the inputs of one window."""
    ids = np.array([ids], dtype=np.int64)
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None]}
    return {name: given[name] for name in names}


class Windows(CalibrationDataReader):
    """Calibration windows as inputs."""

    def __init__(self, names, windows):
        self.rest = [feed(names, window) for window in windows]

    def get_next(self):
        """Returns the next inputs."""
        return self.rest.pop(0) if self.rest else None

    def __iter__(self):
        return iter(self.rest)


class KeptRuns:
    """A session that runs the whole model once for each window and keeps the inputs of linear layers, which have three axes.

    onnxruntime's GPTQ asks for one of them at a time, and would run the model on all windows for each.
    """

    def __init__(self, *args, session=onnxruntime.InferenceSession, **kwargs):
        self.session = session(*args, **kwargs)
        self.names = [one.name for one in self.session.get_outputs() if len(one.shape) == 3]
        self.kept = {}

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run(self, names, given):
        """Returns the outputs with these names."""
        if id(given) not in self.kept:
            self.kept[id(given)] = dict(zip(self.names, self.session.run(self.names, given), strict=True))
        return [self.kept[id(given)][name] for name in names]


def perplexity(path, windows):
    """Returns the perplexity of a model on windows of tokens."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    run = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in run.get_inputs()]
    losses = []
    for window in windows:
        logits = run.run(["logits"], feed(names, window))[0][0, :-1].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        losses.append(np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(window) - 1), window[1:]])
    return float(np.exp(np.mean(np.concatenate(losses))))


def theirs(f32, head, group, calibration):
    """Yields onnxruntime's quantized models by name."""
    names = [one.name for one in onnx.load(f32, load_external_data=False).graph.input]
    configs = {
        "onnxruntime RTN, asymmetric": lambda: nbits.DefaultWeightOnlyQuantConfig(block_size=group, is_symmetric=False),
        "onnxruntime RTN, symmetric": lambda: nbits.DefaultWeightOnlyQuantConfig(block_size=group, is_symmetric=True),
        "onnxruntime k-quant": nbits.KQuantWeightOnlyQuantConfig,
        "onnxruntime HQQ": lambda: nbits.HQQWeightOnlyQuantConfig(block_size=group),
        "onnxruntime GPTQ": lambda: nbits.GPTQWeightOnlyQuantConfig(calibration_data_reader=Windows(names, calibration)),
    }
    for name, config in configs.items():
        try:
            model = nbits.MatMulNBitsQuantizer(str(f32), block_size=group, nodes_to_exclude=[head], algo_config=config())
            with unittest.mock.patch.object(onnxruntime, "InferenceSession", KeptRuns):
                model.process()
        except Exception as error:  # noqa: BLE001: each method is reported
            print(f"| {name} | {type(error).__name__}: {str(error)[:80]} | |", flush=True)
            continue
        with tempfile.TemporaryDirectory() as work:
            path = pathlib.Path(work) / "model.onnx"
            model.model.save_model_to_file(str(path), True)
            yield name, path


def head_of(f32):
    """Returns the name of the node that makes the logits."""
    graph = onnx.load(f32, load_external_data=False).graph
    makers = {output: node for node in graph.node for output in node.output}
    node = makers["logits"]
    while node.op_type != "MatMul":
        node = makers[node.input[0]]
    return node.name


def main():
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("f32", "tokenizer", "text", "calibration"):
        parser.add_argument(name)
    parser.add_argument("ours", nargs="*")
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--skip-theirs", action="store_true")
    options = parser.parse_args()
    # The quantizers log a line for each node.
    logging.disable(logging.INFO)
    f32 = pathlib.Path(options.f32) / "model.onnx"
    tokenizer = Tokenizer.from_file(options.tokenizer)
    windows = windows_of(tokenizer, options.text, options.windows)
    calibration = windows_of(tokenizer, options.calibration, options.samples)
    print("| model | MB | perplexity |\n|---|---|---|", flush=True)
    ours = {name: pathlib.Path(path) / "model.onnx" for name, path in (one.split("=") for one in options.ours)}
    models = [("f32", f32), *ours.items()]
    for group in (models, [] if options.skip_theirs else theirs(f32, head_of(f32), options.groups, calibration)):
        for name, path in group:
            n_bytes = sum(file.stat().st_size for file in path.parent.iterdir() if file.name.startswith("model.onnx"))
            print(f"| {name} | {n_bytes / 1e6:.1f} | {perplexity(path, windows):.3f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
