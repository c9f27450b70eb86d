#!/usr/bin/env python3
"""Measure llama.cpp's own quantized files of a decoder: bytes, bits per weight, perplexity, and the type of each tensor.

usage: llama_cpp_files.py MODEL OUT [--types Q8_0,Q4_0,Q4_K_M,Q3_K_M,Q2_K] [--statistics FILE] [--briquette BRIQUETTE --data TEXT]

MODEL is a Llama in f32 in transformers' format, with tied embeddings and SmolLM's tokenizer (models/smollm2). The script writes it
as a GGUF file in F32. `llama_model_quantize` makes OUT/TYPE.gguf from that file, with its defaults. With statistics of `briquette
calibrate`, each type except Q8_0 is also made with an importance matrix (the mean square of each input): OUT/TYPE-imatrix.gguf.

With BRIQUETTE and TEXT, each file is decoded to dense f32 and evaluated in windows of 512 tokens. One program evaluates all sides, so
only the weights differ. (llama.cpp also rounds the inputs of its products; that is ignored.) F32 is the GGUF file in F32, decoded in
the same way: its perplexity must equal MODEL's. Existing files in OUT are reused.

Needs requirements-llama.txt, and npm for llama.cpp's libraries.
"""

import argparse
import collections
import ctypes
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

WINDOW = 512


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--types", type=lambda names: names.split(","), default="Q8_0,Q4_0,Q4_K_M,Q3_K_M,Q2_K".split(","))
    p.add_argument("--statistics", type=pathlib.Path, help="of `briquette calibrate MODEL`")
    p.add_argument("--briquette", type=pathlib.Path)
    p.add_argument("--data", type=pathlib.Path)
    args = p.parse_args()
    if (args.briquette is None) != (args.data is None):
        p.error("expected both of --briquette and --data, or neither")
    return args


# ---- names and order of rows -----------------------------------------------------------------------------------------


class Layout:
    """Names of tensors in GGUF, and the order of their rows."""

    def __init__(self, config):
        self.map = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
        self.n_heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}

    def name(self, ours):
        return self.map.get_name(ours, try_suffixes=(".weight",))

    def heads(self, ours):
        return next((n for part, n in self.n_heads.items() if part in ours), None)

    def to_gguf(self, ours, rows):
        """Reorders rows from transformers' rotation (halves of a head) to llama.cpp's (pairs)."""
        n = self.heads(ours)
        return rows if n is None else rows.reshape(n, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)

    def from_gguf(self, ours, rows):
        n = self.heads(ours)
        return rows if n is None else rows.reshape(n, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


# ---- writing and reading GGUF ----------------------------------------------------------------------------------------


def add_keys(writer, config):
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])


def add_tokenizer(writer, config, tokenizer):
    special = {token["id"] for token in tokenizer["added_tokens"]}
    ids = {at: token for token, at in tokenizer["model"]["vocab"].items()}
    types = [gguf.TokenType.CONTROL if at in special else gguf.TokenType.NORMAL for at in range(len(ids))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([ids[at] for at in range(len(ids))])
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)


