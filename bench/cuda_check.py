#!/usr/bin/env python3
"""Run cuda_check and PyTorch on this machine's GPU, and write one table and one JSON file.

usage: cuda_check.py [--binary ./cuda_check] [--minilm ./minilm-int8] [--out DIR]

Runs unattended: reports and skips what is missing. The exit code is cuda_check's: 0 if every check passes.
Needs libcuda, libnvrtc and CUDA's headers ($CUDA_PATH, or /usr/local/cuda). PyTorch is optional.
"""

import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# Our figure, their figure, and the target ratio of speeds.
AGAINST = [
    ("int8 linear {}", "torch._int_mm {}", 0.7),
    ("int8 linear {}", "torch bf16 matmul {}", 1.0),
    ("int8 linear {}", "torchao int8 dynamic {}", 1.0),
    ("50 % sparse int8 linear {}", "int8 linear {}", 0.8),
]
SHAPES = [[4096, 4096, 4096]] + [[m, 11008, 4096] for m in (512, 1024, 2048, 4096)]
TORCH_SECONDS = 200


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=HERE / "cuda_check")
    parser.add_argument("--minilm", type=pathlib.Path, default=HERE / "minilm-int8")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--quick", action="store_true", help="small shapes and no speed")
    return parser.parse_args()


def ours(args):
    path = args.out / "cuda_check.json"
    path.unlink(missing_ok=True)
    command = [str(args.binary), str(args.minilm), "--out", str(path)] + (["--quick"] if args.quick else [])
    code = subprocess.run(command).returncode
    return code, json.loads(path.read_text()) if path.exists() else []


def theirs():
    """Returns PyTorch's figures, or a line that says why there are none."""
    for script in (HERE / "cuda_torch.py", HERE / "peers" / "cuda_torch.py"):
        if script.exists():
            break
    try:
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        return {"figures": [], "error": f"cuda_torch.py took longer than {TORCH_SECONDS} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return {"figures": [], "error": f"cuda_torch.py: {reason}"}
    return json.loads(lines[-1])


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
    copy = figures.get("copy of 1 GiB (read and written)")
    gemv = figures.get("weight-only int8, dense, M = 1, 4096x11008")
    if copy and gemv:
        rows.append(("weight-only int8, M = 1", "copy bandwidth", gemv / copy, 0.75, gemv / copy >= 0.75))
    int8, bf16 = (figures.get(f"MiniLM, 256 texts of 128 tokens, {kind}") for kind in ("int8", "burn bf16"))
    if int8 and bf16:
        rows.append(("MiniLM int8, 256 texts", "burn bf16", bf16 / int8, 1.0, bf16 >= int8))
    return rows


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    code, found = ours(args)
    peers = {"figures": [], "error": "not asked for"} if args.quick else theirs()
    figures = {each["name"]: each["value"] for each in found + peers["figures"] if each.get("value") is not None}
    rows = ratios(figures)
    print()
    if "error" in peers:
        print(f"PyTorch: {peers['error']}")
    for each in peers["figures"]:
        print(f"{each['name']:<72} {each['value']:>10.1f} {each['unit']}" if "value" in each else f"{each['name']}: {each['error']}")
    for mine, other, ratio, wanted, holds in rows:
        print(f"{ratio:6.2f}x  wanted {wanted:.2f}x {'ok    ' if holds else 'missed'}  {mine} / {other}")
    table = [dict(zip(("ours", "theirs", "ratio", "wanted", "holds"), row)) for row in rows]
    report = {"checks": found, "torch": peers, "ratios": table, "exit_code": code}
    (args.out / "cuda_report.json").write_text(json.dumps(report, indent=1))
    sys.exit(code)


main()
