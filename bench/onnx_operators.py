#!/usr/bin/env python3
"""Run the test cases of ONNX's operators, and compare the outputs with the expected ones.

usage: onnx_operators.py RUN_ONNX WORKDIR        (packages: onnx, numpy, safetensors)

RUN_ONNX is the example of briquette-models: cargo build --release --example run_onnx. Cases that Briquette refuses by name are counted, and those
with texts, sequences, more than six axes or without elements are left out. Prints each output that differs. Exit code 1 if one does.
"""

import collections
import pathlib
import subprocess
import sys

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
from safetensors.numpy import load_file, save_file

# Outputs with random numbers, and remainders by an infinite divisor, which are NaN in Briquette.
LEFT_OUT = ("test_training_dropout", "test_mod_float_edge_cases_fmod_0", "test_bernoulli")


def arrays(values):
    """Return arrays of numbers of up to six axes with elements; None if a value is none."""
    found = [np.asarray(value) for value in values if not isinstance(value, (list, dict)) and value is not None]
    fits = len(found) == len(values) and all(a.dtype.kind in "fiub" and a.ndim <= 6 and a.size > 0 for a in found)
    return found if fits else None


def difference(found, expected):
    """Return the largest difference over the largest expected value, at least 1; infinite for other shapes and places without numbers."""
    expected = expected.astype(np.float32)
    if found.size != expected.size:
        return float("inf")
    found = found.reshape(expected.shape)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    if np.isnan(found[~same]).any() or not np.isfinite(expected[~same]).all():
        return float("inf")
    scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
    return float(np.abs(found[~same] - expected[~same]).max(initial=0)) / scale


def run(program, work, case):
    """Return "refused", "left out", or the largest difference."""
    inputs, outputs = (arrays(values) for values in case.data_sets[0])
    given = {tensor.name for tensor in case.model.graph.initializer}
    names = [value.name for value in case.model.graph.input if value.name not in given]
    if inputs is None or outputs is None or not names or case.name.startswith(LEFT_OUT):
        return "left out"
    save_file({name: np.ascontiguousarray(array.astype(np.float32)) for name, array in zip(names, inputs)}, work / "in.safetensors")
    onnx.save(case.model, work / "model.onnx")
    paths = [work / name for name in ("model.onnx", "in.safetensors", "out.safetensors")]
    done = subprocess.run([program, *paths, "0"], capture_output=True, text=True)
    if done.returncode != 0:
        return f"failed: {done.stderr[:200]}" if "panicked" in done.stderr else "refused"
    found = load_file(paths[2])
    return max(difference(found[value.name], array) for value, array in zip(case.model.graph.output, outputs))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, work = sys.argv[1], pathlib.Path(sys.argv[2])
    work.mkdir(parents=True, exist_ok=True)
    counts, is_wrong = collections.Counter(), False
    for case in collect_testcases(None):
        if not case.data_sets or case.model is None:
            continue
        found = run(program, work, case)
        if isinstance(found, float):
            kind = "equal" if found <= 2e-3 else "different"
        else:
            kind = found.split(":")[0]
        counts[kind] += 1
        if kind in ("different", "failed"):
            is_wrong = True
            print(f"{case.name}: {found}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
