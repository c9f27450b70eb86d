#!/usr/bin/env python3
"""Export networks with random weights as ONNX, with both of PyTorch's exporters, and check what Briquette makes of the files.

usage: onnx_files.py export DIR [NAME ...]
       onnx_files.py check BRIQUETTE DIR [NAME ...]

`export` writes DIR/NAME.EXPORTER.onnx. It needs bench/peers/requirements.txt, torchvision and onnxscript.
`-dynamic` in the name of an exporter means that the batch size, and the length of texts, are free. If models/minilm
exists, MiniLM has its weights.
`check` needs numpy, safetensors, onnx and onnxruntime. It prunes each file, runs the original and the output, and prints for each file:
whether unchanged files are byte-identical, the share of zeros, the largest difference to onnxruntime of a model whose initializers
were pruned by hand, the parameters left after removing half of each coupling group, the file without these units as onnxruntime
runs it, the largest difference of outputs with f16 weights over the largest output, and the cosine of the outputs with int8 codes:
dynamic for linear layers, static for convolutions. Exit code 1 if a file fails, or if f16 weights differ by more than 2e-2.
"""

import argparse
import contextlib
import io
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

import numpy
import safetensors.numpy

IMAGE = (2, 3, 224, 224)
EXPORTERS = ("legacy", "dynamo", "legacy-dynamic", "dynamo-dynamic")
MINILM = pathlib.Path("models/minilm")


def with_statistics(model):
    """Gives batch norms random statistics, and weights that begin at about zero random values, so that outputs depend on them."""
    import torch

    for norm in model.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 2)
    for weight in model.parameters():
        if weight.abs().max() < 1e-4:
            weight.data.normal_(0, 0.1)
    return model.eval()


def vision(name):
    """Returns a network of torchvision, its input, and the names of free extents."""
    import torch
    import torchvision

    torch.manual_seed(0)
    model = with_statistics(getattr(torchvision.models, name)(weights=None))
    return model, {"image": torch.randn(IMAGE)}, {0: "batch"}


def tokens_of(model, names=("input_ids",)):
    """Returns a network of transformers, its inputs, and the names of free extents."""
    import torch

    class Run(torch.nn.Module):
        """Takes token ids, returns one tensor."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask=None, token_type_ids=None):
            more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False, **more)[0]

    ids, mask = torch.randint(5, 100, (2, 128)), torch.ones(2, 128, dtype=torch.int64)
    mask[1, 100:] = 0
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return Run().eval(), {name: given[name] for name in names}, {0: "batch", 1: "length"}


def text(model_class, config_class, names=("input_ids",), **sizes):
    """Returns a network of transformers with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**sizes)
    model = getattr(transformers, model_class)._from_config(config, attn_implementation="eager")
    return tokens_of(model.eval(), names)


