#!/usr/bin/env python3
"""Check that transformers, safetensors, torch and compressed-tensors read the outputs of briquette.

usage: interop.py BRIQUETTE_BINARY MINILM_DIR WORKDIR [--only a,a2,...] [--threads 1]

Needs bench/peers/requirements.txt. MINILM_DIR is all-MiniLM-L6-v2 as `just fetch-minilm` writes it. Writes, and overwrites, only
WORKDIR/interop (about 600 MB). Each check prints PASS or FAIL with its figure. Exit code 1 if any fails.

 a    --format compressed-tensors int8-dynamic: transformers loads it, mean cosine of 40 sentences to f32 >= 0.9985
 a2   the same for int4-g128: >= 0.93
 a3   the same for int8-static, with grids from the same sentences: >= 0.985, and `eval` finds the same within 0.0005
 b    dense export of the plain model is bit-identical; of a pruned one, equal to torch's l1_unstructured
 c    a torch-saved .pt and its safetensors twin compress to the same bytes
 d    dense export of compressed-tensors' own directories equals that library's decompression, bit for bit
 e    dense export of int8: transformers loads it, mean cosine >= 0.9990
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import traceback
import warnings

warnings.filterwarnings("ignore")
HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "fixtures" / "golden"
sys.path.insert(0, str(HERE / "peers"))
from common import is_linear_or_conv, sentences, set_threads


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary", type=pathlib.Path)
    p.add_argument("minilm", type=pathlib.Path)
    p.add_argument("workdir", type=pathlib.Path)
    p.add_argument("--only", default="", help="comma list of checks")
    p.add_argument("--threads", type=int, default=1)
    return p.parse_args()


args = arguments()
set_threads(args.threads)
os.environ["HF_HUB_OFFLINE"] = "1"

import minilm
import torch
from safetensors import numpy as safetensors_numpy
from safetensors import safe_open
from safetensors.torch import load_file
from torch.nn.utils import prune
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

transformers_logging.set_verbosity_error()
torch.set_num_threads(args.threads)


# ---- helpers ---------------------------------------------------------------------------------------------------------


def briquette(*words):
    """Runs the binary and returns the finished process; an exit code other than 0 fails the check with its error line."""
    command = [str(args.binary.resolve()), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"exit {done.returncode}: {' '.join(command[1:])}: {done.stderr.strip()}")
    return done


def expect(holds, figure):
    """Returns a check's outcome: whether it passes, and the figure to print."""
    return bool(holds), figure


def weights_of(folder):
    """Returns all tensors of a directory's plain safetensors files."""
    files = sorted(folder.glob("model*.safetensors"))
    assert files, f"no model*.safetensors in {folder}"
    tensors = {}
    for file in files:
        tensors |= load_file(file)
    return tensors


def safetensors_bytes(folder):
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def same_bits(a, b):
    """Returns whether dtype, shape and bytes are equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def names_differ(ours, theirs):
    return f"only ours {sorted(ours.keys() - theirs.keys())[:3]}, only theirs {sorted(theirs.keys() - ours.keys())[:3]}"


def same_tensors(ours, theirs):
    """Returns (whether all tensors are equal bit for bit, a summary or the first tensor that differs)."""
    if ours.keys() != theirs.keys():
        return expect(False, names_differ(ours, theirs))
    differing = [name for name in sorted(ours) if not same_bits(ours[name], theirs[name])]
    return expect(not differing, f"{len(ours)} tensors, differing: {differing[:3] or 'none'}")


def similarity(folder):
    """Returns the mean and least cosine to the f32 model's embeddings. transformers loads the folder and its tokenizer."""
    _, notes = AutoModel.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    unread = {kind: sorted(map(str, names))[:3] for kind, names in notes.items() if names}
    assert not unread, f"transformers did not match every tensor: {unread}"
    reference = minilm.embed(*minilm.load(args.minilm), sentences())
    cosine = minilm.cosines(minilm.embed(*minilm.load(folder), sentences()), reference)
    return cosine.mean().item(), cosine.min().item()


