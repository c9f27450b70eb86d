#!/usr/bin/env python3
"""Measure MiniLM's latency in onnxruntime and OpenVINO, in f32 and in each of their int8 modes. Prints JSON lines.

usage: runtimes.py export MODEL OUT [--sentences bench/peers/sentences.txt]      (torch, transformers, onnx)
       runtimes.py run OUT [--threads 1] [--batches 1,32] [--length 128] [--seconds 3]      (requirements-runtimes.txt)

The first form writes OUT/f32.onnx and the calibration tokens of OpenVINO's static quantization. Existing files in OUT are reused.
"""

import argparse
import pathlib
import statistics
import time
import warnings

warnings.filterwarnings("ignore")
from common import emit, set_threads, sentences

INPUTS = ("input_ids", "attention_mask")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("do", choices=["export", "run"])
    p.add_argument("paths", type=pathlib.Path, nargs="+")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 32])
    p.add_argument("--length", type=int, default=128)
    p.add_argument("--seconds", type=float, default=3)
    return p.parse_args()


def export(model, out):
    if (out / "f32.onnx").exists():
        return
    import numpy as np
    import torch
    from transformers import AutoModel, AutoTokenizer

    out.mkdir(parents=True, exist_ok=True)
    model_of, tokenizer = AutoModel.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval(), AutoTokenizer.from_pretrained(model)

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model_of

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.randint(1000, 21000, (2, 16))
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0  # without zeros, tracing removes the mask
    axes = {name: {0: "batch", 1: "length"} for name in INPUTS}
    scratch = out / ".f32.onnx"
    torch.onnx.export(Plain(), (ids, mask), scratch, input_names=list(INPUTS), output_names=["states"], dynamic_axes=axes, dynamo=False, opset_version=17)
    encoded = tokenizer(sentences(), padding="max_length", truncation=True, max_length=64, return_tensors="np")
    np.savez(out / "calibration.npz", **{name: encoded[name] for name in INPUTS})
    scratch.rename(out / "f32.onnx")


# ---- what runs -------------------------------------------------------------------------------------------------------


def onnx_session(path, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def onnx_int8(out):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = out / "int8.onnx"
    if not path.exists():
        quantize_dynamic(out / "f32.onnx", path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=False)
    return path


def openvino_request(model, threads, **settings):
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **settings}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    return lambda inputs: request.infer(inputs)


def openvino_static(out):
    import nncf
    import numpy as np
    import openvino

    path = out / "static.xml"
    if not path.exists():
        tokens = np.load(out / "calibration.npz")
        items = [{name: tokens[name][at : at + 1] for name in INPUTS} for at in range(len(tokens[INPUTS[0]]))]
        model = openvino.Core().read_model(out / "f32.onnx")
        openvino.save_model(nncf.quantize(model, nncf.Dataset(items), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(items)), path)
    return path


def openvino_weights(out):
    import nncf
    import openvino

    path = out / "weights.xml"
    if not path.exists():
        model = nncf.compress_weights(openvino.Core().read_model(out / "f32.onnx"), mode=nncf.CompressWeightsMode.INT8_SYM)
        openvino.save_model(model, path, compress_to_fp16=False)
    return path


def runners(out, threads):
    yield "onnxruntime f32", onnx_session(out / "f32.onnx", threads), out / "f32.onnx"
    yield "onnxruntime int8, dynamic", onnx_session(onnx_int8(out), threads), out / "int8.onnx"
    yield "openvino f32", openvino_request(out / "f32.onnx", threads, INFERENCE_PRECISION_HINT="f32"), out / "f32.onnx"
    yield "openvino int8, static by nncf", openvino_request(openvino_static(out), threads), out / "static.bin"
    weights = openvino_weights(out)
    yield "openvino int8, dynamic", openvino_request(weights, threads, DYNAMIC_QUANTIZATION_GROUP_SIZE=384), out / "weights.bin"


def run(args, out):
    import numpy as np

    for name, call, file in runners(out, args.threads):
        for batch in args.batches:
            ids = np.random.default_rng(0).integers(1000, 21000, (batch, args.length))
            inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            call(inputs)
            times, start = [], time.perf_counter()
            while len(times) < 5 or time.perf_counter() - start < args.seconds:
                begun = time.perf_counter()
                call(inputs)
                times.append(time.perf_counter() - begun)
            emit(what=name, batch=batch, ms=statistics.median(times) * 1e3, bytes=file.stat().st_size)


def main():
    args = arguments()
    set_threads(args.threads)
    if args.do == "export":
        export(*args.paths)
    else:
        run(args, *args.paths)


main()