def minilm():
    """all-MiniLM-L6-v2, or BERT in its sizes."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    if MINILM.exists():
        import transformers

        return tokens_of(transformers.BertModel.from_pretrained(MINILM, attn_implementation="eager").eval(), names)
    sizes = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=30522)
    return text("BertModel", "BertConfig", names, **sizes)


def llama():
    """A small Llama with grouped queries."""
    sizes = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, intermediate_size=688)
    return text("LlamaForCausalLM", "LlamaConfig", vocab_size=2000, use_cache=False, **sizes)


def gpt2():
    """A small GPT-2."""
    return text("GPT2LMHeadModel", "GPT2Config", n_embd=128, n_layer=2, n_head=4, vocab_size=1000, use_cache=False)


def distilbert():
    """A small DistilBERT."""
    return text("DistilBertModel", "DistilBertConfig", dim=128, n_layers=2, n_heads=4, hidden_dim=512, vocab_size=1000)


NETWORKS = {
    "resnet18": lambda: vision("resnet18"),
    "mobilenet_v2": lambda: vision("mobilenet_v2"),
    "efficientnet_b0": lambda: vision("efficientnet_b0"),
    "densenet121": lambda: vision("densenet121"),
    "shufflenet_v2": lambda: vision("shufflenet_v2_x1_0"),
    "squeezenet": lambda: vision("squeezenet1_1"),
    "convnext_tiny": lambda: vision("convnext_tiny"),
    "swin_t": lambda: vision("swin_t"),
    "vit_b_16": lambda: vision("vit_b_16"),
    "minilm": minilm,
    "llama": llama,
    "gpt2": gpt2,
    "distilbert": distilbert,
}


def export(directory, names):
    """Writes every network with both exporters."""
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    for name in names or NETWORKS:
        for exporter in EXPORTERS:
            path = directory / f"{name}.{exporter}.onnx"
            if path.exists():
                continue
            model, inputs, free = NETWORKS[name]()
            options = dict(dynamo=False, opset_version=17)
            if "dynamo" in exporter:
                options = dict(dynamo=True, external_data=False)
            if exporter == "legacy-dynamic":
                options["dynamic_axes"] = dict.fromkeys(inputs, free)
            elif exporter == "dynamo-dynamic":
                options["dynamic_shapes"] = [dict.fromkeys(free, torch.export.Dim.DYNAMIC) for _ in inputs]
            try:
                given = tuple(inputs.values())
                with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
                    torch.onnx.export(model, given, str(path), input_names=list(inputs), output_names=["y"], **options)
                print(f"{path.name}: {path.stat().st_size} bytes", flush=True)
            except Exception as error:  # noqa: BLE001: the exporters raise anything
                print(f"{path.name}: the exporter failed: {str(error).splitlines()[0]}", flush=True)


def outputs(path):
    """Runs a file in onnxruntime on fixed random inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    random = numpy.random.default_rng(0)
    feeds = {}
    for one in session.get_inputs():
        shape = [extent if isinstance(extent, int) else 2 for extent in one.shape]
        is_float = one.type == "tensor(float)"
        most = 2 if "type" in one.name or "mask" in one.name else 100
        feeds[one.name] = random.standard_normal(shape, "float32") if is_float else random.integers(0, most, shape)
    return session.run(None, feeds)


def with_tensors_of(original, pruned):
    """Returns the original file with each initializer replaced by that of the other file, made by onnx's own library."""
    import onnx

    model, other = onnx.load(str(original)), onnx.load(str(pruned))
    values = {tensor.name: tensor for tensor in other.graph.initializer}
    for tensor in model.graph.initializer:
        tensor.CopyFrom(values[tensor.name])
    return model.SerializeToString(deterministic=True), other.SerializeToString(deterministic=True)


def run(briquette, *words):
    """Runs the command. Returns its output."""
    found = subprocess.run([briquette, *map(str, words)], capture_output=True, text=True)
    if found.returncode != 0:
        raise RuntimeError(f"exit code {found.returncode}: {found.stderr.strip()}")
    return found.stdout


def parameters(path):
    """Returns the number of elements of a file's float tensors."""
    import onnx

    return sum(math.prod(tensor.dims) for tensor in onnx.load(str(path)).graph.initializer if tensor.data_type == 1)


def shrunk(briquette, path, work):
    """Removes half of each group of units, and runs the result. Returns a text."""
    import onnx

    start = time.monotonic()
    run(briquette, "compress", path, "--shrink", "0.5", "-o", work / "small")
    seconds = time.monotonic() - start
    run(briquette, "export", work / "small", "--to", "onnx", "-o", work / "small-onnx")
    made = work / "small-onnx" / "model.onnx"
    onnx.checker.check_model(str(made), full_check=True)
    if not all(numpy.isfinite(one).all() for one in outputs(made)):
        raise RuntimeError("outputs of the smaller network are not finite")
    return f"50 % of units removed in {seconds:.1f} s, parameters {parameters(made) / parameters(path):.3f}"


