#!/usr/bin/env python3
"""Statistics of the inputs of each linear layer and convolution by forward hooks in torch, summed in f64, held against a file that
`briquette calibrate` wrote (docs/guide/src/file-format.md).

usage: hooks.py MODEL STATISTICS --data DATA [--max-length N] [--gram] [--limit 1e-4] [--threads 1]
       hooks.py --make-resnet18 DIRECTORY      random weights and 8 images of 96x96, to calibrate on

MODEL is a directory that transformers loads, or one with torchvision's names of a ResNet. DATA is a line for each text (encoders), one
text (decoders: cut into windows) or a safetensors file with images `x` (ResNets). All of it runs, so `briquette calibrate` must be given
at least as many `--samples` as it holds. Each text runs alone, so that nothing is padded.

A line for each layer: its input vectors, then for each statistic the largest difference over the largest number. Exit code 1: a count
differs, a difference passes the limit, or no layer is in both.
"""

import argparse
import json
import os
import pathlib
import sys
import warnings

warnings.filterwarnings("ignore")
from common import set_threads

# Tokens of a window of a decoder, where nobody says otherwise.
WINDOW = 1024
KINDS = ("sum", "sum_squares", "max", "gram")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path, nargs="?")
    p.add_argument("statistics", type=pathlib.Path, nargs="?")
    p.add_argument("--data", type=pathlib.Path)
    p.add_argument("--max-length", type=int)
    p.add_argument("--gram", action="store_true", help="Gram matrices too, where the file has them")
    p.add_argument("--limit", type=float, default=1e-4)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--make-resnet18", type=pathlib.Path, metavar="DIRECTORY")
    args = p.parse_args()
    if args.make_resnet18 is None and (args.statistics is None or args.data is None):
        p.error("expected MODEL, STATISTICS and --data")
    return args


args = arguments()
set_threads(args.threads)
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

torch.set_num_threads(args.threads)


# ---- models and what they run on -------------------------------------------------------------------------------------


def resnet_of(state):
    """The ResNet whose names these are."""
    import torchvision.models as models

    for make in (models.resnet18, models.resnet34, models.resnet50, models.resnet101, models.resnet152):
        model = make(num_classes=len(state["fc.weight"]))
        if {name for name, _ in model.named_parameters()} <= set(state):
            missing, extra = model.load_state_dict(state, strict=False)
            if not extra and all(name.endswith("num_batches_tracked") for name in missing):
                return model.eval()
    sys.exit("its names are none of torchvision's ResNets")


def runs(args):
    """(model, one input for each run of it)."""
    config = args.model / "config.json"
    model_type = json.loads(config.read_text()).get("model_type") if config.exists() else None
    if model_type is None:
        model = resnet_of(load_file(args.model / "model.safetensors"))
        return model, [(image[None],) for image in load_file(args.data)["x"]]
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    tokenizer, text = AutoTokenizer.from_pretrained(args.model), args.data.read_text(encoding="utf-8")
    if model_type == "bert":
        model = AutoModel.from_pretrained(args.model, dtype=torch.float32)
        said = args.model / "sentence_bert_config.json"
        longest = json.loads(said.read_text())["max_seq_length"] if said.exists() else model.config.max_position_embeddings
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        ids = [tokenizer(line, truncation=True, max_length=args.max_length or longest)["input_ids"] for line in lines]
    else:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        tokens = tokenizer(text)["input_ids"]
        n = args.max_length or min(WINDOW, model.config.max_position_embeddings)
        windows = [tokens[at : at + n] for at in range(0, len(tokens), n)]
        ids = [window for window in windows if len(window) > 1]
    return model.eval(), [(torch.tensor([each]),) for each in ids]


