#!/usr/bin/env python3
"""Run cuda_check and PyTorch on this machine's GPU, and write one table and one JSON file.

usage: cuda_check.py [--binary ./cuda_check] [--minilm ./minilm-int8] [--out DIR] [--sections NAME,NAME] [--quick]

Runs unattended: reports and skips what is missing. The exit code is 0 if every check passes.
Needs libcuda, libnvrtc and CUDA's headers ($CUDA_PATH, or /usr/local/cuda). PyTorch is optional.
"""

import argparse
import concurrent.futures
import itertools
import json
import operator
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Our figure, their figure, and the target ratio of speeds.
AGAINST = [
    ("int8 linear {}", "torch._int_mm {}", 0.7),
    ("int8 linear in bf16 {}", "torch bf16 matmul {}", 1.0),
    ("int8 linear in bf16 {}", "torchao int8 dynamic {}", 1.0),
    ("int8 linear in bf16 {}", "torchao int8 dynamic, compiled {}", 1.0),
    ("50 % sparse int8 linear {}", "int8 linear {}", 0.8),
]
SHAPES = [[4096, 4096, 4096]] + [[m, 11008, 4096] for m in (512, 1024, 2048, 4096)]
# The sections that measure memory or speed.
MEASURING = ("MiniLM", "ResNet", "distillation", "speed")
SECTION_SECONDS = 100
TORCH_SECONDS = 200


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=HERE / "cuda_check")
    parser.add_argument("--minilm", type=pathlib.Path, default=HERE / "minilm-int8")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--sections", help="run these sections of cuda_check only, and not PyTorch; commas between them")
    parser.add_argument("--quick", action="store_true", help="small shapes and no speed")
    return parser.parse_args()


def run_section(args, section):
    """Runs a section in a process of its own, since some errors of a device end all later work of a process."""
    path = args.out / f"{section.replace(' ', '-')}.json"
    path.unlink(missing_ok=True)
    command = [str(args.binary), str(args.minilm), "--section", section, "--out", str(path)] + (["--quick"] if args.quick else [])
    start = time.monotonic()
    try:
        done = subprocess.run(command, timeout=SECTION_SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        printed, why = done.stdout, f"it wrote no findings: {(done.stdout.strip().splitlines() or ['nothing printed'])[-1]}"
    except subprocess.TimeoutExpired as expired:
        printed, why = (expired.stdout or b"").decode(), f"it took longer than {SECTION_SECONDS} s"
    print(f"{printed}{section}: {time.monotonic() - start:.1f} s", flush=True)
    if path.exists():
        return json.loads(path.read_text())
    return [{"section": section, "name": why, "value": None, "unit": "", "wanted": "findings", "failed": True}]


def ours(args):
    """Runs the sections: those that measure nothing together, then the others one by one."""
    listed = subprocess.run([str(args.binary), "--sections"], capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = [section for section in listed if not args.sections or section in args.sections.split(",")]
    measures = [section.startswith(MEASURING) for section in wanted]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        together = pool.map(lambda section: run_section(args, section), itertools.compress(wanted, map(operator.not_, measures)))
        found = list(itertools.chain.from_iterable(together))
    for section in itertools.compress(wanted, measures):
        found += run_section(args, section)
    return found


def theirs():
    """Returns PyTorch's figures, and a line that says why some are missing."""
    script = next(path for path in (HERE / "cuda_torch.py", HERE / "peers" / "cuda_torch.py") if path.exists())
    error = None
    try:
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=TORCH_SECONDS)
        printed = done.stdout
        if done.returncode:
            error = f"cuda_torch.py: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}"
    except subprocess.TimeoutExpired as expired:
        printed = (expired.stdout or b"").decode()
        error = f"cuda_torch.py took longer than {TORCH_SECONDS} s"
    return {"figures": [json.loads(line) for line in printed.splitlines() if line.startswith("{")], "error": error}


def ratios(figures):
    """Returns rows of (ours, theirs, ratio, target, whether the target is reached)."""
    rows = []
    for mine, other, wanted in AGAINST:
        for shape in SHAPES:
            names = (mine.format(shape), other.format(shape))
            values = [figures.get(name) for name in names]
            if all(values):
                ratio = values[0] / values[1]
                rows.append((*names, ratio, wanted, ratio >= wanted))
    copy = figures.get("torch copy of 1 GiB (read and written)")
    gemv = figures.get("weight-only int8, dense, M = 1, 4096x11008")
    if copy and gemv:
        rows.append(("weight-only int8, M = 1", "copy bandwidth", gemv / copy, 0.75, gemv / copy >= 0.75))
    for work in ("MiniLM, 256 texts of 128 tokens", "MiniLM, 64 texts of 512 tokens", "ResNet-152, 32 images", "a token of SmolLM2-135M"):
        int8 = figures.get(f"{work}, int8")
        for other in ("burn bf16", "burn f32", "torch bf16", "torch f32"):
            theirs = figures.get(f"{work}, {other}")
            if int8 and theirs:
                rows.append((f"{work}, int8", other, theirs / int8, 1.0, theirs >= int8))
    return rows


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    found = ours(args)
    failed = [each for each in found if each["failed"]]
    peers = theirs() if not (args.quick or args.sections) else {"figures": [], "error": "not asked for"}
    figures = {each["name"]: each["value"] for each in found + peers["figures"] if each.get("value") is not None}
    rows = ratios(figures)
    print(f"\n{len(failed)} of {len(found)} failed")
    for each in failed:
        print(f"FAILED {each['section']}: {each['name']} {each['value']} {each['unit']}, wanted {each['wanted']}")
    if peers["error"]:
        print(f"PyTorch: {peers['error']}")
    for each in peers["figures"]:
        print(f"{each['name']:<72} {each['value']:>10.1f} {each['unit']}" if "value" in each else f"{each['name']}: {each['error']}")
    for mine, other, ratio, wanted, holds in rows:
        print(f"{ratio:6.2f}x  wanted {wanted:.2f}x {'ok    ' if holds else 'missed'}  {mine} / {other}")
    table = [dict(zip(("ours", "theirs", "ratio", "wanted", "holds"), row)) for row in rows]
    report = {"checks": found, "torch": peers, "ratios": table, "exit_code": int(bool(failed))}
    (args.out / "cuda_report.json").write_text(json.dumps(report, indent=1))
    sys.exit(bool(failed))


main()
