"""Damaged outputs raise `FormatError`, and nothing else."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import briquette
import pytest
from briquette._manifest import VERSION
from conftest import FROZEN


@pytest.fixture(params=FROZEN, ids=lambda path: path.name)
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / "out"))


def weights_of(output: Path) -> Path:
    (path,) = (path for path in output.iterdir() if path.suffix in (".safetensors", ".bpk"))
    return path


def refused(output: Path, words: str | None = None, **options: Any) -> None:
    with pytest.raises(briquette.FormatError, match=words) as caught:
        briquette.load(output, **options)
    assert str(output) in str(caught.value) and "\n" not in str(caught.value)


def without_sums(output: Path) -> None:
    (output / "SHA256SUMS").unlink()


def edit(output: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest, and removes the sums so that they do not show it."""
    path = output / "briquette.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    (output / "SHA256SUMS").unlink(missing_ok=True)


def test_sums_show_any_flipped_bit(output: Path) -> None:
    generator = random.Random(1)
    for path in (weights_of(output), output / "briquette.json"):
        good = path.read_bytes()
        for at in [0, len(good) - 1, *(generator.randrange(len(good)) for _ in range(60))]:
            bad = bytearray(good)
            bad[at] ^= 1 << generator.randrange(8)
            path.write_bytes(bad)
            refused(output)
        path.write_bytes(good)
    briquette.load(output)


def test_hashes_show_any_flipped_bit_that_changes_a_value(output: Path) -> None:
    pytest.importorskip("xxhash")
    without_sums(output)
    expected = {name: values.tobytes() for name, values in briquette.load(output).items()}
    path, generator, n_refused = weights_of(output), random.Random(2), 0
    good = path.read_bytes()
    for at in range(0, len(good), 5):
        bad = bytearray(good)
        bad[at] ^= 1 << generator.randrange(8)
        path.write_bytes(bad)
        try:
            found = briquette.load(output)
        except briquette.FormatError:
            n_refused += 1
        else:
            assert {name: values.tobytes() for name, values in found.items()} == expected, f"byte {at}"
    assert n_refused > len(good) / 10


def test_damage_that_no_hash_shows_raises_nothing_else(output: Path) -> None:
    without_sums(output)
    generator = random.Random(3)
    for path in (weights_of(output), output / "briquette.json"):
        good = path.read_bytes()
        for _ in range(400):
            bad = bytearray(good)
            for _ in range(generator.choice([1, 1, 2, 8])):
                at = generator.randrange(len(good))
                bad[at] = generator.choice([0, 0xFF, bad[at] ^ 1 << generator.randrange(8), generator.randrange(256)])
            path.write_bytes(bad)
            with contextlib.suppress(briquette.FormatError):
                briquette.load(output, check=False)
        path.write_bytes(good)


def test_every_prefix_of_a_file_is_refused(output: Path) -> None:
    without_sums(output)
    for path in (weights_of(output), output / "briquette.json"):
        good = path.read_bytes()
        n_content = len(good.rstrip())
        for n in [*range(0, n_content, 37), n_content - 1]:
            path.write_bytes(good[:n])
            refused(output, check=False)
        path.write_bytes(good)


def test_any_other_value_in_a_manifest_raises_nothing_else(output: Path) -> None:
    """Each value of each entry becomes each of these values."""
    original = (output / "briquette.json").read_text()
    others = [None, True, -1, 0, 3, 1 << 70, 1.5, "", "x", "..", [], [0], [1 << 40, 1 << 40], [-1]]
    others += [{}, {"group": 0}, {"entropy": {"n_bytes": -1}}]

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [path, *(place for key, item in items for place in places(item, (*path, key)))]

    without_sums(output)
    n_refused = 0
    for place in places(json.loads(original))[1:]:
        for other in others:
            manifest = json.loads(original)
            inside = manifest
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = other
            (output / "briquette.json").write_text(json.dumps(manifest))
            try:
                briquette.load(output, check=False)
            except briquette.FormatError:
                n_refused += 1
    assert n_refused > 100


OUTPUT = FROZEN[0]


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OUTPUT, tmp_path / "out"))


def test_a_newer_version_is_named(one: Path) -> None:
    edit(one, lambda manifest: manifest.update(version=VERSION + 1))
    refused(one, f"found version {VERSION + 1}, expected at most {VERSION}; use a newer briquette")


def test_a_directory_of_another_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(briquette.FormatError, match="briquette.json: not found"):
        briquette.load(tmp_path)
    (tmp_path / "briquette.json").write_text('{"format": "other"}')
    with pytest.raises(briquette.FormatError, match='"format" is not "briquette"'):
        briquette.manifest(tmp_path)


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a/../../x", "", ".", "a\\b", "a\0b", "absent.safetensors"])
def test_files_outside_of_the_directory_are_refused(one: Path, file: str) -> None:
    edit(one, lambda manifest: [entry.update(file=file) for entry in manifest["tensors"].values()])
    refused(one, "not found" if file == "absent.safetensors" else "expected one below")


def test_a_missing_file_and_a_missing_part_are_named(one: Path) -> None:
    edit(one, lambda manifest: manifest["tensors"].update(absent=manifest["tensors"]["up.bias"]))
    refused(one, "tensor 'absent': its part 'absent' is missing")
    weights_of(one).unlink()
    refused(one, "not found; the output is incomplete")


def test_tied_tensors_have_one_type_and_shape(one: Path) -> None:
    edit(one, lambda manifest: manifest["tensors"].update(x={**manifest["tensors"]["up.bias"], "tied_to": "up.bias"}))
    assert briquette.load(one)["x"] is not None
    edit(one, lambda manifest: manifest["tensors"]["x"].update(shape=[4, 4]))
    refused(one, "'x': is tied to 'up.bias'")


def test_unknown_and_double_keys_are_refused(one: Path) -> None:
    edit(one, lambda manifest: manifest["tensors"]["up.bias"].update(new=1))
    refused(one, "'up.bias': found .*'new'")
    path = one / "briquette.json"
    path.write_text(path.read_text().replace('"version"', '"format": "briquette", "version"'))
    refused(one, "a key twice")


def test_few_bytes_that_stand_for_many_codes_are_refused(tmp_path: Path) -> None:
    source = next(path for path in FROZEN if path.name.endswith("entropy"))
    output = Path(shutil.copytree(source, tmp_path / "out"))
    edit(output, lambda manifest: manifest["tensors"]["up.weight"].update(shape=[1 << 20, 1 << 14]))
    refused(output, "expected at most 128 a byte")


def test_the_manifest_is_compared_with_its_sum(one: Path) -> None:
    path = one / "briquette.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(briquette.FormatError, match="briquette.json: found SHA-256"):
        briquette.manifest(one)