def coded(briquette, path, work):
    """Quantizes a file by both schemes. Returns the cosines of its outputs."""
    import onnx

    images = work / "images.safetensors"
    blocks = numpy.random.default_rng(1).standard_normal((32, 3, 28, 28), "float32")
    safetensors.numpy.save_file({"images": blocks.repeat(8, 2).repeat(8, 3), "labels": numpy.zeros(32, "int64")}, images)
    expected, texts = outputs(path), []
    for scheme, flags in (("int8-dynamic", []), ("int8-static", ["--data", images, "--samples", "16"])):
        out = work / scheme
        done = subprocess.run([briquette, "export", path, "--to", "onnx", "--quantize", scheme, *flags, "-o", out], capture_output=True, text=True)
        if done.returncode != 0:
            texts.append(f"{scheme} refused")
            continue
        onnx.checker.check_model(str(out / "model.onnx"), full_check=True)
        found = outputs(out / "model.onnx")
        pairs = [(a.ravel().astype("float64"), b.ravel().astype("float64")) for a, b in zip(expected, found)]
        cosine = min(float(a @ b / numpy.linalg.norm(a) / numpy.linalg.norm(b)) for a, b in pairs)
        size = (out / "model.onnx").stat().st_size / path.stat().st_size
        texts.append(f"{scheme} cosine {cosine:.5f} at {size:.2f} of the bytes")
    return ", ".join(texts)


def halved(briquette, path, work):
    """Gives a file f16 weights, and runs it. Returns the largest difference over the largest output, and a text."""
    import onnx

    run(briquette, "export", path, "--to", "onnx", "--cast", "f16", "-o", work / "half")
    run(briquette, "verify", work / "half")
    made = work / "half" / "model.onnx"
    onnx.checker.check_model(str(made), full_check=True)
    pairs = zip(outputs(path), outputs(made))
    difference = max(float(numpy.abs(a - b).max() / numpy.abs(a).max()) for a, b in pairs)
    return difference, f"f16 differs by {difference:.1e} at {made.stat().st_size / path.stat().st_size:.2f} of the bytes"


def check(briquette, path, work):
    """Prunes one file and runs the output."""
    import onnx

    unchanged, pruned = work / "unchanged", work / "pruned"
    run(briquette, "export", path, "--to", "onnx", "-o", unchanged)
    is_same = (unchanged / "model.onnx").read_bytes() == path.read_bytes()
    onnx.checker.check_model(str(unchanged / "model.onnx"))
    run(briquette, "compress", path, "--prune", "0.5", "-o", pruned)
    run(briquette, "verify", pruned)
    ours, by_onnx = with_tensors_of(path, pruned / "model.onnx")
    before, after = outputs(path), outputs(pruned / "model.onnx")
    is_finite = all(numpy.isfinite(one).all() for one in after)
    changed = max(float(numpy.abs(a - b).max()) for a, b in zip(before, after))
    zeros = [onnx.numpy_helper.to_array(t) for t in onnx.load(str(pruned / "model.onnx")).graph.initializer]
    share = sum(int((z == 0).sum()) for z in zeros) / max(1, sum(z.size for z in zeros))
    graph = json.loads(run(briquette, "--json", "graph", path, "--groups"))
    coupling = graph["coupling"]
    difference, half = halved(briquette, path, work)
    is_good = is_same and is_finite and ours == by_onnx and difference <= 2e-2
    left = coupling["n_left_at_half"] / max(1, coupling["n_parameters"])
    text = f"identical {is_same}, same structure {ours == by_onnx}, zeros {share:.3f}, outputs moved {changed:.3g}"
    text = f"{text}, groups {len(coupling['groups'])}, parameters left at 50 % {left:.3f}"
    print(f"{path.name}: {text}; {shrunk(briquette, path, work)}; {half}; {coded(briquette, path, work)}", flush=True)
    return is_good


def main():
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    exporting = commands.add_parser("export")
    exporting.add_argument("directory", type=pathlib.Path)
    exporting.add_argument("names", nargs="*")
    checking = commands.add_parser("check")
    checking.add_argument("briquette")
    checking.add_argument("directory", type=pathlib.Path)
    checking.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.command == "export":
        return export(given.directory, given.names)
    is_good = True
    for path in sorted(given.directory.glob("*.onnx")):
        if given.names and path.name.split(".")[0] not in given.names:
            continue
        work = pathlib.Path(tempfile.mkdtemp())
        try:
            is_good &= check(given.briquette, path, work)
        except Exception as error:  # noqa: BLE001: each file is reported
            print(f"{path.name}: {error}", flush=True)
            is_good = False
        shutil.rmtree(work)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
