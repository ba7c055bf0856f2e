"""`headscope bench`: its rank correlation is scipy's, its vectors are sentence-transformers'."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from model.artifact.manifest import Artifact
from service.artifacts import find_checkpoint, open_artifact
from service.cli import main
from service.engines.onnx import OnnxEngine
from service.evaluation import embed, read_pairs, score, spearman
from service.settings import Settings

PAIRS = """\
A plane is taking off.,An air plane is taking off.,5.0
"A man, smiling, plays a guitar.",A person plays an instrument.,3.5
Two dogs run over the snow.,Dogs are running in the snow.,4.4
The price of oil fell on Monday.,A girl is brushing her hair.,0.0
A cat sleeps on the sofa.,A dog sleeps on the sofa.,2.0
"""


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.csv"
    path.write_text(PAIRS, encoding="utf-8")
    return path


NUMBERS = st.lists(st.integers(-3, 3), min_size=2, max_size=40)


@given(NUMBERS, st.randoms(use_true_random=False))
def test_spearman_is_scipys(values: list[int], chance: object) -> None:
    others = [*values]
    chance.shuffle(others)  # type: ignore[attr-defined]
    if len(set(values)) > 1:
        a, b = np.array(values, np.float64), np.array(others, np.float64)
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


@pytest.mark.slow
def test_the_default_model_ranks_as_sentence_transformers_does(
    pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings()
    artifact = open_artifact(settings)
    reference = SentenceTransformer(str(find_checkpoint(settings, print)), device="cpu")
    rows = read_pairs(pairs)
    texts = [text for row in rows for text in row[:2]]
    expected = reference.encode(texts, normalize_embeddings=True)
    engine = OnnxEngine(artifact, "cpu")
    np.testing.assert_allclose(embed(artifact, engine, texts), expected, atol=1e-5)
    found = score(artifact, engine, pairs)
    cosines = (expected[0::2] * expected[1::2]).sum(axis=1)
    assert found.spearman == pytest.approx(spearmanr(cosines, [row[2] for row in rows]).statistic)
    assert found.pairs == 5
    assert found.texts_per_second > 0

    arguments = ["--artifact", str(artifact.folder), "--pairs", str(pairs), "--device", "cpu"]
    capsys.readouterr()
    assert main(["bench", *arguments]) == 0
    line = capsys.readouterr().out
    assert line.startswith("fp32, CPUExecutionProvider: Spearman ")
    assert "over 5 pairs" in line


@pytest.mark.parametrize("content", ["a,b,1\n", "a,b,1\na,b\n", "a,b,1\na,b,much\n", ""])
def test_what_is_no_pair_is_named(
    content: str, tmp_path: Path, artifact: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(content, encoding="utf-8")
    folder = str(artifact.folder)
    assert main(["bench", "--artifact", folder, "--pairs", str(path), "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("headscope bench: ")
    assert "line 2" in said or "two pairs" in said
    assert said.count("\n") == 1
