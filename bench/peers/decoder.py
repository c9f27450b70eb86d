#!/usr/bin/env python3
"""Measure a decoder's latency in torch or llama.cpp, in windows of tokens and one token at a time.

usage: decoder.py torch MODEL TOKENS [--engines "f32,fbgemm,onednn"] [--threads 1] [--windows 128,512] [--prompt 128] [--steps 64]
                  [--seconds 3]
       decoder.py llama.cpp FILE.gguf TOKENS --libraries DIR [the same]
       decoder.py tokens MODEL TEXT COUNT

Prints JSON lines in the format of bench_decoder, an example of briquette-eval. TOKENS is a JSON file with a list of tokens; the
`tokens` form prints one. The time of a window is from its tokens to the logits of every position. `nll` is computed from these
logits and is not timed. torch's integer engines are quantize_dynamic of every Linear, with one scale per row. The forms `tokens`
and `torch` need transformers; `llama.cpp` needs only numpy.
"""

import argparse
import ctypes
import json
import pathlib
import resource
import time
import warnings

warnings.filterwarnings("ignore")
from common import emit, rss_mb, set_threads

CONTEXT = 1024


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("of", choices=["torch", "llama.cpp", "tokens"])
    p.add_argument("model")
    p.add_argument("tokens", type=pathlib.Path)
    p.add_argument("count", type=int, nargs="?")
    numbers = lambda text: [int(n) for n in text.split(",") if n]
    p.add_argument("--engines", default="f32,fbgemm,onednn")
    p.add_argument("--libraries", type=pathlib.Path)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--windows", type=numbers, default=[128, 512])
    p.add_argument("--prompt", type=int, default=128)
    p.add_argument("--steps", type=int, default=64)
    p.add_argument("--seconds", type=float, default=3)
    return p.parse_args()