def similar(folder, least):
    mean, low = similarity(folder)
    figure = f"cosine mean {mean:.5f} (at least {least}), min {low:.5f}, {safetensors_bytes(folder)} bytes"
    return expect(mean >= least, figure)


def compressed(out, *words, model=None):
    briquette("compress", model or args.minilm, "-o", out, *words, "--force", "--quiet")
    return out


def exported(model, out):
    briquette("export", model, "--to", "dense", "-o", out, "--force", "--quiet")
    return out


# ---- the checks ------------------------------------------------------------------------------------------------------


def int8_dynamic_loads(work):
    return similar(compressed(work / "ct", "--quantize", "int8-dynamic", "--format", "compressed-tensors"), 0.9985)


def int4_loads(work):
    return similar(compressed(work / "ct-int4", "--quantize", "int4-g128", "--format", "compressed-tensors"), 0.93)


def int8_static_loads(work):
    data = HERE / "peers" / "sentences.txt"
    flags = ["--quantize", "int8-static", "--data", data, "--format", "compressed-tensors"]
    folder = compressed(work / "ct-static", *flags)
    mean, low = similarity(folder)
    words = ["eval", folder, "--against", args.minilm, "--data", data, "--json"]
    ours = json.loads(briquette(*words).stdout)["metrics"]["cosine"]
    return expect(mean >= 0.985 and abs(mean - ours) < 5e-4, f"cosine mean {mean:.5f}, by eval {ours:.5f}, min {low:.5f}")


def dense_is_identical(work):
    return same_tensors(weights_of(exported(args.minilm, work / "dense")), weights_of(args.minilm))


def dense_reads_in_numpy(work):
    """Checks that safetensors' numpy reader gives the same arrays as its torch reader, and checks the metadata."""
    file = exported(args.minilm, work / "dense") / "model.safetensors"
    arrays = {name: torch.from_numpy(array.copy()) for name, array in safetensors_numpy.load_file(file).items()}
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    holds, figure = same_tensors(arrays, weights_of(args.minilm))
    return expect(holds and (metadata or {}).get("format") == "pt", f"{figure}, metadata {metadata}")


def dense_comes_with_tokenizer(work):
    folder = exported(args.minilm, work / "dense")
    wanted = ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"]
    wrong = [n for n in wanted if not (folder / n).is_file() or digest(folder / n) != digest(args.minilm / n)]
    return expect(not wrong, f"{len(wanted)} files, missing or changed: {wrong or 'none'}")


def pruned_equals_torch(work):
    """Checks that kept weights are equal bit for bit, and that masks differ only among equal magnitudes."""
    compressed(work / "pruned", "--prune", "0.4")
    ours, originals = weights_of(exported(work / "pruned", work / "pruned-dense")), weights_of(args.minilm)
    if ours.keys() != originals.keys():
        return expect(False, names_differ(ours, originals))
    n_pruned = n_ties = 0
    for name, weight in originals.items():
        if not is_linear_or_conv(name, weight.dim()):
            assert same_bits(ours[name], weight), f"{name} was not to be pruned and changed"
            continue
        problem, ties = compare_with_torch(ours[name], weight, torch_mask(weight, 0.4))
        assert not problem, f"{name}: {problem}"
        n_pruned, n_ties = n_pruned + 1, n_ties + ties
    return expect(n_pruned > 0, f"{n_pruned} weights pruned as torch does, {n_ties} choices among ties differ")


