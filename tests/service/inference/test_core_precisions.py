"""Artifacts of every precision, served: by command, in a fresh process, and on a real model."""

from __future__ import annotations

import csv
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from tokenizers import Tokenizer

from model.artifact.manifest import TOKENIZER, Artifact, load_artifact
from service.cli import main
from service.engines.contract import Pooling, TextTask
from service.engines.onnx import OnnxEngine

pytestmark = pytest.mark.slow

PRECISIONS = ("fp32", "bf16", "int8")
Vectors = Any


# ── commands ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def int8_folder(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("precisions") / "int8"
    command = ["export", "--model", str(small_checkpoint), "--precision", "int8"]
    assert main([*command, "--out", str(out)]) == 0
    return out


def test_an_int8_export_is_verified(int8_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = load_artifact(int8_folder).manifest
    assert (manifest.precision, manifest.runtime) == ("int8", "openvino")
    assert main(["verify", "--artifact", str(int8_folder)]) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert all(line.endswith("passed") for line in lines)
    assert all("cosine at least 0." in line for line in lines)
    assert verdict.startswith("passed: ")


def fresh(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_serving_it_without_openvino_is_one_line(int8_folder: Path) -> None:
    program = (
        "import sys; sys.modules['openvino'] = None\n"
        "from service.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = fresh(program, "serve", "--artifact", str(int8_folder), "--port", "0")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("headscope serve: this artifact is for OpenVINO, which cannot be")


@pytest.mark.parametrize(("precision", "loaded"), [("fp32", "onnxruntime"), ("int8", "openvino")])
def test_a_process_loads_only_the_runtime_that_it_serves_with(
    artifact: Artifact, int8_folder: Path, precision: str, loaded: str
) -> None:
    program = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from model.artifact.manifest import load_artifact\n"
        "from service.engines.contract import Pooling, TextTask\n"
        "from service.engines.onnx import OnnxEngine\n"
        "engine = OnnxEngine(load_artifact(Path(sys.argv[1])), 'cpu')\n"
        "ids = np.array([101, 2000, 102])\n"
        "(output,) = engine.run([TextTask(ids, ids * 0, pooling=Pooling(2, 'mean'))])\n"
        "assert output.pooled.shape == (128,)\n"
        "print(*{'torch', 'onnx', 'onnxruntime', 'openvino'}.intersection(sys.modules))"
    )
    folder = int8_folder if precision == "int8" else artifact.folder
    done = fresh(program, str(folder))
    assert done.stdout.split() == [loaded], done.stderr


# ── the default model ──────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def artifacts(exported: Callable[..., Artifact], minilm_checkpoint: Path) -> dict[str, Artifact]:
    found = {name: exported(minilm_checkpoint, "minilm", name) for name in PRECISIONS}
    assert all(one.manifest.verification.passed for one in found.values())
    return found


@pytest.fixture(scope="module")
def engines(artifacts: dict[str, Artifact]) -> dict[str, OnnxEngine]:
    return {name: OnnxEngine(one, "cpu", 1) for name, one in artifacts.items()}


@pytest.fixture(scope="module")
def pairs(shared_data: Path) -> list[list[str]]:
    with (shared_data / "stsb-en-dev.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def tasks(artifacts: dict[str, Artifact], pairs: list[list[str]]) -> list[TextTask]:
    """The 1500 first sentences, then the 1500 second ones."""
    tokenizer = Tokenizer.from_file(str(artifacts["fp32"].path(TOKENIZER)))
    tokenizer.enable_truncation(256)
    texts = [row[column] for column in (0, 1) for row in pairs]
    return [
        TextTask(np.array(e.ids), np.array(e.type_ids), pooling=Pooling(6, "mean"))
        for e in tokenizer.encode_batch(texts)
    ]


def embed(engine: OnnxEngine, tasks: list[TextTask], order: list[int]) -> Vectors:
    """A unit vector for each task of this order, computed 32 at a time."""
    vectors = np.empty((len(order), 384), np.float32)
    for start in range(0, len(order), 32):
        outputs = engine.run([tasks[i] for i in order[start : start + 32]])
        vectors[start : start + 32] = [output.pooled for output in outputs]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def vectors(engines: dict[str, OnnxEngine], tasks: list[TextTask]) -> dict[str, Vectors]:
    by_length = sorted(range(len(tasks)), key=lambda i: tasks[i].tokens)
    back = np.argsort(by_length)
    return {name: embed(engine, tasks, by_length)[back] for name, engine in engines.items()}


def spearman(vectors: Vectors, pairs: list[list[str]]) -> float:
    first, second = np.split(vectors, 2)
    return 100 * spearmanr((first * second).sum(axis=1), [float(row[2]) for row in pairs]).statistic


def test_the_quality_of_every_precision(
    vectors: dict[str, Vectors], pairs: list[list[str]]
) -> None:
    assert len(pairs) == 1500
    exact = spearman(vectors["fp32"], pairs)
    assert exact == pytest.approx(86.716, abs=0.02)
    assert spearman(vectors["bf16"], pairs) == pytest.approx(exact, abs=0.05)
    assert spearman(vectors["int8"], pairs) == pytest.approx(exact, abs=0.2)


def test_bf16_is_near_lossless_and_int8_near(vectors: dict[str, Vectors]) -> None:
    cosines = {name: (vectors[name] * vectors["fp32"]).sum(axis=1) for name in ("bf16", "int8")}
    assert cosines["bf16"].min() >= 0.9999
    assert cosines["int8"].min() >= 0.98
    assert cosines["int8"].mean() >= 0.995


@pytest.mark.parametrize(
    ("precision", "least", "usual"),
    [("fp32", 0.999999, 0.999999), ("bf16", 0.9999, 0.99998), ("int8", 0.995, 0.99999)],
)
def test_the_company_of_a_text_hardly_matters(
    engines: dict[str, OnnxEngine],
    tasks: list[TextTask],
    vectors: dict[str, Vectors],
    precision: str,
    least: float,
    usual: float,
) -> None:
    """Sums in another order can move a value over the edge of a rounding step, and int8's steps
    are wide: a vector in a hundred changes, by less than int8 itself costs."""
    order = random.Random(0).sample(range(len(tasks)), 1000)
    cosines = (embed(engines[precision], tasks, order) * vectors[precision][order]).sum(axis=1)
    assert cosines.min() >= least
    assert np.quantile(cosines, 0.02) >= usual
