"""Reads `briquette.json`, the manifest of an output directory."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from briquette._error import FormatError

NAME = "briquette.json"
SUMS = "SHA256SUMS"
#: The newest format version that this package reads.
VERSION = 9
#: The first version whose hashes cover the order of rows in a tensor.
HASHES_LAYOUT = 5

_HEAD = {"format", "version", "producer", "profile", "recipe", "tensors"}
_PROFILES = ("briquette", "dense", "burnpack", "compressed-tensors")
_AXES = ("first", "last", "second", "stacked")
_GRIDS = ("symmetric", "symmetric-full", "asymmetric")


@dataclass(frozen=True)
class Codes:
    """Integer codes of a tensor. A value is `(code - zero) * scale`, times the scale of its column if there is one."""

    bits: int
    grid: str
    #: Weights that share a scale: `tensor`, `row`, or a number of neighbours in a row.
    grouping: str | int
    #: The type of scales: `F32`, `F16`, or `LOG8`: bytes `u` that mean `2^((u - 192) / 8)`.
    scale: str
    #: Whether each column has a scale too, a byte like those of `LOG8`.
    column_scale: bool


@dataclass(frozen=True)
class Entry:
    """An entry of the manifest: one tensor of the model."""

    dtype: str
    shape: tuple[int, ...]
    output_axis: str
    #: `dense`, `bitmask` or `entropy`.
    storage: str
    #: Whether blocks may have a table for each parity of codes, if the storage is `entropy`.
    trellis: bool
    #: Bytes of all blocks, if the storage is `entropy`.
    n_block_bytes: int
    codes: Codes | None
    n_kept: int
    activations: str | None
    file: str
    hash: str
    tied_to: str | None

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


def manifest(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the manifest of an output directory as parsed JSON.

    The format version and the keys at the top are checked, and the file is compared with its SHA-256 in `SHA256SUMS`, if listed there.

    Raises:
        FormatError: if the manifest is missing, damaged or of a newer version.
    """
    path = Path(directory) / NAME
    if not path.is_file():
        raise FormatError(f"{path}: not found; expected a directory that briquette wrote")
    data = path.read_bytes()
    compare_sum(path, hashlib.sha256(data).hexdigest(), read_sums(directory).get(NAME))
    try:
        found = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not a manifest: {error}") from None
    if not isinstance(found, dict) or found.get("format") != "briquette":
        raise FormatError(f'{path}: the key "format" is not "briquette"; this is not a manifest of Briquette')
    if not _is_count(found.get("version")) or found["version"] > VERSION:
        raise FormatError(f"{path}: found version {found.get('version')!r}, expected at most {VERSION}; use a newer briquette")
    if set(found) != _HEAD or not isinstance(found["tensors"], dict) or found["profile"] not in _PROFILES:
        raise FormatError(f"{path}: found keys {sorted(found)}, expected {sorted(_HEAD)} and a known profile")
    return found


def read_sums(directory: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the SHA-256 of each file that `SHA256SUMS` lists; empty if there is no such file."""
    path = Path(directory) / SUMS
    if not path.is_file():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not text; the file is damaged") from None
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def compare_sum(path: Path, found: str, expected: str | None) -> None:
    """Raises `FormatError` if a file does not have the SHA-256 that it was written with."""
    if expected is not None and found != expected:
        raise FormatError(f"{path}: found SHA-256 {found}, expected {expected}; the file is damaged or was edited")


def entry_of(value: Any) -> Entry:
    """Checks the manifest's entry of one tensor.

    Raises:
        FormatError: without the name of file and tensor, if the entry is damaged.
    """
    optional = {"output_axis", "n_kept", "activations", "tied_to"}
    _expect_keys(value, {"dtype", "shape", "coding", "file", "hash"}, optional)
    coding = value["coding"]
    _expect_keys(coding, {"storage"}, {"codes"})
    shape: Any = value["shape"]
    storage: Any = coding["storage"]
    n_block_bytes: Any = 0
    trellis: Any = False
    if not isinstance(shape, list) or not all(map(_is_count, shape)) or math.prod(n for n in shape if n) >= 1 << 60:
        raise FormatError(f"found the shape {shape!r}, expected a list of sizes")
    if isinstance(storage, dict):
        _expect_keys(storage, {"entropy"}, set())
        _expect_keys(storage["entropy"], {"n_bytes"}, {"trellis"})
        trellis = storage["entropy"].get("trellis", False)
        storage, n_block_bytes = "entropy", storage["entropy"]["n_bytes"]
    n_kept = value.get("n_kept", math.prod(shape))
    texts = [value["dtype"], value["file"], value["hash"], value.get("activations", ""), value.get("tied_to", "")]
    is_sound = (
        all(isinstance(text, str) for text in texts)
        and storage in ("dense", "bitmask", "entropy")
        and value.get("output_axis", "first") in _AXES
        and _is_count(n_block_bytes)
        and isinstance(trellis, bool)
        and _is_count(n_kept)
        and n_kept <= math.prod(shape)
    )
    if not is_sound:
        raise FormatError(f"found a value that no version has, in {value!r}; the manifest is damaged")
    return Entry(
        dtype=value["dtype"],
        shape=tuple(shape),
        output_axis=value.get("output_axis", "first"),
        storage=storage,
        trellis=trellis,
        n_block_bytes=n_block_bytes,
        codes=_codes_of(coding["codes"]) if "codes" in coding else None,
        n_kept=n_kept,
        activations=value.get("activations"),
        file=value["file"],
        hash=value["hash"],
        tied_to=value.get("tied_to"),
    )


def _codes_of(value: Any) -> Codes:
    _expect_keys(value, {"bits", "grid", "grouping", "scale"}, {"column_scale"})
    grouping = value["grouping"]
    if isinstance(grouping, dict):
        _expect_keys(grouping, {"group"}, set())
        grouping = grouping["group"]
    is_grouping = grouping in ("tensor", "row") if isinstance(grouping, str) else _is_count(grouping) and grouping > 0
    is_width = _is_count(value["bits"]) and 2 <= value["bits"] <= 8
    column_scale = value.get("column_scale", False)
    is_known = value["grid"] in _GRIDS and value["scale"] in ("F32", "F16", "LOG8") and isinstance(column_scale, bool)
    if not is_width or not is_grouping or not is_known:
        raise FormatError(f"found the codes {value!r}, expected 2 to 8 bits, and a known grid, grouping and type of scale")
    return Codes(value["bits"], value["grid"], grouping, value["scale"], column_scale)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _expect_keys(value: Any, required: set[str], optional: set[str]) -> None:
    if not isinstance(value, dict) or not required <= set(value) <= required | optional:
        keys = sorted(value) if isinstance(value, dict) else value
        raise FormatError(f"found {keys!r}, expected the keys {sorted(required)} and at most {sorted(optional)}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found
