"""Facts of the environment: device, driver, packages, and the provider that computes."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import onnxruntime
import torch

from benchmarks.harness.bench import Bench
from benchmarks.harness.figures import Figure, not_measured

PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers", "onnx", "numpy")
QUERY = ("name", "driver_version", "memory.total", "clocks.max.sm", "power.limit")


def about() -> dict[str, Any]:
    """Return versions and counts, for JSON."""
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "onnxruntime": onnxruntime.__version__,
        "cuda": torch.version.cuda,
        "gpu": nvidia_smi(),
    }


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield each fact as a figure.

    Raises:
        RuntimeError: the requested GPU is missing.

    """
    facts = about()
    if bench.cuda:
        yield from device(facts["gpu"])
    else:
        yield not_measured("GPU", "the CPU was asked for")
    encoding = bench.encoding(bench.model, "fp32")
    yield Figure(
        "ONNX Runtime",
        onnxruntime.__version__,
        note=f"runs on {encoding.runtime.provider}",
        details={"build": onnxruntime.get_build_info(), "provider": encoding.runtime.provider},
    )
    yield Figure("processor cores", float(bench.cores), details=facts)


def device(gpu: dict[str, str]) -> Iterator[Figure]:
    """Yield the GPU, its driver and CUDA.

    Raises:
        RuntimeError: PyTorch sees no GPU, so no rate has a limit to compare with.

    """
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no CUDA device (--device cpu is a dry run)")
    yield Figure("GPU", torch.cuda.get_device_name(), details=gpu)
    yield Figure("driver", gpu.get("driver_version", "unknown: there is no nvidia-smi"))
    yield Figure("CUDA of PyTorch", str(torch.version.cuda))


def nvidia_smi() -> dict[str, str]:
    """Return nvidia-smi's values for the first device; empty if it is missing or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {}
    return dict(zip(QUERY, (cell.strip() for cell in done.stdout.split(",")), strict=False))
