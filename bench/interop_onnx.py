#!/usr/bin/env python3
"""Check that onnxruntime computes the reference outputs from the ONNX exports of briquette.

usage: interop_onnx.py BRIQUETTE_BINARY WORKDIR [--only NAME,NAME] [--f16 | --again | --codes RUN_ONNX]

Needs onnx, onnxruntime, numpy and safetensors. Exports every model of fixtures/families. `onnx.checker` checks each model. onnxruntime
runs it on the inputs of golden.safetensors, and each output that the golden file has is compared with transformers or torchvision.
Prints the largest difference over the largest output. Exit code 1 if one is above 1e-4, or 2e-2 with --f16 or --again.

--f16       export with --cast f16
--again     export in f32, then export the ONNX model with --cast f16
--codes     export int8, int4-g16 and int8-g16-asym by both sets of operators, and compare onnxruntime with the example run_onnx
            (cargo build --release --example run_onnx)
"""

import argparse
import itertools
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
FAMILIES = HERE.parent / "fixtures" / "families"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary", type=pathlib.Path)
    p.add_argument("workdir", type=pathlib.Path)
    p.add_argument("--only", default="", help="comma list of models")
    p.add_argument("--f16", action="store_true")
    p.add_argument("--again", action="store_true")
    p.add_argument("--codes", type=pathlib.Path, metavar="RUN_ONNX")
    return p.parse_args()


def export(binary, model, out, flags=()):
    """Return the exit code and the text of an export."""
    done = subprocess.run([binary, "export", model, "--to", "onnx", "-o", out, "--force", *flags], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def session(path, is_optimized=True):
    options = onnxruntime.SessionOptions()
    if not is_optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_of(run, golden):
    """Return the inputs that a session takes, from the arrays of a golden file."""
    n_items = next(golden[key].shape[0] for key in ("ids", "images", "features") if key in golden)
    given = {
        "input_ids": golden.get("ids"),
        "attention_mask": golden.get("mask"),
        "token_type_ids": golden.get("types", np.zeros_like(golden.get("ids", np.zeros(1)))),
        "pixel_values": golden.get("images"),
        "input_features": golden.get("features"),
        "decoder_input_ids": golden.get("target"),
    }
    found = {}
    for wanted in run.get_inputs():
        array = given[wanted.name]
        if array is None and wanted.name in ("input_ids", "attention_mask"):
            # A golden file of the images of a model that reads texts too.
            array = np.ones((n_items, 3))
        found[wanted.name] = array.astype(np.float32 if wanted.type == "tensor(float)" else np.int64)
    return found


def expected_of(name, outputs, golden):
    """Return pairs of an output's name and the reference array."""
    logits = next((output for output in ("image_embeds", "text_embeds", "logits") if output in outputs), None)
    pairs = []
    if "logits" in golden and logits:
        pairs.append((logits, golden["logits"]))
    if "pooled" in golden and "pooler_output" in outputs:
        pairs.append(("pooler_output", golden["pooled"]))
    hidden = [output for output in outputs if output.startswith("last_hidden_state")]
    if "hidden" in golden and hidden:
        # Of a model of texts and images, the golden file has the images.
        pairs.append((hidden[-1] if name in ("clip", "siglip") else hidden[0], golden["hidden"]))
    return pairs


def difference(found, expected, mask):
    if found.shape != expected.shape:
        return float("inf")
    if mask is not None and found.ndim == 3 and found.shape[:2] == mask.shape:
        found, expected = found[mask == 1], expected[mask == 1]
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def check(args, name):
    """Return the differences of a model by output."""
    out = args.workdir / name
    code, text = export(args.binary, FAMILIES / name, out, ["--cast", "f16"] if args.f16 else [])
    if code == 0 and args.again:
        first, out = out, args.workdir / f"{name}-f16"
        code, text = export(args.binary, first / "model.onnx", out, ["--cast", "f16"])
    if code != 0:
        raise RuntimeError(text.strip())
    onnx.checker.check_model(str(out / "model.onnx"), full_check=True)
    run = session(out / "model.onnx")
    golden = load_file(FAMILIES / name / "golden.safetensors")
    golden = {key: array.astype(np.float32) if array.dtype == np.float16 else array for key, array in golden.items()}
    names = [output.name for output in run.get_outputs()]
    found = dict(zip(names, run.run(None, inputs_of(run, golden))))
    pairs = expected_of(name, names, golden)
    if not pairs:
        raise RuntimeError(f"no output of {names} is in the golden file")
    return {output: difference(found[output], expected, golden.get("mask")) for output, expected in pairs}


def check_codes(args, name):
    """Return the largest difference between both programs for each kind of codes."""
    golden = load_file(FAMILIES / name / "golden.safetensors")
    out, codes, found = args.workdir / name, args.workdir / f"{name}-codes", {}
    for scheme, operators in (("int8", "microsoft"), *itertools.product(("int4-g16", "int8-g16-asym"), ("microsoft", "standard"))):
        subprocess.run([args.binary, "compress", FAMILIES / name, "-o", codes, "--quantize", scheme, "--force", "--quiet"], check=True)
        code, text = export(args.binary, codes, out, ["--operators", operators])
        if code != 0:
            raise RuntimeError(text.strip())
        onnx.checker.check_model(str(out / "model.onnx"), full_check=True)
        # Optimized, onnxruntime rounds the inputs of products with decoded weights.
        run = session(out / "model.onnx", is_optimized=False)
        given = inputs_of(run, golden)
        expected = dict(zip([output.name for output in run.get_outputs()], run.run(None, given)))
        files = [args.workdir / "in.safetensors", args.workdir / "out.safetensors"]
        save_file({key: np.ascontiguousarray(array.astype(np.float32)) for key, array in given.items()}, files[0])
        done = subprocess.run([args.codes, out / "model.onnx", *files, "0"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip()[-200:])  # of mixtures of experts: NonZero cannot be run
        own = load_file(files[1])
        each = [difference(own[key].reshape(array.shape), array, golden.get("mask")) for key, array in expected.items()]
        found[f"{scheme} {operators}"] = max(each)
    return found


def main():
    args = arguments()
    args.workdir.mkdir(parents=True, exist_ok=True)
    only = [name for name in args.only.split(",") if name]
    names = only or sorted(path.name for path in FAMILIES.iterdir())
    most, failed = 2e-2 if args.f16 or args.again else 1e-4, []
    for name in names:
        try:
            found = (check_codes if args.codes else check)(args, name)
            shown = " ".join(f"{output} {value:.1e}" for output, value in found.items())
            is_good = all(value <= most for value in found.values())
        except Exception as error:
            shown, is_good = f"{type(error).__name__}: {str(error)[:300]}", False
        print(f"{'PASS' if is_good else 'FAIL'} {name:26} {shown}", flush=True)
        if not is_good:
            failed.append(name)
        for made in (name, f"{name}-f16", f"{name}-codes"):
            shutil.rmtree(args.workdir / made, ignore_errors=True)
    print(f"{len(names) - len(failed)} of {len(names)} within {most:g}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
