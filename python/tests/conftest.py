"""Helpers for the tests: the command, models from literal values, and the bytes of its exports."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors

REPOSITORY = Path(__file__).resolve().parents[2]
FROZEN = sorted((REPOSITORY / "fixtures/frozen").iterdir())


@dataclass
class Tensor:
    """A tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Command:
    """The command `briquette`, run in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        program = Path(os.environ.get("BRIQUETTE", REPOSITORY / "target/release/briquette"))
        self.program = program.resolve()
        self.directory = directory

    def __call__(self, line: str) -> None:
        """Runs a command line, which has to succeed."""
        run = subprocess.run([self.program, *line.split()], cwd=self.directory, capture_output=True, text=True)
        assert run.returncode == 0, f"{line}: {run.stderr}"

    def exported(self, name: str | Path) -> dict[str, Tensor]:
        """The tensors that `briquette export NAME --to dense` writes."""
        out = self.directory / f"{Path(name).name}-dense"
        self(f"export {name} --to dense -o {out} --force --quiet")
        found = {}
        for path in out.glob("*.safetensors"):
            for tensor, content in safetensors.deserialize(path.read_bytes()):
                found[tensor] = Tensor(content["dtype"], tuple(content["shape"]), bytes(content["data"]))
        return found


@pytest.fixture
def briquette_command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    assert command.program.is_file(), f"{command.program}: not found; build it with `cargo build --release -p briquette-cli`"
    return command


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file of tensors of any type."""
    header, start = ({"__metadata__": metadata} if metadata else {}), 0
    for name, tensor in tensors.items():
        end = start + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors.values()))


def random_tensor(dtype: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A tensor of normally distributed values."""
    values = np.random.default_rng(seed).standard_normal(math.prod(shape)).astype("<f4")
    if dtype == "BF16":
        return Tensor(dtype, shape, (values.view("<u4") >> 16).astype("<u2").tobytes())
    return Tensor(dtype, shape, values.astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype]).tobytes())