# ---- measuring -------------------------------------------------------------------------------------------------------


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(call, least, seconds):
    """Returns best, median and mean CPU milliseconds of at least `least` calls, for at least `seconds`."""
    each, start, cpu = [], time.perf_counter(), cpu_seconds()
    while len(each) < least or time.perf_counter() - start < seconds:
        begun = time.perf_counter()
        call()
        each.append(time.perf_counter() - begun)
    cpu = (cpu_seconds() - cpu) / len(each)
    each.sort()
    return {"ms": each[0] * 1e3, "median_ms": each[len(each) // 2] * 1e3, "cpu_ms": cpu * 1e3}


def measure(args, name, runner):
    tokens = json.loads(args.tokens.read_text())
    for window in args.windows:
        runner.window(tokens[:window])
        figures = timed(lambda: runner.window(tokens[:window]), 5, args.seconds)
        emit(engine=name, what=f"window {window}", **figures, peak_bytes=int(rss_mb() * 2**20), nll=runner.nll(tokens[:window]))
    if args.steps:
        runner.begin(tokens[: args.prompt])
        figures = timed(runner.step, args.steps, 0)
        emit(engine=name, what=f"token after {args.prompt}", **figures, peak_bytes=int(rss_mb() * 2**20), nll=0)


def mean_nll(scores, tokens):
    """Returns the mean negative log-likelihood of all tokens but the first."""
    import numpy as np

    scores = np.asarray(scores[:-1], np.float64)
    most = scores.max(1, keepdims=True)
    sums = np.log(np.exp(scores - most).sum(1)) + most[:, 0]
    return float((sums - scores[np.arange(len(scores)), tokens[1:]]).mean())


# ---- torch -----------------------------------------------------------------------------------------------------------


class Torch:
    def __init__(self, model):
        self.model = model

    def window(self, tokens):
        import torch

        with torch.inference_mode():
            self.scores = self.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]

    def nll(self, tokens):
        return mean_nll(self.scores.numpy(), tokens)

    def begin(self, tokens):
        self.past, self.next = None, tokens
        self.step()

    def step(self):
        import torch

        with torch.inference_mode():
            found = self.model(input_ids=torch.tensor([self.next]), past_key_values=self.past, use_cache=True)
            self.past, self.next = found.past_key_values, [int(found.logits[0, -1].argmax())]


def torch_runners(args):
    import torch
    import torch.ao.quantization as tq
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    plain = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    for engine in args.engines.split(","):
        if engine == "f32":
            yield f"torch {engine}", Torch(plain)
            continue
        torch.backends.quantized.engine = engine
        yield f"torch {engine}", Torch(tq.quantize_dynamic(plain, {torch.nn.Linear: tq.per_channel_dynamic_qconfig}, dtype=torch.qint8))


# ---- llama.cpp -------------------------------------------------------------------------------------------------------


class ModelParams(ctypes.Structure):
    """`llama_model_params` of this version of the libraries. Passed by value without changes."""

    _fields_ = [("all", ctypes.c_uint64 * 10)]


class ContextParams(ctypes.Structure):
    """`llama_context_params`, of which one field is changed."""

    _fields_ = [("n_ctx", ctypes.c_uint32), ("rest", ctypes.c_uint32 * 39)]


class Batch(ctypes.Structure):
    """`llama_batch` of the libraries."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class LlamaCpp:
    def __init__(self, path, libraries, threads):
        import llama_cpp

        ctypes.CDLL(str(libraries / llama_cpp.BACKENDS)).ggml_backend_load_all_from_path(str(libraries).encode())
        lib = self.lib = ctypes.CDLL(str(libraries / llama_cpp.LIBRARY))
        self.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        lib.llama_log_set(self.quiet, None)
        lib.llama_model_default_params.restype = ModelParams
        lib.llama_context_default_params.restype = ContextParams
        lib.llama_batch_init.restype = Batch
        for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory", "llama_model_get_vocab"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.llama_get_logits.restype = lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
        lib.llama_backend_init()
        model = ctypes.c_void_p(lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params()))
        params = lib.llama_context_default_params()
        params.n_ctx = CONTEXT
        self.context = ctypes.c_void_p(lib.llama_init_from_model(model, params))
        if not self.context:
            raise SystemExit(f"{path}: llama.cpp cannot load it")
        lib.llama_set_n_threads(self.context, threads, threads)
        self.n_vocab = lib.llama_vocab_n_tokens(ctypes.c_void_p(lib.llama_model_get_vocab(model)))
        self.batch = lib.llama_batch_init(CONTEXT, 0, 1)

    def decode(self, tokens, first, all_scores):
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, first + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = all_scores or i + 1 == len(tokens)
        if self.lib.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama.cpp cannot run it")
        self.lib.llama_synchronize(self.context)

    def forget(self):
        self.lib.llama_memory_clear(ctypes.c_void_p(self.lib.llama_get_memory(self.context)), ctypes.c_bool(True))

    def window(self, tokens):
        self.forget()
        self.decode(tokens, 0, True)

    def nll(self, tokens):
        import numpy as np

        scores = np.ctypeslib.as_array(self.lib.llama_get_logits(self.context), (len(tokens), self.n_vocab))
        return mean_nll(scores, tokens)

    def begin(self, tokens):
        self.forget()
        self.next, self.n = tokens, 0
        self.step()

    def step(self):
        import numpy as np

        self.decode(self.next, self.n, False)
        self.n += len(self.next)
        scores = self.lib.llama_get_logits_ith(self.context, -1)
        self.next = [int(np.ctypeslib.as_array(scores, (self.n_vocab,)).argmax())]


def main():
    args = arguments()
    set_threads(args.threads)
    if args.of == "tokens":
        from transformers import AutoTokenizer

        text = args.tokens.read_text(encoding="utf-8")
        print(json.dumps(AutoTokenizer.from_pretrained(args.model)(text)["input_ids"][: args.count]))
    elif args.of == "torch":
        for name, runner in torch_runners(args):
            measure(args, name, runner)
    else:
        measure(args, f"llama.cpp {pathlib.Path(args.model).stem}", LlamaCpp(args.model, args.libraries, args.threads))


if __name__ == "__main__":
    main()
