"""Artifacts of every precision, served: by command, in a fresh process, and on a real model."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from model.artifact.manifest import TOKENIZER, Artifact, Precision, load_artifact
from service.cli import main
from service.engines.contract import Pooling, TextTask
from service.engines.onnx import OnnxEngine
from tests import sts

pytestmark = pytest.mark.slow


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

Vectors = Callable[[Precision], np.ndarray]


@pytest.mark.parametrize(
    ("precision", "lost"), [("fp32", 0.02), ("bf16", 0.05), ("int8", 0.2)], ids=str
)
def test_the_quality_of_every_precision(
    sts_vectors: Vectors, sts_pairs: list[sts.Pair], precision: Precision, lost: float
) -> None:
    assert len(sts_pairs) == 1500
    expected = (
        sts.PUBLISHED if precision == "fp32" else sts.spearman(sts_vectors("fp32"), sts_pairs)
    )
    found = sts.spearman(sts_vectors(precision), sts_pairs)
    assert found == pytest.approx(expected, abs=lost)


@pytest.mark.parametrize(
    ("precision", "least", "mean"), [("bf16", 0.9999, 0.9999), ("int8", 0.98, 0.995)], ids=str
)
def test_how_near_a_precision_is_to_fp32(
    sts_vectors: Vectors, precision: Precision, least: float, mean: float
) -> None:
    cosines = (sts_vectors(precision) * sts_vectors("fp32")).sum(axis=1)
    assert cosines.min() >= least
    assert cosines.mean() >= mean


@pytest.mark.parametrize(
    ("precision", "least", "usual"),
    [("fp32", 0.999999, 0.999999), ("bf16", 0.9999, 0.99998), ("int8", 0.995, 0.99999)],
)
def test_the_company_of_a_text_hardly_matters(
    exported: Callable[..., Artifact],
    minilm_checkpoint: Path,
    sts_vectors: Vectors,
    sts_pairs: list[sts.Pair],
    precision: Precision,
    least: float,
    usual: float,
) -> None:
    """In an engine, 32 texts of all lengths at a time, against a runtime's 64 of like length.

    Sums in another order can move a value over the edge of a rounding step, and int8's steps are
    wide: a vector in a hundred changes, by less than int8 itself costs.
    """
    artifact = exported(minilm_checkpoint, "minilm", precision)
    engine = OnnxEngine(artifact, "cpu", 1)
    texts = sts.sentences(sts_pairs)
    order = random.Random(0).sample(range(len(texts)), 1000)
    found = embed(engine, artifact, [texts[i] for i in order])
    cosines = (found * sts_vectors(precision)[order]).sum(axis=1)
    assert cosines.min() >= least
    assert np.quantile(cosines, 0.02) >= usual


def embed(engine: OnnxEngine, artifact: Artifact, texts: list[str]) -> np.ndarray:
    """A unit vector of each text, computed 32 at a time."""
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    tokenizer.enable_truncation(sts.MAX_TOKENS)
    tasks = [
        TextTask(np.array(e.ids), np.array(e.type_ids), pooling=Pooling(6, "mean"))
        for e in tokenizer.encode_batch(texts)
    ]
    vectors = np.concatenate(
        [
            [output.pooled for output in engine.run(tasks[start : start + 32])]
            for start in range(0, len(tasks), 32)
        ]
    )
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
