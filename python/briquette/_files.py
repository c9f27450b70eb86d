"""Finds the tensors of weight files: safetensors and burnpack."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from briquette._error import FormatError

#: numpy's name of each element type; `None` if numpy has no such type.
NUMPY_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": None,
    "F8_E4M3": None,
    "F8_E5M2": None,
    "F8_E4M3FNUZ": None,
    "F8_E5M2FNUZ": None,
    "F8_E8M0": None,
    "F6_E2M3": None,
    "F6_E3M2": None,
    "F4": None,
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
    "C64": "<c8",
}
#: Types of weights. Tensors of other types are never compressed.
WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")

_BITS = {"BF16": 16, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}

_BURNPACK = struct.Struct("<IHI")
_BURNPACK_MAGIC = 0x4255524E
_BURNPACK_ALIGNMENT = 256
_MAX_HEADER = 100 << 20


@dataclass(frozen=True)
class Stored:
    """A tensor of a weight file: its type, shape and place."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def read(self) -> np.ndarray:
        """Returns the bytes."""
        n = n_bytes(self.dtype, self.shape)
        data = np.fromfile(self.path, np.uint8, count=n, offset=self.offset)
        if len(data) != n:
            raise FormatError(f"{self.path}: found {len(data)} bytes at {self.offset}, expected {n}; the file is cut short")
        return data


def n_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Returns the size of a tensor in bytes."""
    numpy_type = NUMPY_TYPES.get(dtype)
    bits = 8 * np.dtype(numpy_type).itemsize if numpy_type else _BITS.get(dtype, 8)
    return (math.prod(shape) * bits + 7) // 8


def read_header(path: Path) -> dict[str, Stored]:
    """Lists the tensors of a weight file.

    Raises:
        FormatError: if the file is missing, damaged or of an unknown format.
    """
    if not path.is_file():
        raise FormatError(f"{path}: not found; the output is incomplete")
    with path.open("rb") as file:
        is_burnpack = file.read(4) == _BURNPACK_MAGIC.to_bytes(4, "little")
    tensors = _read_burnpack(path) if is_burnpack else _read_safetensors(path)
    for name, tensor in tensors.items():
        if tensor.dtype not in NUMPY_TYPES:
            raise FormatError(f"{path}: tensor {name!r}: unknown type {tensor.dtype!r}")
    return tensors


def _read_safetensors(path: Path) -> dict[str, Stored]:
    try:
        # Checks that tensors lie one after the other and end with the file. It cannot read types that numpy does not have.
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise FormatError(f"{path}: not a sound safetensors file: {error}") from None
    with path.open("rb") as file:
        (n_header,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n_header))
    header.pop("__metadata__", None)
    return {
        name: Stored(path, tensor["dtype"], tuple(tensor["shape"]), 8 + n_header + tensor["data_offsets"][0])
        for name, tensor in header.items()
    }


def _read_burnpack(path: Path) -> dict[str, Stored]:
    """Reads the header of burn's format: 10 bytes, tensors described in CBOR, then data at multiples of 256 bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_BURNPACK.size)
        _, version, n_cbor = _BURNPACK.unpack(head) if len(head) == _BURNPACK.size else (0, 0, size)
        start = -(-(_BURNPACK.size + n_cbor) // _BURNPACK_ALIGNMENT) * _BURNPACK_ALIGNMENT
        if version != 1 or n_cbor > min(size, _MAX_HEADER):
            raise FormatError(f"{path}: found burnpack version {version} and {n_cbor} bytes of header; the file is damaged or newer")
        cbor = file.read(n_cbor)
    try:
        found, _ = _cbor(cbor, 0, 8)
        tensors = {}
        for name, tensor in found["tensors"].items():
            dtype = tensor["dtype"]
            dtype = "BOOL" if dtype == {"Bool": "Native"} else {"Flex32": "F32"}.get(dtype, dtype)
            first, end = tensor["data_offsets"]
            stored = Stored(path, dtype, tuple(tensor["shape"]), start + first)
            if end - first != n_bytes(dtype, stored.shape) or start + end > size:
                message = f"found bytes {first} to {end} for {dtype} {list(stored.shape)}; the file is damaged"
                raise FormatError(f"{path}: tensor {name!r}: {message}")
            tensors[name] = stored
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: the burnpack header is damaged: {error}") from None
    return tensors


def _cbor(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Decodes one CBOR item (RFC 8949) of a type that burnpack headers have. Returns it and the offset after it."""
    if depth == 0:
        raise ValueError("nested too deep")
    kind, short = data[at] >> 5, data[at] & 31
    at += 1
    n = short
    if 24 <= short <= 27:
        width = 1 << (short - 24)
        n = int.from_bytes(data[at : at + width], "big")
        at += width
    if at > len(data) or short > 27 and kind != 7:
        raise ValueError(f"no item of a known kind at byte {at}")
    if kind == 0:
        return n, at
    if kind == 7 and short == 22:
        return None, at
    if kind == 3 and at + n <= len(data):
        return data[at : at + n].decode(), at + n
    if kind in (4, 5) and n <= len(data):
        items = []
        for _ in range(n * (kind - 3)):
            item, at = _cbor(data, at, depth - 1)
            items.append(item)
        return (items if kind == 4 else dict(zip(items[::2], items[1::2]))), at
    raise ValueError(f"no item of a known kind at byte {at}")