def torch_mask(weight, amount):
    """Returns torch's own mask; True means kept."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    return prune.l1_unstructured(module, "weight", amount).weight_mask.bool()


def compare_with_torch(ours, weight, mask):
    """Returns (an error or None, number of equal magnitudes that torch chose otherwise)."""
    if ours.dtype != weight.dtype or ours.shape != weight.shape:
        return f"{ours.dtype} {tuple(ours.shape)}, not {weight.dtype} {tuple(weight.shape)}", 0
    kept = ours != 0
    if not same_bits(ours[kept], weight[kept]):
        return "a kept weight changed", 0
    nonzero = weight != 0  # a weight that was 0 before pruning does not show whether it was kept
    if int((kept & nonzero).sum()) != int((mask & nonzero).sum()):
        return f"{int((~kept).sum())} zeros, torch makes {int((~mask | ~nonzero).sum())}", 0
    disagree = (kept != mask) & nonzero
    edge = weight[~mask].abs().max()
    if not bool((weight[disagree].abs() == edge).all()):
        return f"{int(disagree.sum())} masks differ from torch's where magnitudes do not tie", 0
    return None, int(disagree.sum())


def pt_equals_safetensors(work):
    twin, saved = args.minilm / "model.safetensors", work / "twins" / "model.pt"
    saved.parent.mkdir(exist_ok=True)
    torch.save(load_file(twin), saved)
    digests = []
    for model, out in ((twin, work / "from-safetensors"), (saved, work / "from-pt")):
        compressed(out, "--prune", "0.4", "--quantize", "int8", model=model)
        digests.append(digest(out / "model.briquette.safetensors"))
    saved.unlink()
    return expect(digests[0] == digests[1], f"sha256 {digests[0][:16]} and {digests[1][:16]}")


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def decompression_agrees(fixture):
    """Compares ours with the library's decompression of now and of the time when the fixture was made."""

    def check(work):
        from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer

        ours = weights_of(exported(fixture, work / "ct-dense" / fixture.name))
        library = CompressedTensorsDequantizer(str(fixture), dtype=torch.float32)
        theirs = library.validate(load_file(fixture / "model.safetensors"))
        golden = load_file(fixture.with_name(fixture.name + ".expected.safetensors"))
        holds, figure = same_tensors(ours, theirs)
        return expect(holds and same_tensors(theirs, golden)[0], figure)

    return check


def int8_dense_loads(work):
    folder = compressed(work / "int8", "--quantize", "int8")
    holds, figure = similar(exported(folder, work / "int8-dense"), 0.9990)
    return expect(holds, f"{figure} as dense; compressed {safetensors_bytes(folder)} bytes")


def checks():
    """Returns (key, description, function of the work folder) of each check."""
    yield "a", "transformers loads compressed-tensors int8-dynamic", int8_dynamic_loads
    yield "a2", "transformers loads compressed-tensors int4-g128", int4_loads
    yield "a3", "transformers loads compressed-tensors int8-static", int8_static_loads
    yield "b", "dense export is bit-identical", dense_is_identical
    yield "b", "dense export reads in safetensors.numpy", dense_reads_in_numpy
    yield "b", "dense export brings config and tokenizer", dense_comes_with_tokenizer
    yield "b", "dense export of a pruned model equals torch's l1_unstructured", pruned_equals_torch
    yield "c", ".pt and safetensors compress to the same bytes", pt_equals_safetensors
    for fixture in sorted(path for path in GOLDEN.glob("ct-*") if path.is_dir()):
        yield "d", f"compressed-tensors decompresses {fixture.name} to the same values", decompression_agrees(fixture)
    yield "e", "transformers loads the dense export of int8", int8_dense_loads


def main():
    work = args.workdir / "interop"
    (work / "ct-dense").mkdir(parents=True, exist_ok=True)
    chosen = set(filter(None, args.only.split(",")))
    failed = ran = 0
    for key, what, check in checks():
        if chosen and key not in chosen:
            continue
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # the libraries' progress bars
                holds, figure = check(work)
        except AssertionError as error:
            holds, figure = False, str(error)
        except Exception:
            holds, figure = False, traceback.format_exc(limit=-2).strip().replace("\n", " | ")
        ran, failed = ran + 1, failed + (not holds)
        print(f"{'PASS' if holds else 'FAIL'} {key:<2} {what}: {figure}", flush=True)
    print(f"{ran - failed} of {ran} passed")
    return 1 if failed or not ran else 0


sys.exit(main())
