"""Time the products and models of cuda_check with PyTorch on this machine's GPU, and print one JSON object a line.

usage: cuda_torch.py

Times torch._int_mm alone, a bf16 matmul, and torchao's dynamic int8 linear, plain and compiled if it compiles. Figures are medians
over rounds of calls on rotating weights that exceed the caches. Models are those of transformers and torchvision, with random weights.
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


def bert(n_layers):
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=n_layers, num_attention_heads=12, intermediate_size=1536,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    return BertModel(config, add_pooling_layer=False).cuda()


def minilm(shape, dtype):
    model = bert(6).eval().to(dtype)
    ids = torch.randint(0, 30000, shape, device="cuda")
    with torch.inference_mode():
        return 1e3 * seconds(lambda _: model(ids))


def resnet152(dtype):
    from torchvision.models import resnet152

    model = resnet152().cuda().eval().to(dtype)
    images = torch.rand(32, 3, 224, 224, device="cuda", dtype=dtype)
    with torch.inference_mode():
        return 1e3 * seconds(lambda _: model(images))


def decoder(dtype):
    """Returns the median milliseconds of a token after a prompt of 128 tokens."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, max_position_embeddings=2048, tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).cuda().eval().to(dtype)
    cache, tokens, times = DynamicCache(config=config), torch.randint(0, 49000, (1, 128), device="cuda"), []
    with torch.inference_mode():
        for _ in range(80):
            start = time.perf_counter()
            logits = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            tokens = torch.tensor([[logits.flatten().argmax().item()]], device="cuda")
            times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[16:])


def distillation():
    """Returns the median milliseconds of a step from 6 to 3 layers, and the peak of allocated memory in MB."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    teacher, student = bert(6).eval(), bert(3)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    ids, times = torch.randint(0, 30000, (32, 128), device="cuda"), []
    for _ in range(20):
        start = time.perf_counter()
        with torch.inference_mode():
            target = teacher(ids).last_hidden_state.mean(1)
        loss = torch.nn.functional.mse_loss(student(ids).last_hidden_state.mean(1), target.clone())
        loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times), torch.cuda.max_memory_allocated() / 1e6


def attempt(name, unit, measure):
    """Prints a figure, or the reason why there is none."""
    try:
        line = {"name": name, "value": measure(), "unit": unit}
    except Exception as error:  # noqa: BLE001: after any error, the other figures are still measured
        line = {"name": name, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    print(json.dumps(line), flush=True)


def main():
    print(json.dumps({"name": f"torch {torch.__version__} on {torch.cuda.get_device_name()}", "value": 1, "unit": ""}), flush=True)
    x = torch.ones(256 << 20, device="cuda")
    attempt("torch copy of 1 GiB (read and written)", "GB/s", lambda: 8 * x.numel() / seconds(lambda _: x * 2.0) / 1e9)
    del x
    for shape in SHAPES:
        attempt(f"torch._int_mm {list(shape)}", "TOP/s", lambda: tops(shape, int_mm(shape)))
        attempt(f"torch bf16 matmul {list(shape)}", "TOP/s", lambda: tops(shape, bf16(shape)))
    for kind, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        for texts, tokens in ((256, 128), (64, 512)):
            attempt(f"MiniLM, {texts} texts of {tokens} tokens, torch {kind}", "ms", lambda: minilm((texts, tokens), dtype))
        attempt(f"ResNet-152, 32 images, torch {kind}", "ms", lambda: resnet152(dtype))
        attempt(f"a token of SmolLM2-135M, torch {kind}", "ms", lambda: decoder(dtype))
    steps = []
    attempt("a step of [32, 128], 6 to 3 layers, torch", "ms", lambda: steps.extend(distillation()) or steps[0])
    attempt("a step of [32, 128], 6 to 3 layers, torch, peak", "MB", lambda: steps[1])
    for shape in SHAPES:
        attempt(f"torchao int8 dynamic {list(shape)}", "TOP/s", lambda: tops(shape, torchao(shape, False)))
    attempt(f"torchao int8 dynamic, compiled {list(SHAPES[0])}", "TOP/s", lambda: tops(SHAPES[0], torchao(SHAPES[0], True)))


main()
