"""Values equal those of `briquette export --to dense`, bit for bit."""

from __future__ import annotations

import json
import time
from pathlib import Path

import briquette
import numpy as np
import pytest
from conftest import FROZEN, REPOSITORY, Command, Tensor, random_tensor, write_safetensors

NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<f4", "I64": "<i8", "BOOL": "?", "U8": "u1"}


def assert_equal(arrays: dict[str, np.ndarray], expected: dict[str, Tensor]) -> None:
    """Compares arrays with the tensors of an export."""
    assert set(arrays) == set(expected)
    for name, tensor in expected.items():
        data = tensor.data
        if tensor.dtype == "BF16":
            data = (np.frombuffer(data, "<u2").astype("<u4") << 16).tobytes()
        found = arrays[name]
        assert (found.dtype, found.shape) == (np.dtype(NUMPY_TYPES[tensor.dtype]), tensor.shape), name
        assert found.tobytes() == data, name


@pytest.mark.parametrize("directory", FROZEN, ids=lambda path: path.name)
def test_outputs_of_every_version(directory: Path, briquette_command: Command) -> None:
    assert_equal(briquette.load(directory), briquette_command.exported(directory))


def model_of(dtype: str) -> dict[str, Tensor]:
    """Weights of every output axis, smaller and larger than a block of 65,536 elements, and other tensors."""
    shapes = {
        "first.small": (7, 48),
        "first.large": (300, 272),
        "first.wide": (3, 80_000),
        "last.small": (48, 7),
        "last.large": (304, 290),
        "second.small": (8, 3, 2, 2),
        "second.large": (80, 310, 4, 4),
        "stacked.small": (3, 5, 16),
        "stacked.large": (3, 150, 288),
    }
    tensors = {name: random_tensor(dtype, shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
    tensors["tied"] = tensors["first.large"]
    tensors["bias"] = random_tensor("BF16", (33,), 90)
    tensors["scalar"] = Tensor("I64", (), b"\7" + bytes(7))
    tensors["flags"] = Tensor("BOOL", (3,), b"\1\0\1")
    tensors["empty"] = Tensor("F32", (0, 16), b"")
    tensors["no_columns"] = Tensor("F32", (4, 0), b"")
    return tensors


def write_model(command: Command, dtype: str) -> None:
    write_safetensors(command.directory / "model.safetensors", model_of(dtype))


def run_recipe(command: Command, stages: str, output: str) -> Path:
    """Compresses the model by a recipe that names the output axis of each weight."""
    text = '[model]\npath = "model.safetensors"\n'
    for axis, role in (("first", "linear"), ("last", "linear"), ("second", "conv"), ("stacked", "linear")):
        text += f'[[model.roles]]\ninclude = ["{axis}.*"]\nrole = "{role}"\noutputs = "{axis}"\n'
    text += '[[model.roles]]\ninclude = ["tied"]\nrole = "linear"\n'
    (command.directory / "recipe.toml").write_text(text + f'[output]\npath = "out"\n{output}\n{stages}')
    command("run recipe.toml --force --quiet")
    return command.directory / "out"


def quantize(scheme: str) -> str:
    return f'[[stage]]\nkind = "quantize"\nscheme = "{scheme}"\n'


PRUNE = '[[stage]]\nkind = "prune"\nsparsity = 0.7\n'
STAGES = {
    "int8": quantize("int8"),
    "int8-asym": quantize("int8-asym"),
    "int8-pruned": PRUNE + quantize("int8"),
    "int5-pruned": PRUNE + quantize("int5-asym"),
    "int3-pruned": PRUNE + quantize("int3"),
    "pruned": PRUNE,
} | {f"int{bits}": quantize(f"int{bits}{'-asym' if bits % 2 else ''}") for bits in range(2, 8)}


@pytest.mark.parametrize("storage", ["auto", "entropy"])
@pytest.mark.parametrize("stages", STAGES)
def test_widths_grids_and_storages(stages: str, storage: str, briquette_command: Command) -> None:
    write_model(briquette_command, "F32")
    out = run_recipe(briquette_command, STAGES[stages], f'storage = "{storage}"')
    expected = {"bitmask" if "pruned" in stages else "dense"} if storage == "auto" else {"entropy"}
    if stages != "pruned":
        assert expected <= {storage_of(entry) for entry in briquette.manifest(out)["tensors"].values()}
    arrays = briquette.load(out)
    assert_equal(arrays, briquette_command.exported(out))
    assert arrays["tied"] is arrays["first.large"]


def storage_of(entry: dict) -> str:
    storage = entry["coding"]["storage"]
    return storage if isinstance(storage, str) else "entropy"


@pytest.mark.parametrize("storage", ["auto", "entropy"])
def test_scales_of_one_byte(storage: str, briquette_command: Command) -> None:
    write_safetensors(briquette_command.directory / "model.safetensors", {"embed_tokens.weight": random_tensor("F32", (700, 96), 3)})
    vocabulary = {f"word{id}": id for id in range(700)}
    (briquette_command.directory / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": vocabulary}}))
    briquette_command(f"compress model.safetensors -o out --quantize step0.2-frequency --storage {storage} --quiet")
    out = briquette_command.directory / "out"
    assert briquette.manifest(out)["tensors"]["embed_tokens.weight"]["coding"]["codes"]["scale"] == "LOG8"
    assert_equal(briquette.load(out), briquette_command.exported(out))


@pytest.mark.parametrize("scheme", ["int8-dynamic", "int4-g16", "int5-g16-asym"])
@pytest.mark.parametrize("flags", ["", "--storage entropy", "--prune 0.7"])
def test_scales_of_columns(scheme: str, flags: str, briquette_command: Command) -> None:
    # Statistics of one layer: input 3 is much larger than the others.
    n, count = 96, 64
    largest = np.where(np.arange(n) == 3, 60, 1).astype("<f8")
    sums = {"sum": 0 * largest, "sum_squares": 0.2 * count * largest**2, "max": largest}
    statistics = {f"fc.{name}": Tensor("F64", (n,), values.tobytes()) for name, values in sums.items()}
    statistics["fc.count"] = Tensor("I64", (1,), np.array([count]).tobytes())
    weights = {"fc.weight": random_tensor("F32", (700, n), 4), "other.weight": random_tensor("F32", (30, 40), 5)}
    write_safetensors(briquette_command.directory / "model.safetensors", weights)
    header = {"format": "briquette-input-statistics", "version": "1"}
    write_safetensors(briquette_command.directory / "stats.safetensors", statistics, header)
    briquette_command(
        f"compress model.safetensors -o out --quantize {scheme} --column-scales --statistics stats.safetensors {flags} --quiet"
    )
    out = briquette_command.directory / "out"
    entries = briquette.manifest(out)["tensors"]
    assert entries["fc.weight"]["coding"]["codes"]["column_scale"] is True
    assert "column_scale" not in entries["other.weight"]["coding"]["codes"]
    assert_equal(briquette.load(out), briquette_command.exported(out))


@pytest.mark.parametrize("n_rows", [3, 700, 9000])
def test_codes_on_a_trellis(n_rows: int, briquette_command: Command) -> None:
    n, count = 96, 640
    gram = count * (0.2 * np.eye(n) + 0.05)
    sums = {"sum": np.zeros(n), "sum_squares": np.diag(gram), "max": np.ones(n), "gram": gram}
    statistics = {f"fc.{name}": Tensor("F64", values.shape, values.astype("<f8").tobytes()) for name, values in sums.items()}
    statistics["fc.count"] = Tensor("I64", (1,), np.array([count]).tobytes())
    write_safetensors(briquette_command.directory / "model.safetensors", {"fc.weight": random_tensor("F32", (n_rows, n), 4)})
    header = {"format": "briquette-input-statistics", "version": "1"}
    write_safetensors(briquette_command.directory / "stats.safetensors", statistics, header)
    for step in ("0.5", "0.02"):
        flags = f"--quantize step{step}-trellis --round gptq --statistics stats.safetensors --storage entropy"
        briquette_command(f"compress model.safetensors -o out {flags} --quiet --force")
        out = briquette_command.directory / "out"
        assert briquette.manifest(out)["tensors"]["fc.weight"]["coding"]["storage"]["entropy"]["trellis"] is True
        assert_equal(briquette.load(out), briquette_command.exported(out))


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F64"])
def test_types_of_weights(dtype: str, briquette_command: Command) -> None:
    write_model(briquette_command, dtype)
    for stages in ("int8", "int5-pruned", "pruned"):
        out = run_recipe(briquette_command, STAGES[stages], "")
        assert_equal(briquette.load(out), briquette_command.exported(out))


@pytest.mark.parametrize("scheme", ["int4-g16", "int4-g16-asym", "int3-g8", "int8-g16", "int6-g16-asym"])
def test_groups_and_narrow_scales(scheme: str, briquette_command: Command) -> None:
    tensors = {"a.weight": random_tensor("F32", (300, 272), 1), "b.weight": random_tensor("F16", (5, 16), 2)}
    write_safetensors(briquette_command.directory / "model.safetensors", tensors)
    scales = set()
    for flags in ("", "--storage entropy", "--prune 0.6", "--cast f16", "--cast bf16"):
        briquette_command(f"compress model.safetensors -o out --force --quiet --quantize {scheme} {flags}")
        out = briquette_command.directory / "out"
        scales |= {entry["coding"]["codes"]["scale"] for entry in briquette.manifest(out)["tensors"].values()}
        assert_equal(briquette.load(out), briquette_command.exported("out"))
    assert "F32" in scales


def test_a_size_budget(briquette_command: Command) -> None:
    write_safetensors(briquette_command.directory / "model.safetensors", {"a.weight": random_tensor("F32", (500, 400), 1)})
    briquette_command("compress model.safetensors -o out --bits 3.2 --quiet")
    out = briquette_command.directory / "out"
    assert storage_of(briquette.manifest(out)["tensors"]["a.weight"]) == "entropy"
    assert_equal(briquette.load(out), briquette_command.exported("out"))


@pytest.mark.parametrize("scheme", ["int8-dynamic", "int8", "int4-g32", "int4-g32-dynamic"])
def test_other_output_formats(scheme: str, briquette_command: Command) -> None:
    tensors = {f"{name}.weight": random_tensor("BF16", (37, 96), seed) for seed, name in enumerate(("up", "down"))}
    tensors["steps"] = Tensor("I64", (), bytes(8))
    write_safetensors(briquette_command.directory / "model.safetensors", tensors)
    for output in (
        "compressed-tensors --allow-untested",
        "burnpack",
        "dense",
        "dense --layout burn",
        "burnpack --layout burn",
    ):
        briquette_command(f"compress model.safetensors -o out --force --quiet --quantize {scheme} --format {output}")
        assert_equal(briquette.load(briquette_command.directory / "out"), briquette_command.exported("out"))


def test_shards(briquette_command: Command) -> None:
    """The command writes shards above 5 GB only, so the one file of an output is split here."""
    import safetensors

    write_model(briquette_command, "F32")
    out = run_recipe(briquette_command, STAGES["int5-pruned"], 'storage = "entropy"')
    expected = briquette_command.exported(out)
    path = out / "model.briquette.safetensors"
    found = sorted(safetensors.deserialize(path.read_bytes()), key=lambda item: item[1]["dtype"], reverse=True)
    tensors = [(name, Tensor(item["dtype"], tuple(item["shape"]), bytes(item["data"]))) for name, item in found]
    names = [f"model-0000{number}-of-00002.briquette.safetensors" for number in (1, 2)]
    first = {name: tensor for name, tensor in tensors if name.startswith("second")}
    write_safetensors(out / names[0], first)
    write_safetensors(out / names[1], {name: tensor for name, tensor in tensors if name not in first})
    path.unlink()
    manifest = json.loads((out / "briquette.json").read_text())
    for name, entry in manifest["tensors"].items():
        entry["file"] = names[0] if name.startswith("second") else names[1]
    (out / "briquette.json").write_text(json.dumps(manifest))
    (out / "SHA256SUMS").unlink()
    assert_equal(briquette.load(out), expected)
    briquette_command(f"diff {out} {out}-dense")


def test_hashes_are_compared_only_if_xxhash_is_installed(briquette_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(briquette_command, "F32")
    out = run_recipe(briquette_command, STAGES["int8"], "")
    with_hashes = briquette.load(out)
    monkeypatch.setattr("briquette._load.xxhash", None)
    without = briquette.load(out)
    assert all(with_hashes[name].tobytes() == without[name].tobytes() for name in with_hashes)


def test_torch_tensors(briquette_command: Command) -> None:
    torch = pytest.importorskip("torch")
    weights = ("F64", "F32", "F16", "BF16")
    tensors = {f"{dtype}.weight": random_tensor(dtype, (40, 64), seed) for seed, dtype in enumerate(weights)}
    tensors |= {
        "tied.weight": tensors["F32.weight"],
        "bias": random_tensor("BF16", (9,), 9),
        "steps": Tensor("I64", (), b"\5" + bytes(7)),
    }
    for name in ("E4M3", "E5M2", "E4M3FNUZ", "E5M2FNUZ", "E8M0"):
        tensors[name] = Tensor(f"F8_{name}", (4,), b"\1\2\3\4")
    write_safetensors(briquette_command.directory / "model.safetensors", tensors)
    briquette_command("compress model.safetensors -o out --quiet --quantize int8")
    expected = briquette_command.exported("out")
    out = briquette_command.directory / "out"
    found = briquette.load_state_dict(out)
    types = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
    types |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
    types |= {"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, tuple(found[name].shape)) == (getattr(torch, types[tensor.dtype]), tensor.shape)
        bits = found[name].reshape(-1).view(torch.uint8) if found[name].dim() else found[name].reshape(1).view(torch.uint8)
        assert bits.numpy().tobytes() == tensor.data, name
    assert found["tied.weight"] is found["F32.weight"]
    with pytest.raises(briquette.FormatError, match="numpy has no type F8"):
        briquette.load(out)


MINILM = REPOSITORY / "models/minilm"


@pytest.mark.skipif(not MINILM.is_dir(), reason="models/minilm is not there; `just fetch-minilm` gets it")
@pytest.mark.parametrize("flags", ["--quantize int8 --storage entropy", "--bytes 9.4MB --cast f16", "--prune 0.6 --quantize int5-g32-asym"])
def test_minilm_loads_in_seconds(flags: str, briquette_command: Command) -> None:
    briquette_command(f"compress {MINILM} -o out --quiet {flags}")
    start = time.monotonic()
    arrays = briquette.load(briquette_command.directory / "out")
    seconds = time.monotonic() - start
    assert_equal(arrays, briquette_command.exported("out"))
    assert seconds < 15, f"{seconds:.1f} s"
