"""Properties of the processor, found by computing, against Linux's flags and arithmetic."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import Artifact, load_artifact, write_manifest
from model.errors import ProviderError
from model.runtimes import openvino
from model.runtimes.openvino import computes_bfloat16, saturates
from model.runtimes.registry import has_products, load_runtime, weight_bits
from tests.conftest import LESSER
from tests.model.refusals import refused

CPUINFO = Path("/proc/cpuinfo")
EXACT = {"avx512_vnni", "avx_vnni", "amx_int8"}
"""Instructions of x86 for 8-bit products summed in 32 bits, with Linux's names."""
CAPPED = "ONEDNN_MAX_CPU_ISA" in os.environ


def capped(
    program: str, *arguments: str, isa: str = LESSER["ONEDNN_MAX_CPU_ISA"]
) -> subprocess.CompletedProcess[str]:
    """Run a Python program as on this processor with no more than these instructions."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": isa},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(CAPPED or not CPUINFO.exists(), reason="needs Linux, and all instructions")
def test_it_is_what_the_processors_flags_say() -> None:
    lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), None)
    if flags is None:
        pytest.skip("not x86")
    assert saturates() == EXACT.isdisjoint(flags)
    assert computes_bfloat16() <= (not saturates())


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_the_cap_makes_it_the_lesser_kind(isa: str) -> None:
    """VPMADDUBSW's sum of two products is at most 32767, instead of 2 · 255 · 127."""
    program = (
        "from model.runtimes.openvino import _largest_product, computes_bfloat16, saturates\n"
        "from model.runtimes.registry import has_products, weight_bits\n"
        "print(saturates(), computes_bfloat16(), weight_bits('int8'), weight_bits('bf16'))\n"
        "print(*map(has_products, ('fp32', 'fp16', 'bf16', 'int8')))\n"
        "print(*{float(x) for x in _largest_product().flatten()})"
    )
    done = capped(program, isa=isa)
    said = done.stdout.splitlines()
    assert said[:2] == ["True False 7 None", "True True False False"], done.stderr
    assert [float(x) for x in said[2].split()] == [32 * 32767]


@pytest.mark.parametrize("found", [np.nan, 0.0, 0.506 * 64 * 255 * 127])
def test_what_is_not_clear_is_taken_to_saturate(
    found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "_largest_product", lambda: np.full((1, 2), found))
    assert saturates.__wrapped__()
    monkeypatch.setattr(openvino, "_largest_product", lambda: np.full((1, 2), 64.0 * 255 * 127))
    assert not saturates.__wrapped__()


def test_each_precision_asks_for_its_own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor may have VNNI without bfloat16."""
    monkeypatch.setattr(openvino, "saturates", lambda: False)
    monkeypatch.setattr(openvino, "computes_bfloat16", lambda: False)
    assert (has_products("int8"), has_products("bf16"), weight_bits("int8")) == (True, False, 8)


def of_bits(artifact: Artifact, folder: Path, bits: int | None) -> Path:
    """Return a copy whose manifest states this number of weight bits."""
    shutil.copytree(artifact.folder, folder)
    write_manifest(folder, artifact.manifest.model_copy(update={"weight_bits": bits}))
    return folder


@pytest.mark.parametrize("bits", [8, None])
def test_8_bit_weights_are_refused_where_products_saturate(
    tiny_int8: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int | None
) -> None:
    """None is an export from before there were two kinds."""
    artifact = load_artifact(of_bits(tiny_int8, tmp_path / "int8", bits))
    monkeypatch.setattr("model.runtimes.openvino.saturates", lambda: True)
    refused(ProviderError, "export the model to int8 here", load_runtime, artifact)


def test_7_bit_weights_are_taken_everywhere(
    tiny_int8: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = load_artifact(of_bits(tiny_int8, tmp_path / "int8", 7))
    for answer in (True, False):
        monkeypatch.setattr("model.runtimes.openvino.saturates", lambda answer=answer: answer)
        assert load_runtime(artifact).config == artifact.manifest.config


def test_serving_8_bit_weights_there_is_one_line(tiny_int8: Artifact, tmp_path: Path) -> None:
    folder = of_bits(tiny_int8, tmp_path / "int8", 8)
    program = "import sys; from service.cli import main; sys.exit(main(sys.argv[1:]))"
    done = capped(program, "serve", "--artifact", str(folder), "--port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("headscope serve: this artifact's 8-bit weights give wrong sums")
