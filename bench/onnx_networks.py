#!/usr/bin/env python3
"""Run ONNX networks by GraphNet, onnxruntime and rten on the same random inputs, and compare the outputs.

usage: onnx_networks.py RUN_ONNX DIR [NAME ...] [--runs N] [--rten RUN_RTEN]

RUN_ONNX is the example `run_onnx` of crates/briquette-models. DIR gets the files of onnx_files.py; silero-vad and magika come
from their packages. For each file, a line has the largest difference over the largest output, and the median time of one run on
one thread on each side. RUN_RTEN is the program of bench/rten. A file that rten refuses, or whose outputs differ by more than
1e-3, has its message or the difference in place of a time. Exit code 1 if a file fails, or a difference of ours is above 1e-4.
Needs onnxruntime, silero-vad, magika and the packages of `onnx_files.py export`.
"""

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
import onnxruntime
import safetensors.numpy

import onnx_files

LIMIT = 1e-4
# Files of packages by the name of the network.
PACKAGED = {
    "magika": [("magika", "models/standard_v3_3/model.onnx")],
    "silero_vad": [
        ("silero_vad", "data/silero_vad.onnx"),
        ("silero_vad", "data/silero_vad_16k_op15.onnx"),
        ("silero_vad", "data/silero_vad_op18_ifless.onnx"),
    ],
}
# Inputs of packaged networks: shapes, and the numbers of integers.
SHAPES = {"bytes": (1, 2048), "input": (1, 576), "state": (2, 1, 128), "sr": ()}


def files(directory, names):
    """Returns the files to run, each with the name of its network."""
    exported = [name for name in names if name in onnx_files.NETWORKS]
    # An exporter that fails would fail again.
    missing = [name for name in exported if not list(directory.glob(f"{name}.*.onnx"))]
    if missing:
        onnx_files.export(directory, missing)
    found = [(path, path.name.split(".")[0]) for path in sorted(directory.glob("*.onnx"))]
    found = [(path, name) for path, name in found if name in exported]
    for name in names:
        for package, path in PACKAGED.get(name, []):
            root = importlib.util.find_spec(package).submodule_search_locations[0]
            found.append((pathlib.Path(root) / path, name))
    return found


def given(session, random):
    """Returns random inputs for a session. Free extents are 2 items and 128 tokens."""
    found = {}
    for one in session.get_inputs():
        free = {0: 2, 1: 128}
        shape = [extent if isinstance(extent, int) else free[axis] for axis, extent in enumerate(one.shape)]
        shape = SHAPES.get(one.name, shape)
        if one.type == "tensor(float)":
            found[one.name] = random.standard_normal(shape, "float32")
        elif one.name == "sr":
            found[one.name] = numpy.array(16000, "int64")
        elif one.name == "attention_mask":
            found[one.name] = (numpy.arange(shape[1]) < numpy.array([[shape[1]], [shape[1] - 28]])).astype("int64")
        else:
            kind = "int32" if one.type == "tensor(int32)" else "int64"
            found[one.name] = random.integers(0, 2 if "type" in one.name else 100, shape).astype(kind)
    return found


def by_onnxruntime(path, runs):
    """Returns inputs, outputs by name, and the median time in milliseconds."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = given(session, numpy.random.default_rng(0))
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(names, inputs)))
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(names, inputs)
        times.append((time.perf_counter() - start) * 1e3)
    return inputs, found, sorted(times)[len(times) // 2]


def by_program(program, path, inputs, runs, work):
    """Returns outputs by name, and the median time in milliseconds."""
    floats = {name: numpy.asarray(value, "float32", order="C") for name, value in inputs.items()}
    safetensors.numpy.save_file(floats, work / "in.safetensors")
    command = [program, path, work / "in.safetensors", work / "out.safetensors", str(runs)]
    environment = dict(os.environ, RAYON_NUM_THREADS="1", RTEN_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("note:")]
        raise RuntimeError(" ".join(lines[-2:]))
    return safetensors.numpy.load_file(work / "out.safetensors"), float(done.stdout.split()[0])


def by_rten(program, path, inputs, runs, expected):
    """Returns the cell of the table: a time, or why there is none."""
    try:
        with tempfile.TemporaryDirectory() as work:
            found, time_ms = by_program(program, path, inputs, runs, pathlib.Path(work))
        expected = {name: value for name, value in expected.items() if name in found}
        difference = apart(found, expected)
        return f"{time_ms:.1f}" if difference <= 1e-3 else f"differs by {difference:.1e}"
    except Exception as error:  # noqa: BLE001: the table says why
        return str(error)[:60].replace("|", " ")


def apart(found, expected):
    """Returns the largest difference over the largest output, of all outputs."""
    most = 0.0
    for name, value in expected.items():
        ours = found[name].reshape(value.shape) if value.ndim == 0 else found[name]
        if ours.shape != value.shape:
            raise RuntimeError(f"{name}: found the shape {ours.shape}, expected {value.shape}")
        difference = numpy.abs(ours - value).max() / max(numpy.abs(value).max(), 1e-30)
        most = max(most, float("inf") if numpy.isnan(difference) else float(difference))
    return most


def main():
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_onnx")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rten")
    options = parser.parse_args()
    n_bad = 0
    print("| network | difference | ours (ms) | onnxruntime (ms) | rten (ms) |\n|---|---|---|---|---|", flush=True)
    for path, name in files(options.directory, options.names or [*onnx_files.NETWORKS, *PACKAGED]):
        try:
            inputs, expected, theirs = by_onnxruntime(path, options.runs)
            with tempfile.TemporaryDirectory() as work:
                found, ours = by_program(options.run_onnx, path, inputs, options.runs, pathlib.Path(work))
            difference = apart(found, expected)
            n_bad += difference > LIMIT
            rten = by_rten(options.rten, path, inputs, options.runs, expected) if options.rten else ""
            times = f"{ours:.1f} | {theirs:.1f} | {rten}"
            print(f"| {path.stem.replace('model', name)} | {difference:.1e} | {times} |", flush=True)
        except Exception as error:  # noqa: BLE001: each file is reported
            n_bad += 1
            print(f"| {path.stem.replace('model', name)} | {error} | | | |", flush=True)
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    main()