def make_resnet18(directory):
    """A checkpoint without a config.json, as torchvision's are, and images of floats."""
    import torchvision.models as models

    torch.manual_seed(7)
    state = models.resnet18(num_classes=10).state_dict()
    for name, values in state.items():
        if name.endswith("running_mean"):
            values.normal_(0, 0.1)
        elif name.endswith("running_var"):
            values.uniform_(0.5, 2)
    (directory / "model").mkdir(parents=True, exist_ok=True)
    save_file(state, directory / "model" / "model.safetensors", {"format": "pt"})
    save_file({"x": torch.randn(8, 3, 96, 96)}, directory / "images.safetensors")


# ---- statistics ------------------------------------------------------------------------------------------------------


def columns(layer, inputs):
    """Input vectors in f64, [vectors, columns of the weight's rows]; None where a convolution has groups."""
    x = inputs.detach().double()
    if isinstance(layer, torch.nn.Linear):
        return x.flatten(0, -2)
    if layer.groups != 1:
        return None
    patches = torch.nn.functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return patches.transpose(1, 2).flatten(0, 1)


class Sums:
    """What is known of the inputs of a layer."""

    def __init__(self, n_columns, has_gram):
        self.count = 0
        zeros = lambda *shape: torch.zeros(*shape, dtype=torch.float64)
        self.sum, self.sum_squares, self.max = zeros(n_columns), zeros(n_columns), zeros(n_columns)
        self.gram = zeros(n_columns, n_columns) if has_gram else None

    def add(self, x):
        self.count += len(x)
        self.sum += x.sum(0)
        self.sum_squares += x.square().sum(0)
        self.max = torch.maximum(self.max, x.abs().amax(0))
        if self.gram is not None:
            self.gram += x.T @ x


def watch(model, has_gram):
    """Sums by layer, which fill while the model runs."""
    found = {}

    def hook(name):
        def add(layer, inputs, _output):
            x = columns(layer, inputs[0])
            if x is not None:
                found.setdefault(name, Sums(x.shape[1], has_gram)).add(x)

        return add

    for name, layer in model.named_modules():
        if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d)):
            layer.register_forward_hook(hook(name))
    return found


# ---- comparison ------------------------------------------------------------------------------------------------------


def difference(ours, theirs):
    """The largest difference over the largest number."""
    scale = theirs.abs().max().item()
    return (ours - theirs).abs().max().item() / scale if scale > 0 else ours.abs().max().item()


def compare(file, layer, sums):
    """(counts are equal, difference by statistic)."""
    count = file.get_tensor(f"{layer}.count").item()
    if count != sums.count:
        print(f"{layer}: saw {count} vectors, hooks {sums.count}")
    kinds = [kind for kind in KINDS if getattr(sums, kind) is not None and f"{layer}.{kind}" in file.keys()]
    return count == sums.count, {kind: difference(file.get_tensor(f"{layer}.{kind}"), getattr(sums, kind)) for kind in kinds}


@torch.inference_mode()
def main():
    if args.make_resnet18 is not None:
        return make_resnet18(args.make_resnet18)
    model, inputs = runs(args)
    with safe_open(args.statistics, "pt") as file:
        found = watch(model, args.gram and any(key.endswith(".gram") for key in file.keys()))
        for each in inputs:
            model(*each)
        layers = {key.removesuffix(".count") for key in file.keys() if key.endswith(".count")}
        compared = {layer: compare(file, layer, found[layer]) for layer in sorted(layers & set(found))}
    for layer, (_, differences) in compared.items():
        print(layer, found[layer].count, *(f"{kind} {value:.1e}" for kind, value in differences.items()))
    for whose, missing in (("the file", set(found) - layers), ("torch", layers - set(found))):
        if missing:
            print(f"not in {whose}: {', '.join(sorted(missing))}")
    n_wrong = sum(not is_equal for is_equal, _ in compared.values())
    worst = max((value for _, differences in compared.values() for value in differences.values()), default=float("nan"))
    print(f"{len(inputs)} items, {len(compared)} layers, largest difference {worst:.2e}, counts that differ {n_wrong}")
    return 0 if compared and n_wrong == 0 and worst <= args.limit else 1


sys.exit(main())
