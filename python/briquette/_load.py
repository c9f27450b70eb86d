"""Loads the tensors of an output directory."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from briquette._codes import Block, decode_blocks, log_scale, unpack
from briquette._error import FormatError
from briquette._files import NUMPY_TYPES, WEIGHT_TYPES, Stored, read_header
from briquette._manifest import HASHES_LAYOUT, NAME, Entry, compare_sum, entry_of, manifest, read_sums

try:
    import xxhash
except ImportError:
    xxhash = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import torch

#: Elements of a block of whole rows: the unit of hashes, and a quarter of an entropy-coded block.
_BLOCK_ELEMENTS = 1 << 16
#: Entropy-coded bytes may decode to this many codes each, beyond the first `_CODES_ANYWAY` codes.
_CODES_PER_BYTE = 128
_CODES_ANYWAY = 64 << 20


def load(directory: str | os.PathLike[str], *, check: bool = True) -> dict[str, np.ndarray]:
    """Loads the tensors of an output directory as numpy arrays.

    Each tensor has the name, the shape, the type and the values that `briquette export DIRECTORY --to dense` writes. BF16 becomes
    float32, which holds its values exactly. Tied tensors are one array. Every tensor is in memory whole.

    Args:
        directory: an output of `briquette compress`, `run`, `distill` or `export`, in any format and of format version 1 to 8.
        check: compare each weight file with `SHA256SUMS`, if listed there, and, if the package `xxhash` is installed, the values of
            each tensor with their hash in the manifest. The manifest itself is always compared with `SHA256SUMS`.

    Raises:
        FormatError: if a file is damaged, incomplete or of a newer version, or if a tensor has a type that numpy does not have.
    """
    found = {name: (entry.dtype, values) for name, entry, values in _Reader(directory, check).tensors()}
    return _convert(found, lambda name, dtype, values: _to_numpy(directory, name, dtype, values))


def load_state_dict(directory: str | os.PathLike[str], *, check: bool = True) -> dict[str, torch.Tensor]:
    """Loads the tensors of an output directory as torch tensors, for `module.load_state_dict`.

    Tensors have their original type, BF16 and F8 too. Everything else is as in `load`.

    Raises:
        FormatError: if a file is damaged, incomplete or of a newer version, or if a tensor has a type that torch does not have.
        ImportError: if torch is not installed.
    """
    import torch

    found = {name: (entry.dtype, values) for name, entry, values in _Reader(directory, check).tensors()}
    return _convert(found, lambda name, dtype, values: _to_torch(torch, directory, name, dtype, values))


def _convert(found: dict[str, tuple[str, np.ndarray]], convert: Any) -> dict[str, Any]:
    """Converts each array, and arrays that several names share only once."""
    by_id: dict[int, Any] = {}
    for name, (dtype, values) in found.items():
        if id(values) not in by_id:
            by_id[id(values)] = convert(name, dtype, values)
    return {name: by_id[id(values)] for name, (_, values) in found.items()}


def _to_numpy(directory: Any, name: str, dtype: str, values: np.ndarray) -> np.ndarray:
    if dtype == "BF16":
        return (values.astype("<u4") << 16).view("<f4")
    if NUMPY_TYPES[dtype] is None:
        raise FormatError(f"{Path(directory)}: tensor {name!r}: numpy has no type {dtype}; use load_state_dict")
    return values


def _to_torch(torch: Any, directory: Any, name: str, dtype: str, values: np.ndarray) -> torch.Tensor:
    if NUMPY_TYPES[dtype] is not None:
        return torch.from_numpy(values)
    type_name = "bfloat16" if dtype == "BF16" else "float8_" + dtype[3:].lower() + ("" if "FNUZ" in dtype or dtype == "F8_E5M2" else "fn")
    type_name = "float8_e8m0fnu" if dtype == "F8_E8M0" else type_name
    kind = getattr(torch, type_name, None)
    if kind is None or not dtype.startswith(("BF16", "F8")):
        raise FormatError(f"{Path(directory)}: tensor {name!r}: torch {torch.__version__} has no type {dtype}")
    return torch.from_numpy(values.view(np.int16 if dtype == "BF16" else np.uint8)).view(kind)


class _Reader:
    """Decodes the tensors of a directory. Values of a type that numpy lacks are their bits: uint16 for BF16, else bytes."""

    def __init__(self, directory: str | os.PathLike[str], check: bool) -> None:
        self.directory = Path(directory)
        self.path = self.directory / NAME
        head = manifest(directory)
        self.version, self.profile, self.check = head["version"], head["profile"], check
        self.entries: dict[str, Entry] = {}
        for name, value in head["tensors"].items():
            try:
                self.entries[name] = entry_of(value)
            except FormatError as error:
                raise self.error(name, str(error)) from None
        self.stored: dict[str, Stored] = {}
        sums = read_sums(directory)
        for file in sorted({entry.file for entry in self.entries.values()}):
            self._add_file(file, sums)

    def error(self, name: str, message: str) -> FormatError:
        return FormatError(f"{self.path}: tensor {name!r}: {message}")

    def _add_file(self, file: str, sums: dict[str, str]) -> None:
        # The command refuses the same: a manifest names files below its directory only.
        if any(part in ("", ".", "..") for part in file.split("/")) or "\\" in file or "\0" in file or ":" in file:
            raise FormatError(f"{self.path}: found the file {file!r}, expected one below {self.directory}")
        path = self.directory / file
        tensors = read_header(path)
        if self.check and file in sums:
            digest = hashlib.sha256()
            with path.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    digest.update(chunk)
            compare_sum(path, digest.hexdigest(), sums[file])
        twice = self.stored.keys() & tensors.keys()
        if twice:
            raise FormatError(f"{path}: tensor {min(twice)!r} is in two files; the output is damaged")
        self.stored |= tensors

    def tensors(self) -> Any:
        """Yields the name, the entry and the values of each tensor, in the order of the manifest."""
        codes = self._decode_blocks()
        done: dict[str, tuple[Entry, np.ndarray]] = {}
        for name, entry in self.entries.items():
            source = entry.tied_to or name
            if source not in done:
                done[source] = entry, self._values(name, entry, codes.get(source))
            first, values = done[source]
            if (first.dtype, first.shape) != (entry.dtype, entry.shape):
                raise self.error(name, f"is tied to {source!r}, whose type or shape is another; the manifest is damaged")
            yield name, entry, values

    def _part(self, name: str, suffix: str, dtype: str, *shape: int) -> np.ndarray:
        """Reads a part of a tensor as an array."""
        stored = self.stored.get(name + suffix)
        if stored is None:
            raise self.error(name, f"its part {name + suffix!r} is missing; the output is damaged")
        if (stored.dtype, stored.shape) != (dtype, shape):
            found = f"{stored.dtype} {list(stored.shape)}, expected {dtype} {list(shape)}"
            raise self.error(name, f"its part {name + suffix!r} is {found}; the output is damaged")
        bits = NUMPY_TYPES[dtype] or ("<u2" if dtype == "BF16" else "u1")
        data = stored.read().view(bits)
        return data.reshape(shape) if data.size == math.prod(shape) else data

    def _decode_blocks(self) -> dict[str, np.ndarray]:
        """Returns the codes of all entropy-coded tensors by rows. Decodes them together, because most tensors have few blocks."""
        coded: dict[str, tuple[str, Entry]] = {}
        for name, entry in self.entries.items():
            if entry.storage == "entropy":
                coded.setdefault(entry.tied_to or name, (name, entry))
        n_codes = sum(entry.n_elements for _, entry in coded.values())
        n_bytes = sum(entry.n_block_bytes for _, entry in coded.values())
        if n_codes > max(n_bytes * _CODES_PER_BYTE, _CODES_ANYWAY):
            message = f"{n_bytes} bytes of blocks hold {n_codes} codes, expected at most 128 a byte; the file is damaged"
            raise FormatError(f"{self.path}: {message}")
        blocks, decoded = [], {}
        for source, (name, entry) in coded.items():
            n_rows, n_cols = _rows(entry)
            step = 4 * _rows_per_block(n_cols)
            data = self._part(source, ".blocks", "U8", entry.n_block_bytes)
            ends = self._part(source, ".block_ends", "I64", -(-n_rows // step)).tolist()
            starts = [0, *ends[:-1]]
            if any(start > end for start, end in zip(starts, ends)) or (ends[-1] if ends else 0) != len(data):
                raise self.error(name, "its blocks do not lie one after the other; the output is damaged")
            codes = decoded[source] = np.empty((n_rows, n_cols), np.int8)
            if entry.codes is None or n_cols == 0 or (entry.trellis and (entry.codes.bits != 8 or n_cols % 32)):
                raise self.error(name, "no codes of its shape are kept in blocks; the manifest is damaged")
            trellis_cols = n_cols if entry.trellis else None
            for number, (start, end) in enumerate(zip(starts, ends)):
                label = f"{self.path}: tensor {name!r}: block {number}"
                out = codes[number * step : (number + 1) * step].reshape(-1)
                blocks.append(Block(label, data[start:end], entry.codes.bits, out, trellis_cols))
        decode_blocks(blocks)
        return decoded

    def _values(self, name: str, entry: Entry, codes: np.ndarray | None) -> np.ndarray:
        source, is_weight = entry.tied_to or name, entry.dtype in WEIGHT_TYPES
        if entry.dtype not in NUMPY_TYPES:
            raise self.error(name, f"unknown type {entry.dtype!r}")
        if not is_weight and (entry.codes or entry.storage != "dense"):
            raise self.error(name, "a tensor of this type is never coded; the manifest is damaged")
        if entry.codes is None and entry.storage == "dense":
            values = self._part(source, "", entry.dtype, *entry.shape)
            values = values.reshape(_rows(entry)) if is_weight else values
        elif entry.codes is None:
            values = self._spread(source, entry, self._part(source, ".values", entry.dtype, entry.n_kept))
        else:
            values = self._dequantize(source, entry, codes)
        if self.check and xxhash is not None:
            found = _hash(values if is_weight else values.reshape(-1, 1), entry, self.version)
            if found != entry.hash:
                raise self.error(name, f"found values with the hash {found}, expected {entry.hash}; a file is damaged")
        if entry.codes is not None:
            values = _cast(values, entry.dtype)
        return _turn_back(values, entry) if is_weight else values

    def _dequantize(self, source: str, entry: Entry, codes: np.ndarray | None) -> np.ndarray:
        """Returns the values of codes by rows, in float32."""
        kind, (n_rows, n_cols) = entry.codes, _rows(entry)
        assert kind is not None
        is_kept, group = None, n_cols
        if isinstance(kind.grouping, int):
            group = kind.grouping
            if n_cols % group:
                raise self.error(source, f"groups of {group} do not divide rows of {n_cols}; the manifest is damaged")
        scale_shape = (1, 1) if kind.grouping == "tensor" else (n_rows, n_cols // group if isinstance(kind.grouping, int) else 1)
        if self.profile == "compressed-tensors":
            codes, scale = self._compressed_tensors(source, entry, scale_shape)
        else:
            scale = self._scale(source, kind.scale, scale_shape)
            if entry.storage == "bitmask":
                is_kept = self._bitmask(source, entry)
                codes = self._spread(source, entry, self._kept_codes(source, entry), is_kept)
            elif entry.storage == "dense":
                codes = self._packed(source, entry)
        assert codes is not None
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise self.error(source, "a scale is not a finite number above 0; the output is damaged")
        values: np.ndarray = codes.astype("<f4")
        in_groups = values.reshape(scale_shape[0], scale_shape[1], -1) if values.size else values
        if values.size and kind.grid == "asymmetric":
            in_groups -= self._part(source, ".zero", "I8", *scale_shape).astype("<f4")[:, :, None]
        if values.size:
            with np.errstate(over="ignore"):
                in_groups *= scale[:, :, None]
                if kind.column_scale:
                    values *= log_scale(self._part(source, ".column_scale", "U8", n_cols))
        if is_kept is not None:
            values[~is_kept] = 0
        return values

    def _scale(self, source: str, kind: str, shape: tuple[int, int]) -> np.ndarray:
        if kind == "LOG8":
            return log_scale(self._part(source, ".scale", "U8", *shape))
        return self._part(source, ".scale", kind, *shape).astype("<f4")

    def _packed(self, source: str, entry: Entry) -> np.ndarray:
        (n_rows, n_cols), bits = _rows(entry), entry.codes.bits if entry.codes else 8
        if bits == 8:
            return self._part(source, ".codes", "I8", n_rows, n_cols)
        return unpack(self._part(source, ".codes", "U8", n_rows, (n_cols * bits + 7) // 8), bits, n_cols)

    def _kept_codes(self, source: str, entry: Entry) -> np.ndarray:
        bits = entry.codes.bits if entry.codes else 8
        if bits == 8:
            return self._part(source, ".values", "I8", entry.n_kept)
        packed = self._part(source, ".values", "U8", (entry.n_kept * bits + 7) // 8)
        codes: np.ndarray = unpack(packed[None], bits, entry.n_kept)[0]
        return codes

    def _bitmask(self, source: str, entry: Entry) -> np.ndarray:
        """Returns which elements are kept, by rows."""
        n_rows, n_cols = _rows(entry)
        packed = self._part(source, ".bitmask", "U8", n_rows, (n_cols + 7) // 8)
        offsets = self._part(source, ".row_offsets", "I64", n_rows)
        bits = np.unpackbits(packed, axis=1, bitorder="little").astype(bool)
        ends = np.cumsum(np.count_nonzero(bits, axis=1))
        is_sound = not bits[:, n_cols:].any() and (ends[-1] if n_rows else 0) == entry.n_kept
        if not is_sound or (offsets[1:] != ends[:-1]).any() or offsets[:1].any():
            raise self.error(source, "its bitmask, row offsets and number of kept values disagree; the output is damaged")
        is_kept: np.ndarray = bits[:, :n_cols]
        return is_kept

    def _spread(self, source: str, entry: Entry, kept: np.ndarray, is_kept: np.ndarray | None = None) -> np.ndarray:
        """Puts kept elements in their places, and zeros elsewhere."""
        values = np.zeros(_rows(entry), kept.dtype)
        values[self._bitmask(source, entry) if is_kept is None else is_kept] = kept
        return values

    def _compressed_tensors(self, source: str, entry: Entry, scale_shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Reads codes and scales by the names of compressed-tensors: `int-quantized`, or `pack-quantized` in 32-bit words."""
        kind, (n_rows, n_cols) = entry.codes, _rows(entry)
        assert kind is not None
        shape = (1,) if kind.grouping == "tensor" else scale_shape
        scale = self._part(source, "_scale", "F32", *shape).reshape(scale_shape)
        if entry.activations and (kind.bits == 4 or kind.bits == 8 and not isinstance(kind.grouping, int)):
            return self._part(source, "", "I8", n_rows, n_cols), scale
        words = self._part(source, "_packed", "I32", n_rows, (n_cols * kind.bits + 31) // 32)
        return unpack(words.view(np.uint8).reshape(n_rows, words.shape[1] * 4), kind.bits, n_cols), scale


def _rows(entry: Entry) -> tuple[int, int]:
    """Returns the rows and columns of a weight: one row for each output."""
    shape, axis = entry.shape, entry.output_axis
    if len(shape) < 2:
        n_rows = 1
    elif axis == ("last" if len(shape) == 2 else "second"):
        n_rows = shape[1]
    elif axis == "stacked" and len(shape) > 2:
        n_rows = math.prod(shape[:-1])
    else:
        n_rows = shape[0]
    return n_rows, entry.n_elements // n_rows if n_rows else 0


def _turn_back(values: np.ndarray, entry: Entry) -> np.ndarray:
    """Returns the tensor that consists of these rows, in the order of its own axes."""
    shape = entry.shape
    if values.size and (entry.output_axis, len(shape)) == ("last", 2):
        return np.ascontiguousarray(values.T)
    if values.size and entry.output_axis == "second" and len(shape) > 2:
        return np.ascontiguousarray(values.reshape(shape[1], shape[0], -1).swapaxes(0, 1)).reshape(shape)
    return values.reshape(shape)


def _cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds float32 to another type of weight, to the nearest value, halves to even."""
    if dtype == "BF16":
        bits: np.ndarray = values.view("<u4")
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return bits.astype("<u2")
    with np.errstate(over="ignore"):
        return values.astype(NUMPY_TYPES[dtype], copy=False)


def _rows_per_block(n_cols: int) -> int:
    return max(1, _BLOCK_ELEMENTS // max(1, n_cols))


def _hash(rows: np.ndarray, entry: Entry, version: int) -> str:
    """Returns the hash that the manifest has for these values: xxh3-128 over the digests of blocks of rows."""
    if entry.dtype not in WEIGHT_TYPES:
        rows = rows.view(np.uint8).reshape(-1, 1)
    rows = np.ascontiguousarray(rows)
    step = _rows_per_block(rows.shape[1])
    starts = range(0, len(rows) if rows.shape[1] else 0, step)
    digests = b"".join(_digest(rows[start : start + step].view(np.uint8).data) for start in starts)
    digest = _digest(digests)
    axis = {"last": 1, "second": 2}.get(entry.output_axis, 0)
    if version >= HASHES_LAYOUT and axis:
        digest = _digest(digest + bytes([axis]) + b"".join(n.to_bytes(8, "little") for n in entry.shape))
    return digest[::-1].hex()


def _digest(data: Any) -> bytes:
    """Returns xxh3-128, little-endian."""
    return xxhash.xxh3_128_digest(data)[::-1]
