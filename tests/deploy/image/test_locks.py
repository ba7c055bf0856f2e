"""Lock files of the image: hashes, pinned versions, and the packages that serving needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from deploy.image.lock import BUILDING, ELSEWHERE, LOCKS, SERVING, requirements, without_torch

ROOT = Path(__file__).resolve().parents[3]
LINE = re.compile(r"([a-z0-9-]+)(?:\[[a-z,]+\])?==([\w.]+)")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(name: str) -> dict[str, str]:
    """Return the versions by package of a lock file, and check that each has only hashes."""
    text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8").replace(" \\\n", "\n")
    found = {}
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]:
        first, *hashes = block.splitlines()
        package = LINE.fullmatch(first)
        assert package, first
        assert hashes, first
        assert all(HASH.fullmatch(line) for line in hashes), first
        found[package[1]] = package[2]
    return found


CONSTRAINTS = {
    normal(name): version
    for name, version in (
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()
    )
}


def test_there_is_a_lock_file_a_variant() -> None:
    assert {path.stem for path in LOCKS.iterdir()} == {*SERVING, *BUILDING, "pytorch"}


def test_pytorch_has_the_hashes_of_its_own_index() -> None:
    assert locked("pytorch").keys() == {ELSEWHERE}


@pytest.mark.parametrize("name", [*SERVING, *BUILDING, "pytorch"])
def test_a_lock_agrees_with_the_constraints(name: str) -> None:
    versions = locked(name)
    shared = versions.keys() & CONSTRAINTS.keys()
    assert versions.items() >= {package: CONSTRAINTS[package] for package in shared}.items()
    if name in SERVING:
        loose = versions.keys() - shared
        assert all(package.startswith("nvidia-") for package in loose), loose


@pytest.mark.parametrize("name", SERVING)
def test_a_lock_has_every_requirement_of_its_variant(name: str) -> None:
    declared = {normal(re.split(r"[^\w.-]", line)[0]) for line in requirements(SERVING[name])} - {
        "torch"
    }
    assert declared <= locked(name).keys()


@pytest.mark.parametrize("name", SERVING)
def test_a_variant_has_one_runtime_and_torch_where_it_exports(name: str) -> None:
    versions = locked(name)
    gpu = name == "cuda"
    assert ("onnxruntime-gpu" in versions, "onnxruntime" in versions) == (gpu, not gpu)
    assert ("onnxscript" in versions) == (name == "torch")
    assert ("openvino" in versions) == (name in ("openvino", "torch"))
    assert any(package.startswith("nvidia-") for package in versions) == gpu
    assert not {"torch", "triton"} & versions.keys()


def test_a_variant_requires_what_its_extras_do() -> None:
    extras = PROJECT["optional-dependencies"]
    text = (ROOT / "clients" / "python" / "pyproject.toml").read_text(encoding="utf-8")
    client = tomllib.loads(text)["project"]["dependencies"]
    expected = PROJECT["dependencies"] + extras["cpu"] + client + extras["tracing"]
    assert requirements(SERVING["cpu"]) == expected


def test_of_torch_only_what_its_build_for_a_cpu_needs_is_kept() -> None:
    lock = (
        "sympy==1 \\\n    --hash=a\ntorch==2 \\\n    --hash=b\nnvidia-x==3 \\\n    --hash=c\nz==4\n"
    )
    assert without_torch(lock) == "sympy==1 \\\n    --hash=a\nz==4\n"
