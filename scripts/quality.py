#!/usr/bin/env python3
"""Measure each method that uses data on MiniLM and SmolLM2, and print a table.

usage: quality.py BRIQUETTE [minilm|smollm2 ...]

Recipes, outputs and results are in bench-out/quality-own. Existing outputs are reused.
"""

import json
import pathlib
import subprocess
import sys

OUT = pathlib.Path("bench-out/quality-own")
MODELS = {
    "minilm": {
        "metric": "cosine",
        "exclude": 'exclude = ["pooler.**"]\n',
        "calibration": ("fixtures/sentences/train.txt", 1024, 64),
        "data": ("fixtures/sentences/held-out.txt", 64),
        "share": 0.4,
        "schemes": ["int4-g32", "int3-g32"],
        "also": '[[stage]]\nkind = "quantize"\nscheme = "int8"\nroles = ["embedding"]\n',
    },
    "smollm2": {
        "metric": "perplexity",
        "exclude": "",
        "calibration": ("models/brown/calibrate.txt", 64, 512),
        "data": ("models/brown/test-20k.txt", 512),
        "share": 0.5,
        "schemes": ["int4-g64", "int3-g64"],
        "also": "",
    },
}


def prune(model, method):
    method, _, scope = method.partition("+")
    scope = f'scope = "{scope}"\n' if scope else ""
    keys = f'method = "{method}"\n{scope}sparsity = {model["share"]}\nroles = ["linear"]\n{model["exclude"]}'
    return f'[[stage]]\nkind = "prune"\n{keys}'


def quantize(model, scheme, how):
    keys = f'scheme = "{scheme}"\nscale = "f16"\n{how}roles = ["linear"]\n{model["exclude"]}'
    return f'[[stage]]\nkind = "quantize"\n{keys}{model["also"]}'


def stages(model):
    """Yields each way to compress: its name, its stages, and whether it uses data."""
    for method in ("magnitude", "wanda", "sparsegpt", "admm", "wanda+owl", "sparsegpt+owl"):
        yield f"{method} {model['share']:.0%}", prune(model, method), method != "magnitude"
    for scheme in model["schemes"]:
        yield f"{scheme} nearest", quantize(model, scheme, ""), False
        yield f"{scheme} weighted", quantize(model, scheme, 'range = "weighted"\n'), True
        yield f"{scheme} gptq", quantize(model, scheme, 'round = "gptq"\n'), True
        yield f"{scheme} gptq weighted", quantize(model, scheme, 'range = "weighted"\nround = "gptq"\n'), True


def recipe(name, model, output, stage, looks):
    here = pathlib.Path.cwd()
    data, samples, length = model["calibration"]
    calibration = f'[calibration]\ndata = "{here / data}"\nsamples = {samples}\nmax_length = {length}\n'
    return (
        f'[model]\npath = "{here / "models" / name}"\n[output]\npath = "{here / output}"\n'
        f'{calibration if looks else ""}{stage}'
    )


def evaluated(briquette, name, model, output):
    """Returns the metric of an output on held-out data; encoders are compared with the original model."""
    kept = output.with_suffix(".json")
    if not kept.exists():
        data, length = model["data"]
        against = ["--against", f"models/{name}"] if model["metric"] == "cosine" else []
        line = [briquette, "eval", output, "--data", data, "--max-length", str(length), "--json", "--quiet", *against]
        kept.write_text(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    return json.loads(kept.read_text())["metrics"][model["metric"]]


def main():
    briquette, names = sys.argv[1], sys.argv[2:] or list(MODELS)
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names:
        model = MODELS[name]
        print(f"\n| {name} | {model['metric']} | weight files | solving |\n|---|---|---|---|", flush=True)
        for what, stage, looks in stages(model):
            output = OUT / f"{name}-{what.replace(' ', '-').replace('%', '')}"
            report = output / "report.json"
            if not report.exists():
                path = output.with_suffix(".toml")
                path.write_text(recipe(name, model, output, stage, looks))
                subprocess.run([briquette, "run", str(path), "--quiet"], check=True, stdout=subprocess.DEVNULL)
            found = json.loads(report.read_text())
            evaluation = found.get("evaluation") or {"metrics": {}}
            metric = evaluation["metrics"].get(model["metric"]) or evaluated(briquette, name, model, output)
            seconds = dict(found["seconds"]).get("solve")
            solving = f"{seconds:.0f} s" if seconds else ""
            print(f"| {what} | {metric:.4f} | {found['after']['file_bytes'] / 1e6:.2f} MB | {solving} |", flush=True)


if __name__ == "__main__":
    main()
