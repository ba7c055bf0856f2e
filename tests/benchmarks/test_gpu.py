"""Dry run of the GPU command on the CPU: each figure has a value or a reason."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import in_process, profiling
from benchmarks.gpu import STEPS
from tests.benchmarks.conftest import POSITIONS

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_THE_WEB = """
import runpy, sys
for name in ("fastapi", "starlette", "uvicorn", "pydantic_settings", "orjson", "prometheus_client",
             "httpx", "uvloop", "httptools"):
    sys.modules[name] = None
sys.argv[0] = "benchmarks.gpu"
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""


def test_without_the_device_it_ends_at_once(dry, capsys: pytest.CaptureFixture[str]):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, found = dry(device="cuda")
    assert code == 1
    assert list(found["steps"]) == ["environment"]
    assert "no CUDA device" in found["steps"]["environment"]["error"]
    assert "| environment | FAILED |" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.nightly
def test_a_dry_run_measures_or_says_why_not(dry, capsys: pytest.CaptureFixture[str]):
    code, found = dry()
    assert code == 0
    assert list(found["steps"]) == list(STEPS)
    figures = {
        figure["name"]: figure for step in found["steps"].values() for figure in step["figures"]
    }
    assert all(step["complete"] and step["figures"] for step in found["steps"].values())
    missing = {name: one["note"] for name, one in figures.items() if one["value"] is None}
    assert set(missing.values()) == {
        "the CPU was asked for",
        "needs a GPU",
        f"the model has {POSITIONS} positions",
    }
    assert len(figures) > 2 * len(missing)
    for name in ("tiny, fp32", "tiny, fp16", "BERT-base shape, fp16"):
        assert figures[name]["value"] == "right"
        assert figures[name]["details"]["tensors"] >= 1 + 2 + 1
    check_throughput(figures)
    for name in ("one text a request, JSON", "4 texts a request, safetensors"):
        assert figures[name]["value"] > 0
    assert figures["tiny fp32, S = 32, 6 maps"]["details"]["bytes"] == 6 * 32 * 32 * 4
    operators = next(one for name, one in figures.items() if name.endswith("operators"))
    assert len(operators["details"]["top_microseconds"]) == profiling.TOP
    lines = capsys.readouterr().out.strip().splitlines()
    table = lines[lines.index("| figure | value | goal |  |") :]
    assert len(table) == 2 + sum(len(step["figures"]) for step in found["steps"].values()) + 1
    assert table[-1].startswith("a dry run on a CPU")


def check_throughput(figures: dict[str, dict]) -> None:
    for model in ("tiny", "BERT-base shape"):
        for workload in ("S = 8", "S = 32", "mixed"):
            details = figures[f"{model}, {workload}"]["details"]
            for of in ("tokenised", "texts"):
                rates = details[f"tokens_per_second_{of}"]
                assert rates.keys() == {in_process.OURS, in_process.SDPA}
                for name, rate in rates.items():
                    seconds = statistics.median(details[of][name])
                    assert rate == pytest.approx(details["token_count"] / seconds)
            assert details["least_cosine"] > 0.999


@pytest.mark.slow
@pytest.mark.nightly
def test_all_but_http_runs_without_the_web(checkpoint: Path, kept: Path, tmp_path: Path):
    path = tmp_path / "out.json"
    command = [sys.executable, "-c", WITHOUT_THE_WEB, "--model", str(checkpoint), "--quick"]
    command += ["--keep", str(kept), "--json", str(path), "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text(encoding="utf-8"))["steps"]
    assert list(found) == list(STEPS)
    assert all(step["complete"] for step in found.values())
    (figure,) = found["http"]["figures"]
    assert figure["value"] is None
    assert figure["note"].startswith("not installed: fastapi, uvicorn")
    assert "| over HTTP | not measured |" in done.stdout


def test_the_docs_name_every_step():
    text = (ROOT / "docs" / "benchmarks-gpu.md").read_text(encoding="utf-8")
    for step in STEPS:
        assert f"\n## `{step}`" in text
