"""Time of a batch by operator and by kernel, which shows where the gap to the limit arises.

ONNX Runtime's profile names the graphs' operators. On a GPU it times their launch, not their work,
so PyTorch's profiler also records the kernels of the whole process.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import onnxruntime
import torch

from benchmarks.harness.bench import Bench
from benchmarks.harness.encoding import Encoding
from benchmarks.harness.figures import Figure, not_measured
from benchmarks.harness.texts import of_length
from model.numerics.batch import Batch, pack
from model.runtimes.registry import load_runtime

TOP, RUNS, LENGTH = 10, 3, 128


def measure(bench: Bench) -> Iterator[Figure]:
    for model in (bench.model, bench.base):
        encoding = bench.encoding(model, "fp16")
        s = min(LENGTH, encoding.config.max_position_embeddings)
        budget = bench.sizes.batch_tokens[-1]
        texts = of_length(s, budget, encoding.raw_tokenizer()).texts
        batch = pack(encoding.tokenize(texts))
        name = f"{model.name}, {len(texts)} texts, S = {s}"
        yield summary(f"{name}, operators", operators(bench, encoding, batch))
        if bench.cuda:
            yield summary(f"{name}, kernels", kernels(encoding, batch))
        else:
            yield not_measured(f"{name}, kernels", "needs a GPU")


def summary(name: str, microseconds: Counter[str]) -> Figure:
    """Return the figure of one run: the top three in the table, the top ten in JSON."""
    total = sum(microseconds.values())
    top = microseconds.most_common(TOP)
    shares = ", ".join(f"{what[:40]} {spent / total:.0%}" for what, spent in top[:3])
    details = {"top_microseconds": {what: spent / RUNS for what, spent in top}}
    return Figure(name, total / RUNS / 1000, "ms", note=shares, details=details)


def operators(bench: Bench, encoding: Encoding, batch: Batch) -> Counter[str]:
    """Return the microseconds of each operator, from ONNX Runtime's profiles of all sessions.

    Raises:
        RuntimeError: ONNX Runtime wrote no profile.

    """
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.object(onnxruntime, "SessionOptions", profiling_into(Path(folder))):
            runtime = load_runtime(encoding.artifact, bench.options.device)
        profiled = Encoding(encoding.artifact, runtime)
        for _ in range(1 + RUNS):
            profiled.pooled(batch)
        del profiled, runtime  # a session writes its profile when it is deleted
        total: Counter[str] = Counter()
        for path in Path(folder).iterdir():
            total += spent(json.loads(path.read_text(encoding="utf-8")))
    if not total:
        raise RuntimeError("ONNX Runtime wrote no profile")
    return total


def profiling_into(folder: Path) -> Callable[[], onnxruntime.SessionOptions]:
    """Return a factory of options; each session writes its profile into a file of its own."""
    make, numbers = onnxruntime.SessionOptions, itertools.count()

    def options() -> onnxruntime.SessionOptions:
        made = make()
        made.enable_profiling = True
        made.profile_file_prefix = str(folder / str(next(numbers)))
        return made

    return options


def spent(events: list[dict[str, Any]]) -> Counter[str]:
    """Return the microseconds by operator, over all runs of a session except the first."""
    runs = sorted(event["ts"] for event in events if event["name"] == "model_run")
    total: Counter[str] = Counter()
    for event in events:
        of_a_node = event["cat"] == "Node" and event["name"].endswith("_kernel_time")
        if of_a_node and len(runs) > 1 and event["ts"] >= runs[1]:
            total[event["args"]["op_name"]] += event["dur"]
    return total


def kernels(encoding: Encoding, batch: Batch) -> Counter[str]:
    """Return the microseconds of each kernel and copy on the device, of all libraries."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    encoding.pooled(batch)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(RUNS):
            encoding.pooled(batch)
    return Counter({event.key: int(event.device_time_total) for event in profile.key_averages()})
