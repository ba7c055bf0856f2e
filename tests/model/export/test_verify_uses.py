"""Verdict of a verification on each use, its texts, and the similarity of its vectors."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from model.artifact.manifest import Artifact
from model.config.decoder import DecoderConfig
from model.config.precision import Precision
from model.export import verify
from model.export.calibration import SIMILARITY_TEXTS, TEXTS
from model.export.verify import Verification, grid, longest_text, measure_similarity, report
from model.numerics.comparison import Comparison, Difference, Key, Kind, tolerances_of
from model.numerics.similarity import Similarity
from model.runtimes.contract import Floats
from model.runtimes.pytorch import load_modules
from model.runtimes.registry import load_runtime

GOOD, BAD = Difference(1e-7, 1.0, passed=True), Difference(9.0, 0.2, passed=False)
ALIKE = Similarity(
    texts=154,
    rank_correlation=0.9929,
    neighbour_recall=0.9357,
    mean_cosine=0.9959,
    low_cosine=0.9932,
    least_cosine=0.9847,
)
OTHERS = ALIKE.model_copy(update={"rank_correlation": 0.91, "least_cosine": 0.5})


def verification(
    precision: Precision, wrong: Kind | None = None, found: Similarity | None = ALIKE
) -> Verification:
    kinds: tuple[Kind, ...] = ("hidden", "attention", "values", "pooled", "task")
    differences = {Key(kind): BAD if kind == wrong else GOOD for kind in kinds}
    comparison = Comparison(differences=differences, inputs=9)
    return Verification(precision, "CPU", tolerances_of(precision, 6), comparison, found)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("wrong", ["hidden", "attention", "values", "pooled", "task"])
def test_an_exact_precision_fails_both_uses_for_any_tensor(
    precision: Precision, wrong: Kind
) -> None:
    assert verification(precision, None, None).record().passed
    record = verification(precision, wrong, None).record()
    assert not record.passed
    assert record.vectors == record.heads
    assert (record.failed or "").startswith("1 of 5 tensors, first ")


@pytest.mark.parametrize("wrong", ["hidden", "attention", "values"])
def test_heads_may_fail_alone(wrong: Kind) -> None:
    record = verification("int8", wrong).record()
    assert record.passed
    assert record.vectors.passed
    assert not record.heads.passed
    assert (record.heads.failed or "").startswith("1 of 3 tensors, first ")
    assert record.similarity == ALIKE
    assert record.similarity_at_least["rank_correlation"] < 0.9929


@pytest.mark.parametrize("wrong", ["pooled", "task"])
def test_a_vector_that_is_broken_fails_vectors_alone(wrong: Kind) -> None:
    record = verification("int8", wrong).record()
    assert record.heads.passed
    assert (record.vectors.failed or "").startswith("1 of 2 tensors, first ")


def test_vectors_that_rank_otherwise_fail_alone() -> None:
    found = verification("int8", found=OTHERS)
    record = found.record()
    assert record.heads.passed
    assert not record.vectors.passed
    said = record.vectors.failed or ""
    assert "rank correlation of similarities 0.9100 (at least " in said
    assert "least cosine 0.5000 (at least " in said
    assert "recall" not in said
    lines = report(found).splitlines()
    assert lines[-1].startswith("passed: ")
    assert lines[-2] == f"vectors: {said}"
    assert lines[-4:-2] == ["vectors: FAILED", "heads: passed"]
    assert lines[-5].startswith("int8 vectors, at least: ")


def test_what_fails_both_is_refused() -> None:
    record = verification("int8", "hidden", OTHERS).record()
    assert not record.passed
    assert "vectors: " in str(record.failed)
    assert "; heads: " in str(record.failed)


def test_a_mismatch_fails_both() -> None:
    found = verification("int8")
    found.comparison.mismatches.append("hidden 1 is missing")
    assert found.record().failed == "hidden 1 is missing"
    assert not found.record().passed


def test_the_grid_covers_lengths_batch_sizes_and_segments(tiny_artifact: Artifact) -> None:
    batches = list(grid(tiny_artifact))
    lengths = [[len(ids) for ids, _, _ in batch] for batch in batches]
    assert {2, 3, 7, 16, 33, 40} <= {n for batch in lengths for n in batch}
    assert {1, 2, 5, 8} <= {len(batch) for batch in batches}
    assert max(n for batch in lengths for n in batch) == 40
    assert any(len(set(batch)) > 1 for batch in lengths)
    texts = [text for batch in batches for text in batch]
    assert {i for ids, _, _ in texts for i in ids} <= set(range(60))
    assert {segment for _, segments, _ in texts for segment in segments} == {0, 1}
    assert all(len(ids) == len(segments) for ids, segments, _ in texts)


def test_the_grid_stays_within_a_table_of_one_segment(tiny_artifact: Artifact) -> None:
    config = tiny_artifact.manifest.config.model_copy(update={"type_vocab_size": 1})
    manifest = tiny_artifact.manifest.model_copy(update={"config": config})
    texts = itertools.chain(*grid(dataclasses.replace(tiny_artifact, manifest=manifest)))
    assert {segment for _, segments, _ in texts for segment in segments} == {0}


def test_the_grid_is_the_same_every_time(tiny_artifact: Artifact) -> None:
    assert list(grid(tiny_artifact)) == list(grid(tiny_artifact))


def test_pictures_are_verified_whole_and_in_part(picture_artifact: Artifact) -> None:
    """The pictures have 9 tokens, of which 3 are special."""
    batches = list(grid(picture_artifact))
    lengths = [[len(picture.input_ids) for picture in batch] for batch in batches]
    assert {n for batch in lengths for n in batch} == {2, 3, 7, 9}
    assert any(len(set(batch)) > 1 for batch in lengths)
    for ids, segments, pixels in itertools.chain(*batches):
        assert list(ids) == [1, 2, 3, 0, 0, 0, 0, 0, 0][: len(ids)]
        assert set(segments) == {0}
        assert pixels is not None
        assert pixels.shape == (len(ids), 3 * 14 * 14)
        assert not pixels[:3].any()


def test_a_decoders_maps_leave_less_room(tiny_artifact: Artifact) -> None:
    """2²⁸ bytes of 4 · 6 heads' maps, and of 4 · 6 + 2 · 4 · 6 heads'."""
    config = tiny_artifact.manifest.config.model_copy(
        update={"max_position_embeddings": 10**5, "num_hidden_layers": 2, "num_attention_heads": 3}
    )
    assert longest_text(config) == 3344
    assert longest_text(config, DecoderConfig(layers=config, start_token_id=0)) == 1930


def test_the_texts_are_not_those_of_the_calibration() -> None:
    lines = SIMILARITY_TEXTS.read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) == len(lines) == 154
    assert not set(lines) & set(TEXTS.read_text(encoding="utf-8").splitlines())


@pytest.mark.slow
def test_both_sides_have_sentence_transformers_vectors(
    minilm: Callable[[Precision], Artifact],
    minilm_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Floats] = []

    def keep(reference: Floats, candidate: Floats) -> Similarity:
        seen.extend((reference, candidate))
        return real(reference, candidate)

    real = verify.similarity
    monkeypatch.setattr(verify, "similarity", keep)
    artifact = minilm("fp32")
    found = measure_similarity(artifact, load_modules(artifact).encoder, load_runtime(artifact))
    assert (found.rank_correlation, found.least_cosine) == (1, 1)
    lines = SIMILARITY_TEXTS.read_text(encoding="utf-8").splitlines()
    expected = SentenceTransformer(str(minilm_checkpoint), device="cpu").encode(lines)
    for vectors in seen:
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-6)
