"""Time the products of cuda_check with PyTorch on this machine's GPU, and print one JSON object.

usage: cuda_torch.py

Times torch._int_mm alone, a bf16 matmul, and torchao's dynamic int8 linear, plain and compiled if it compiles. Figures are medians
over rounds of calls on rotating weights that exceed the caches.
"""

import json
import statistics
import time

import torch

ROUNDS = 15
ROTATED = 256 << 20
SHAPES = [(4096, 4096, 4096)] + [(m, 11008, 4096) for m in (512, 1024, 2048, 4096)]


def seconds(call):
    """Returns the median time of a call, over rounds of as many calls as take 20 ms."""
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    n = int(min(max(0.02 / ((time.perf_counter() - start) / 3), 3), 2000))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for i in range(n):
            call(i)
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) / n)
    return statistics.median(rounds)


def tops(shape, time_of_call):
    m, n, k = shape
    return 2 * m * n * k / time_of_call / 1e12


def copies(n, k):
    return min(max(ROTATED // (n * k), 2), 16)


def int_mm(shape):
    m, n, k = shape
    x = torch.randint(-128, 128, (m, k), dtype=torch.int8, device="cuda")
    weights = [torch.randint(-128, 128, (n, k), dtype=torch.int8, device="cuda") for _ in range(copies(n, k))]
    return seconds(lambda i: torch._int_mm(x, weights[i % len(weights)].t()))


def bf16(shape):
    m, n, k = shape
    x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    weights = [torch.randn(n, k, dtype=torch.bfloat16, device="cuda") for _ in range(copies(n, 2 * k))]
    return seconds(lambda i: x @ weights[i % len(weights)].t())


def torchao(shape, compiled):
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    m, n, k = shape
    x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    layers = []
    for _ in range(copies(n, k)):
        layer = torch.nn.Sequential(torch.nn.Linear(k, n, device="cuda", dtype=torch.bfloat16))
        quantize_(layer, Int8DynamicActivationInt8WeightConfig())
        layers.append(torch.compile(layer, mode="max-autotune-no-cudagraphs") if compiled else layer)
    with torch.no_grad():
        return seconds(lambda i: layers[i % len(layers)](x))


def attempt(name, unit, measure, found):
    """Returns a figure, or the reason why there is none."""
    try:
        found.append({"name": name, "value": measure(), "unit": unit})
    except Exception as error:  # noqa: BLE001: after any error, the other figures are still measured
        found.append({"name": name, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]})


def main():
    found = []
    x = torch.ones(256 << 20, device="cuda")
    attempt("copy of 1 GiB (read and written)", "GB/s", lambda: 8 * x.numel() / seconds(lambda _: x * 2.0) / 1e9, found)
    for shape in SHAPES:
        attempt(f"torch._int_mm {list(shape)}", "TOP/s", lambda: tops(shape, int_mm(shape)), found)
        attempt(f"torch bf16 matmul {list(shape)}", "TOP/s", lambda: tops(shape, bf16(shape)), found)
        attempt(f"torchao int8 dynamic {list(shape)}", "TOP/s", lambda: tops(shape, torchao(shape, False)), found)
    attempt(f"torchao int8 dynamic, compiled {list(SHAPES[0])}", "TOP/s", lambda: tops(SHAPES[0], torchao(SHAPES[0], True)), found)
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "figures": found}))


main()
