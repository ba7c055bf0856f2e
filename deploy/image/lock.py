"""Lock files of the image: every package of a variant with the hashes of its files on PyPI.

`python -m deploy.image.lock` writes `deploy/image/locks/<variant>.txt` for
`pip install --require-hashes`, by `uv pip compile` under constraints.txt.
Format: https://pip.pypa.io/en/stable/topics/secure-installs/
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from deploy.image.variants import BUILDING, ELSEWHERE, OF_CUDA_TORCH, SERVING, Variant

ROOT = Path(__file__).resolve().parents[2]
LOCKS = Path(__file__).parent / "locks"
OPTIONS = [
    *("--generate-hashes", "--no-annotate", "--no-header", "--no-config", "--quiet"),
    *("--python-version=3.11", "--python-platform=x86_64-manylinux_2_28", "--system-certs"),
    *("--default-index=https://pypi.org/simple", "--constraint=constraints.txt"),
]


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