def write_f32(path, model, config, layout):
    writer = gguf.GGUFWriter(path, "llama")
    add_keys(writer, config)
    add_tokenizer(writer, config, json.loads((model / "tokenizer.json").read_text(encoding="utf-8")))
    with safe_open(model / "model.safetensors", "np") as file:
        for ours in file.keys():
            writer.add_tensor(layout.name(ours), np.ascontiguousarray(layout.to_gguf(ours, file.get_tensor(ours))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_dense(path, model, directory, layout):
    """Writes the model with the weights that a GGUF file decodes to."""
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with safe_open(model / "model.safetensors", "np") as file:
        names = {ours: theirs.pop(layout.name(ours)) for ours in file.keys()}
    if theirs:
        sys.exit(f"{path}: {next(iter(theirs))} is not in the model")
    dense = {ours: layout.from_gguf(ours, gguf.dequantize(of.data, of.tensor_type)) for ours, of in names.items()}
    save_file({ours: np.ascontiguousarray(rows) for ours, rows in dense.items()}, directory / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, directory)


# ---- llama.cpp -------------------------------------------------------------------------------------------------------


class Importance(ctypes.Structure):
    """`llama_model_imatrix_data`; a list of them ends with an entry without a name."""

    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]


class QuantizeParams(ctypes.Structure):
    """`llama_model_quantize_params` of this version of the libraries, complete because it is returned by value."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("n_threads", "file_type", "output_type", "embedding_type")),
        *((name, ctypes.c_bool) for name in ("requantize", "output", "only_copy", "pure", "keep_split", "dry_run")),
        ("importance", ctypes.POINTER(Importance)),
        *((name, ctypes.c_void_p) for name in ("overrides", "types", "prune_layers")),
        ("max_buffer_bytes", ctypes.c_size_t),
    ]


class Llama:
    """The library, and its last log messages."""

    def __init__(self, scratch):
        self.library = ctypes.CDLL(str(llama_cpp.fetched(scratch) / llama_cpp.LIBRARY))
        self.library.llama_model_quantize_default_params.restype = QuantizeParams
        self.library.llama_model_quantize.restype = ctypes.c_uint32
        self.library.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(QuantizeParams)]
        self.said = collections.deque(maxlen=20)
        log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        # Stored here, because the library holds no reference that Python counts.
        self.log = log(lambda _, text, __: self.said.append(text.decode(errors="replace")))
        self.library.llama_log_set(self.log, None)

    def quantize(self, source, target, name, importance):
        params = self.library.llama_model_quantize_default_params()
        params.file_type = gguf.LlamaFileType[f"MOSTLY_{name}"]
        if importance:
            entries = [Importance(of.encode(), row.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), row.size) for of, row in importance.items()]
            params.importance = (Importance * (len(entries) + 1))(*entries)
        if self.library.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params)) != 0:
            sys.exit(f"{name}: llama.cpp says\n{''.join(self.said)}")


def importance_of(statistics, layout):
    """Returns mean squares of the inputs of each linear layer, by llama.cpp's names."""
    with safe_open(statistics, "np") as file:
        layers = [name.removesuffix(".sum_squares") for name in file.keys() if name.endswith(".sum_squares")]
        means = {of: file.get_tensor(f"{of}.sum_squares") / file.get_tensor(f"{of}.count") for of in layers}
    return {layout.name(f"{of}.weight"): np.ascontiguousarray(row, np.float32) for of, row in means.items()}


# ---- results ---------------------------------------------------------------------------------------------------------


def perplexity(args, path, layout):
    """Returns the perplexity of the decoded file, and caches it in OUT."""
    if args.briquette is None:
        return ""
    kept = args.out / f"{path.stem}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=args.out, prefix=".dense-") as directory:
            write_dense(path, args.model, pathlib.Path(directory), layout)
            line = [args.briquette, "eval", directory, "--data", args.data, "--max-length", str(WINDOW), "--json", "--quiet"]
            kept.write_text(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    return f"{json.loads(kept.read_text())['metrics']['perplexity']:.3f}"


def types_of(tensors):
    """Returns the number of tensors of each kind by type: `Q5_0: attn_k 30, attn_q 30; Q8_0: token_embd`."""
    found = collections.defaultdict(collections.Counter)
    for tensor in tensors:
        found[tensor.tensor_type.name][tensor.name.removesuffix(".weight").split(".")[-1]] += 1
    return "; ".join(f"{kind}: {', '.join(f'{of} {n}' for of, n in sorted(of.items()))}" for kind, of in sorted(found.items()))


def bytes_and_bits(tensors):
    n_bytes = sum(int(tensor.n_bytes) for tensor in tensors)
    return n_bytes, 8 * n_bytes / sum(int(tensor.n_elements) for tensor in tensors)


def print_row(args, path, layout):
    tensors = gguf.GGUFReader(path).tensors
    n_bytes, bits = bytes_and_bits(tensors)
    _, bits_of_linears = bytes_and_bits([of for of in tensors if of.name.startswith("blk.") and len(of.shape) == 2])
    sizes = f"{path.stat().st_size:,} | {n_bytes:,} | {bits:.3f} | {bits_of_linears:.3f}"
    print(f"| {path.stem} | {sizes} | {perplexity(args, path, layout)} | {types_of(tensors)} |", flush=True)


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    config = json.loads((args.model / "config.json").read_text())
    layout = Layout(config)
    ways = [("", None)] + ([("-imatrix", importance_of(args.statistics, layout))] if args.statistics else [])
    print("| type | file, bytes | tensors, bytes | bits a weight | of linear layers | perplexity | types of tensors |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.out, prefix=".scratch-") as scratch:
        scratch = pathlib.Path(scratch)
        llama, source = Llama(scratch), scratch / "F32.gguf"
        write_f32(source, args.model, config, layout)
        print_row(args, source, layout)
        for suffix, importance in ways:
            for name in args.types:
                # Q8_0 ignores the importance matrix: it rounds to nearest.
                if importance and name == "Q8_0":
                    continue
                path = args.out / f"{name}{suffix}.gguf"
                if not path.exists():
                    llama.quantize(source, scratch / path.name, name, importance)
                    (scratch / path.name).rename(path)
                print_row(args, path, layout)


if __name__ == "__main__":
    main()
