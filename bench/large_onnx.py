#!/usr/bin/env python3
"""Measure the memory of commands over an ONNX model with large matrices in external data.

usage: large_onnx.py BRIQUETTE DIR [--side N] [--layers N] [--threads N]

Writes DIR/model.onnx with products by random matrices `[in, out]` in f32, N by N each (8192, 16 layers: 4.3 GB), unless it exists.
Each command runs once; a line has its time and the peak of its resident memory. DIR needs twice the model's size. Needs numpy and onnx.
"""

import argparse
import os
import pathlib
import shutil
import sys
import time

import numpy as np
from onnx import TensorProto, helper


def write_model(path, side, n_layers):
    """Writes the model, one matrix at a time."""
    tensors, nodes, value = [], [], "x"
    random = np.random.default_rng(0)
    with open(path.with_name("model.onnx.data"), "wb") as data:
        for layer in range(n_layers):
            matrix = random.standard_normal((side, side), dtype=np.float32) / np.float32(side**0.5)
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[side, side])
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": "model.onnx.data", "offset": str(data.tell()), "length": str(matrix.nbytes)}
            for key, entry in place.items():
                tensor.external_data.add(key=key, value=entry)
            data.write(matrix.tobytes())
            tensors.append(tensor)
            output = "y" if layer == n_layers - 1 else f"h{layer}"
            nodes.append(helper.make_node("MatMul", [value, tensor.name], [output]))
            value = output
    of = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", side])  # noqa: E731
    model = helper.make_model(
        helper.make_graph(nodes, "large", [of("x")], [of("y")], tensors),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path.write_bytes(model.SerializeToString())


def measured(command):
    """Runs a command, and returns its time in seconds and its peak of resident memory in MB."""
    start = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: status {status}")
    return time.perf_counter() - start, usage.ru_maxrss / 1000


def main():
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("briquette")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    model, out, exported = (options.directory / name for name in ("model.onnx", "out", "exported"))
    if not model.exists():
        write_model(model, options.side, options.layers)
    compress = ["compress", str(model), "-o", str(out), "--quiet", "--force", "--threads", str(options.threads)]
    export = ["--to", "onnx", "-o", str(exported), "--force"]
    runs = {
        "compress --prune 0.5": [*compress, "--prune", "0.5"],
        "compress --quantize int8-dynamic": [*compress, "--quantize", "int8-dynamic"],
        "compress --quantize int8-dynamic --format briquette": [*compress, "--quantize", "int8-dynamic", "--format", "briquette"],
        "export OUT --to onnx": ["export", str(out), *export],
        "export model.onnx --to onnx --quantize int8-dynamic": ["export", str(model), "--quantize", "int8-dynamic", *export],
    }
    print("| command | seconds | peak, MB |\n|---|---|---|", flush=True)
    for name, arguments in runs.items():
        seconds, peak = measured([options.briquette, *arguments])
        print(f"| `{name}` | {seconds:.0f} | {peak:.0f} |", flush=True)
    for made in (out, exported):
        shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    main()
