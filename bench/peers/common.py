"""Code that the peer scripts share: names, timing, resource figures, JSON lines. Imports neither torch nor numpy."""

import glob
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import time

# ---- which tensors ---------------------------------------------------------------------------------------------------


def is_linear_or_conv(name, rank):
    """Returns whether a tensor is a Linear or conv weight, by name and rank, as in the peers' own scripts."""
    return name.endswith("weight") and rank >= 2 and not re.search(r"embed|norm|bn", name, re.I)


def is_embedding(name, rank):
    return name.endswith("weight") and rank == 2 and bool(re.search(r"embed", name, re.I)) and not is_norm(name)


def is_norm(name):
    return bool(re.search(r"norm|bn", name, re.I))


# ---- checkpoint directories ------------------------------------------------------------------------------------------


def weight_files(folder):
    return sorted(glob.glob(os.path.join(folder, "*.safetensors")))


def copy_config(source, out):
    for name in ("config.json", "model.safetensors.index.json"):
        if os.path.exists(os.path.join(source, name)):
            shutil.copy(os.path.join(source, name), out)


def sentences():
    """Returns 40 English sentences in 20 pairs of similar meaning: the fidelity test of MiniLM."""
    return (pathlib.Path(__file__).parent / "sentences.txt").read_text().splitlines()


# ---- one process, one job --------------------------------------------------------------------------------------------


def set_threads(n):
    """Sets the number of threads. Call it before importing torch or numpy."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(n)


class Stages:
    """Wall seconds by stage; `done(name)` ends the stage that started at the previous call."""

    def __init__(self, start):
        self.start = self.last = start
        self.seconds = {}

    def done(self, name):
        now = time.perf_counter()
        self.seconds[name] = round(self.seconds.get(name, 0) + now - self.last, 4)
        self.last = now

    def totals(self):
        """Returns the figures of the whole process: wall, CPU of all threads (start-up included), peak memory."""
        return {
            "wall_s": round(time.perf_counter() - self.start, 3),
            "cpu_s": round(time.process_time(), 3),
            "peak_mb": round(rss_mb()),
            **self.seconds,
        }


def rss_mb():
    """Returns the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def emit(**fields):
    print(json.dumps(fields), flush=True)


# ---- repeated timing -------------------------------------------------------------------------------------------------


def cpu_ticks():
    """Returns (busy, total) ticks over all CPUs; steal counts as busy."""
    with open("/proc/stat") as f:
        ticks = [int(x) for x in f.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def busy_fraction(window):
    busy, total = cpu_ticks()
    time.sleep(window)
    busy_after, total_after = cpu_ticks()
    return (busy_after - busy) / max(1, total_after - total)


def wait_quiet(max_busy=0.08, timeout=120.0, window=0.5):
    """Waits until machine-wide CPU use is at most max_busy, or for timeout seconds."""
    start = time.monotonic()
    while busy_fraction(window) > max_busy and time.monotonic() - start < timeout:
        pass


class Contention:
    """Measures `other`: the fraction of the machine's CPU that other processes used inside the block."""

    def __enter__(self):
        self.ticks, self.cpu = cpu_ticks(), time.process_time()
        return self

    def __exit__(self, *_):
        (busy, total), (busy_after, total_after) = self.ticks, cpu_ticks()
        mine = (time.process_time() - self.cpu) * os.sysconf("SC_CLK_TCK")
        self.other = max(0.0, (busy_after - busy - mine) / max(1, total_after - total))


def bench(call, n=7, warmup=2, quiet=True, target=0.05):
    """Returns seconds per call: min, med, max and n of wall time, cpu (median, all threads), other_max (contention).

    Each of the n samples repeats the call for at least `target` seconds.
    """
    for _ in range(warmup):
        call()
    start = time.perf_counter()
    call()
    repeats = max(1, int(target / max(time.perf_counter() - start, 1e-7)))
    if quiet:
        wait_quiet(timeout=float(os.environ.get("QUIET_S", "5")), window=0.2)
    wall, cpu, other = [], [], []
    for _ in range(n):
        with Contention() as contention:
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            for _ in range(repeats):
                call()
            wall.append((time.perf_counter() - wall_start) / repeats)
            cpu.append((time.process_time() - cpu_start) / repeats)
        other.append(contention.other)
    return {
        "min": round(min(wall), 6),
        "med": round(statistics.median(wall), 6),
        "max": round(max(wall), 6),
        "n": n,
        "cpu": statistics.median(cpu),
        "other_max": round(max(other), 3),
    }
