#!/usr/bin/env python3
"""Time static int8 models of convolutional networks in Briquette, onnxruntime and OpenVINO, and Briquette's int8-dynamic, on one thread.

usage: static_int8.py BRIQUETTE RUN_ONNX WORK [NAME ...] [--rounds N]

NAME: a network of torchvision, with random weights and batch-norm statistics (default: resnet18 resnet50 mobilenet_v2). Briquette exports
each as int8-static ONNX, and writes it as int8-dynamic. RUN_ONNX is the example `run_onnx` of crates/briquette-models. All programs run
the same static file, in turn. Prints the median time of one image of 224x224, and the cosine of Briquette's outputs to those of f32.
The ratio is that of Briquette's static model to each other program.
Packages: torch, torchvision, onnx, onnxruntime, safetensors; openvino is optional.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy
import onnxruntime
import safetensors.numpy

import onnx_files

NAMES = ("resnet18", "resnet50", "mobilenet_v2")
# Runs of Briquette in a round: it is a process of its own.
RUNS = 15
# Freed memory is kept for the next values, as in the command `briquette`. The other programs have allocators that keep it.
ENVIRONMENT = {"RAYON_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647"}


def exported(name, work):
    """Write a network as ONNX, and images for calibration."""
    import torch

    path = work / f"{name}.onnx"
    if not path.exists():
        model, inputs, _ = onnx_files.vision(name)
        torch.onnx.export(model, (inputs["image"][:1],), str(path), dynamo=False, opset_version=17, input_names=["image"],
                          output_names=["logits"], dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}})
        numpy.save(work / "images.npy", numpy.random.default_rng(0).standard_normal((16, 3, 224, 224)).astype("float32"))
    return path


def onnxruntimes(path):
    """Return a function that runs a model in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda image: session.run(None, {"image": image})[0]


def openvinos(path):
    """Return a function that runs a model in OpenVINO, if that is installed."""
    try:
        import openvino
    except ImportError:
        return None
    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"})
    model = core.read_model(str(path))
    model.reshape([1, 3, 224, 224])
    request = core.compile_model(model, "CPU").create_infer_request()
    return lambda image: next(iter(request.infer({"image": image}).values()))


def timed(run, image):
    """Return the median time of some runs in milliseconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run(image)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def by_program(program, path, work):
    """Return Briquette's time and output."""
    out = work / "out.safetensors"
    command = [program, str(path), str(work / "in.safetensors"), str(out), str(RUNS)]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[0]), next(iter(safetensors.numpy.load_file(out).values()))


def measure(name, given):
    """Compare all programs with one network."""
    work, path = given.work, exported(name, given.work)
    static, dynamic = work / f"{name}-static", work / f"{name}-dynamic"
    quiet = ["--force", "--quiet"]
    data = ["--data", str(work / "images.npy")]
    subprocess.run([given.briquette, "export", path, "--to", "onnx", "--quantize", "int8-static", *data, "-o", static, *quiet], check=True)
    subprocess.run([given.briquette, "compress", path, "--quantize", "int8-dynamic", "--format", "briquette", "-o", dynamic, *quiet], check=True)
    image = numpy.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype("float32")
    safetensors.numpy.save_file({"image": image}, work / "in.safetensors")
    model = static / "model.onnx"
    runs = {"onnxruntime": onnxruntimes(model), "OpenVINO": openvinos(model), "onnxruntime, f32": onnxruntimes(path)}
    runs = {side: run for side, run in runs.items() if run}
    times = {side: [] for side in ("Briquette", *runs, "Briquette, dynamic")}
    for _ in range(given.rounds):
        milliseconds, found = by_program(given.run_onnx, model, work)
        times["Briquette"].append(milliseconds)
        for side, run in runs.items():
            times[side].append(timed(run, image))
        times["Briquette, dynamic"].append(by_program(given.run_onnx, dynamic, work)[0])
    expected = runs["onnxruntime, f32"](image)
    cosine = (found * expected).sum() / numpy.sqrt(numpy.square(found).sum() * numpy.square(expected).sum())
    apart = numpy.abs(found - runs["onnxruntime"](image)).max() / numpy.abs(expected).max()
    medians = {side: statistics.median(found) for side, found in times.items()}
    print(f"{name}: cosine to f32 {cosine:.5f}, apart from onnxruntime {apart:.1e} of the largest output")
    for side, median in medians.items():
        print(f"  {side:18} {median:7.2f} ms   {medians['Briquette'] / median:.2f}x   {min(times[side]):.2f} to {max(times[side]):.2f}", flush=True)


def main():
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("briquette")
    parser.add_argument("run_onnx")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    for name in given.names or NAMES:
        measure(name, given)


if __name__ == "__main__":
    sys.exit(main())
