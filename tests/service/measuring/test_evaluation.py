"""`headscope bench`: its rank correlation is scipy's, its vectors are sentence-transformers'."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from transformers import Dinov2WithRegistersModel

from model.artifact.manifest import Artifact, load_artifact
from model.artifact.verification import Verdict
from model.config.encoder import patches_of
from model.numerics.bounds import bounds_line
from service.artifacts.opening import find_checkpoint, open_artifact
from service.cli import main
from service.engines.onnx import OnnxEngine
from service.measuring.evaluation import (
    Embedder,
    Standing,
    aligned,
    compare,
    read_pairs,
    score,
    standings,
)
from service.measuring.timing import Rate
from service.settings import Settings
from tests.model.families.picture_parity import packed_pictures

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


def test_pictures_are_embedded_as_transformers_does(
    picture_artifact: Artifact, picture_checkpoint: Path, pairs: Path
) -> None:
    model = Dinov2WithRegistersModel.from_pretrained(picture_checkpoint).eval()
    pictures = torch.randn(3, 3, 28, 42, generator=torch.Generator().manual_seed(0))
    batch = packed_pictures(patches_of(picture_artifact.manifest.config), pictures)
    assert batch.pixels is not None
    with torch.no_grad():
        expected = torch.nn.functional.normalize(model(pictures).pooler_output)
    engine = OnnxEngine(picture_artifact, "cpu", threads=1)
    found = Embedder(picture_artifact, engine)(np.split(batch.pixels, 3))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="pictures encodes pictures, and pairs are sentences"):
        score(picture_artifact, engine, pairs)


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
    np.testing.assert_allclose(Embedder(artifact, engine)(texts), expected, atol=1e-5)
    found = score(artifact, engine, pairs)
    cosines = (expected[0::2] * expected[1::2]).sum(axis=1)
    assert found.spearman == pytest.approx(spearmanr(cosines, [row[2] for row in rows]).statistic)
    assert found.pairs == 5
    assert found.texts_per_second > 0

    arguments = ["--artifact", str(artifact.folder), "--pairs", str(pairs), "--device", "cpu"]
    capsys.readouterr()
    assert main(["bench", *arguments]) == 0
    line, verdicts, bounds = capsys.readouterr().out.splitlines()
    assert line.startswith("fp32, CPUExecutionProvider: Spearman ")
    assert "over 5 pairs" in line
    assert verdicts == "vectors passed, heads passed"
    assert bounds == "fp32 vectors: every tensor within its tolerance"


def test_several_are_compared_side_by_side(
    artifact: Artifact,
    pairs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each artifact ranks as it does alone; rates are measured in turn."""
    other = Path(shutil.copytree(artifact.folder, tmp_path / "the other"))

    def in_turn(texts: Sequence[str], ways: Sequence[Embedder]) -> list[Rate]:
        assert len(texts) == 10
        assert [len(way(texts)) for way in ways] == [10, 10]
        return [Rate(100.0, 1.0), Rate(254.0, 2.5391)]

    monkeypatch.setattr("service.measuring.evaluation.in_turn", in_turn)
    alone = score(artifact, OnnxEngine(artifact, "cpu"), pairs).spearman
    found = compare([artifact, load_artifact(other)], "cpu", pairs)
    assert [each.spearman for each in found] == [alone, alone]

    both = ["--artifact", str(artifact.folder), "--artifact", str(other)]
    assert main(["bench", *both, "--pairs", str(pairs), "--device", "cpu"]) == 0
    header, first, second, _ = capsys.readouterr().out.splitlines()
    columns = ["artifact", "precision", "Spearman", "texts/s", "×", "first", "vectors", "heads"]
    assert header.split() == columns
    of_first = [artifact.folder.name, "fp32", f"{100 * alone:.2f}", "100", "1.00"]
    assert first.split() == [*of_first, "passed", "passed"]
    assert second.split()[-4:-2] == ["254", "2.54"]


def test_the_checkpoints_default_prompt_is_used(artifact: Artifact) -> None:
    """As the text with the prompt in front of it gives, which no other engine has to be asked."""
    engine = OnnxEngine(artifact, "cpu")
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    sentence = artifact.manifest.sentence.model_copy(update=prompts)
    manifest = artifact.manifest.model_copy(update={"sentence": sentence})
    prompted = Embedder(replace(artifact, manifest=manifest), engine)
    plain = Embedder(artifact, engine)
    np.testing.assert_array_equal(prompted(["a cat"]), plain(["query: a cat"]))
    assert np.abs(prompted(["a cat"]) - plain(["a cat"])).max() > 1e-3


def test_a_tables_columns() -> None:
    lines = aligned([("name", "n"), ("a", "1000"), ("longer", "2")])
    assert lines == ["name       n", "a       1000", "longer     2"]


def test_an_artifact_is_named_by_its_folder(artifact: Artifact) -> None:
    standing = Standing(0.86716, Rate(53.4, 1.0))
    _, line, bounds = standings([artifact], [standing])
    of_artifact = [artifact.folder.name, "fp32", "86.72", "53", "1.00"]
    assert line.split() == [*of_artifact, "passed", "passed"]
    assert bounds == bounds_line("fp32")


def test_what_failed_is_marked_and_its_bounds_are_printed(artifact: Artifact) -> None:
    failed = Verdict(passed=False, failed="least cosine 0.8000 (at least 0.9), over 154 texts")
    record = artifact.manifest.verification.model_copy(update={"vectors": failed})
    changed = {"precision": "int8", "verification": record}
    manifest = artifact.manifest.model_copy(update=changed)
    int8 = replace(artifact, manifest=manifest)
    rate = Rate(53.4, 1.0)
    _, _, line, *below = standings([artifact, int8], [Standing(0.8, rate), Standing(0.8, rate)])
    assert line.split()[-2:] == ["FAILED", "passed"]
    assert below == [
        bounds_line("fp32"),
        bounds_line("int8"),
        f"FAILED, int8: vectors: {failed.failed}",
    ]


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
