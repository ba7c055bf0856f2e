"""Outputs of an engine in this process, against transformers and a service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

from headscope import Client
from model.artifact.manifest import Artifact
from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig
from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.errors import NoTaskHead
from service.files import local
from service.files.local import LocalEncoder
from service.files.options import Encoding, Outcome, Refused, UsageError
from service.settings import Settings
from tests.service.api.native.hooked import Hooked
from tests.service.files.conftest import Encode, FewBatches
from tests.service.harness import listening

TEXTS = ["The cat sat.", "A much longer text of more words than the others have.", "Water", ""]


def outcomes(encoder: LocalEncoder, texts: list[str]) -> list[Outcome]:
    found = dict(pair for batch in encoder.begin(texts) for pair in batch.result())
    assert sorted(found) == list(range(len(texts)))
    return [found[place] for place in range(len(texts))]


@pytest.fixture
def encoder(artifact: Artifact, onnx_engine: OnnxEngine) -> Callable[..., LocalEncoder]:
    def make(engine: FakeEngine | None = None, **wanted: object) -> LocalEncoder:
        encoding = replace(Encoding(), **wanted)
        settings = Settings(device="cpu", max_batch_tokens=16)
        return LocalEncoder(artifact, settings, encoding, engine or onnx_engine)

    return make


def test_arrays_are_those_of_transformers(
    encoder: Callable[..., LocalEncoder], small_checkpoint: Path
) -> None:
    """Arrays are mean-pooled vectors, a layer's tokens, and two statistics of every head."""
    tokenizer = AutoTokenizer.from_pretrained(small_checkpoint)
    model = AutoModel.from_pretrained(
        small_checkpoint, attn_implementation="eager", dtype=torch.float32
    )
    pooled = outcomes(encoder(normalize=False, pooling="mean"), TEXTS)
    tokens = outcomes(encoder(kind="tokens", layer=1), TEXTS)
    stats = outcomes(encoder(kind="stats"), TEXTS)
    for i, text in enumerate(TEXTS):
        ids = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            expected = model.eval()(**ids, output_attentions=True, output_hidden_states=True)
        last, first = expected.last_hidden_state[0], expected.hidden_states[1][0]
        np.testing.assert_allclose(pooled[i][0], last.mean(0), atol=1e-5)
        assert tokens[i][0].tolist() == ids["input_ids"][0].tolist()
        np.testing.assert_allclose(tokens[i][1], first, atol=1e-5)
        maps = torch.cat(expected.attentions)
        entropy = torch.special.entr(maps).sum(-1).mean(-1)
        np.testing.assert_allclose(stats[i][0], entropy, atol=1e-4)
        np.testing.assert_allclose(stats[i][3], maps[..., 0].mean(-1), atol=1e-5)


def test_importance_is_what_hooks_take_away(
    encoder: Callable[..., LocalEncoder], small_checkpoint: Path
) -> None:
    """1 − cosine of transformers' mean vectors with and without each head."""
    reference = Hooked(small_checkpoint)
    found = outcomes(encoder(kind="importance", pooling="mean"), TEXTS)
    for text, (importance,) in zip(TEXTS, found, strict=True):
        whole = reference.states(text)[-1].mean(0)
        for place in np.ndindex(2, 2):
            without = reference.states(text, [place])[-1].mean(0)
            wanted = 1 - functional.cosine_similarity(whole, without, dim=0).item()
            assert importance[place] == pytest.approx(wanted, abs=2e-6)
        assert importance.min() > 1e-5


def test_batches_are_of_like_length(
    artifact: Artifact, encoder: Callable[..., LocalEncoder]
) -> None:
    """Batches are the same whenever their window is computed."""
    engine = FewBatches(artifact)
    made = encoder(engine)
    outcomes(made, ["a b c", "a " * 40, "a b c", "a " * 40])
    assert engine.left == 10**9 - 3  # both short ones together; none of the long ones fits twice


def test_a_text_that_does_not_fit(
    encoder: Callable[..., LocalEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this text is refused; with `truncate` it is truncated."""
    monkeypatch.setattr(local, "SLICE_TEXTS", 3)
    texts = [*TEXTS, "word " * 600, "x" * 10**6]
    found = outcomes(encoder(), texts)
    assert [isinstance(one, Refused) for one in found] == [False] * 4 + [True] * 2
    cuts = "the text has 602 tokens; at most 512 fit (--truncate cuts it)"
    assert found[4] == Refused(cuts)
    cut = outcomes(encoder(kind="tokens", truncate=True), texts[4:5])
    assert len(cut[0][0]) == 512


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"layer": 3}, r"--layer 3 is not in -3 … 2"),
        ({"dimensions": 129}, r"--dimensions 129 is not in 1 … 128"),
        ({"prompt_name": "query"}, r"unknown --prompt-name"),
        ({"vector_type": "int8", "layer": 1}, r"--vector-type int8: .* give --vector-ranges"),
        ({"kind": "chunks", "pooling": "cls"}, r'the pooling "cls" .* or pass --no-late'),
        ({"kind": "sparse"}, r"gives no sparse vectors: take a sparse encoder"),
    ],
)
def test_what_the_model_does_not_have(
    encoder: Callable[..., LocalEncoder], wanted: dict[str, object], problem: str
) -> None:
    with pytest.raises((UsageError, NoTaskHead), match=problem):
        encoder(**wanted)


class Scores(FakeEngine):
    """Engine of a task head whose scores for each task are given."""

    def __init__(self, artifact: Artifact, *scores: np.ndarray) -> None:
        super().__init__(artifact.manifest.config)
        self.scores, self.tasks = iter(scores), list[Task]()

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.tasks += tasks
        return [Output(scores=next(self.scores).astype(np.float32)) for _ in tasks]


def with_task(artifact: Artifact, **task: Any) -> Artifact:
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": {"document": ""}})
    update = {"task": TaskConfig(**task), "sentence": sentence}
    return replace(artifact, manifest=artifact.manifest.model_copy(update=update))


def test_sparse_vectors_have_no_zeros(artifact: Artifact) -> None:
    sparse = with_task(artifact, kind="sparse", outputs=5, pooling="max")
    engine = Scores(sparse, np.array([0, 0.5, 0, 2, 0]), np.zeros(5))
    made = LocalEncoder(sparse, Settings(device="cpu"), Encoding("sparse"), engine)
    first, second = outcomes(made, ["a", "a cat"])
    assert [array.tolist() for array in first] == [[1, 3], [0.5, 2]]
    assert [array.tolist() for array in second] == [[], []]


def test_multivectors(artifact: Artifact) -> None:
    """Each token that is not skipped has a vector; the limit is that of the prompt's role."""
    late = LateInteraction(modules=(), skipped_ids=(102,), document_tokens=7)
    model = with_task(artifact, kind="late_interaction", outputs=2, pooling="none", late=late)
    engine = Scores(model, np.array([[1, 2], [3, 4], [5, 6]]))
    encoding = Encoding("multivector", prompt_name="document")
    made = LocalEncoder(model, Settings(device="cpu"), encoding, engine)
    (vectors,), refused = outcomes(made, ["a", "a " * 6])
    assert vectors.tolist() == [[1, 2], [3, 4]]
    assert refused == Refused("the text has 8 tokens; at most 7 fit (--truncate cuts it)")
    with pytest.raises(UsageError, match=r"--outputs multivector: .* set --prompt-name to query"):
        LocalEncoder(model, Settings(device="cpu"), Encoding("multivector"), engine)
    with pytest.raises(NoTaskHead, match="no token vectors for MaxSim"):
        LocalEncoder(artifact, Settings(device="cpu"), encoding, engine)
    with pytest.raises(UsageError, match="--layer 1: sparse is computed from the last hidden"):
        Encoding("sparse", layer=1).check()


def test_maps_that_are_too_large(
    encoder: Callable[..., LocalEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps of two heads are refused before anything is computed."""
    monkeypatch.setattr(local, "LAYER_BYTES", 4 * 2 * 4**2)
    fits, refused = outcomes(encoder(kind="stats"), ["a cat", "a cat sat"])
    assert not isinstance(fits, Refused)
    assert isinstance(refused, Refused)
    assert "maps that are computed together take 200 bytes, the limit is 128" in refused.problem


LONG = "The animal was tired. It didn't cross the street, as Mr. Li saw. " * 60
CHUNKED = ["A short text.", LONG, "", "Two sentences. And more."]
CHUNKS = {"kind": "chunks", "chunk_size": 40, "pooling": "mean", "normalize": True}


@pytest.fixture(scope="module")
def url(artifact: Artifact, onnx_engine: OnnxEngine) -> Iterator[str]:
    with listening(artifact, onnx_engine) as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(CHUNKED)))
    return path


@pytest.mark.parametrize("other", [{"overflow": "windows"}, {"late": False}])
def test_rows_are_the_chunks_of_encode(
    encode: Encode, onnx_engine: OnnxEngine, source: Path, tmp_path: Path, url: str, other: Any
) -> None:
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    assert encode(source, here, engine=onnx_engine, vector_type="float16", **CHUNKS, **other) == 0
    assert encode(source, there, url=url, vector_type="float16", **CHUNKS, **other) == 0
    assert pq.read_table(here).to_pylist() == pq.read_table(there).to_pylist()
    lines, arrays = tmp_path / "chunks.jsonl", tmp_path / "chunks.npz"
    for out in (lines, arrays):
        assert encode(source, out, engine=onnx_engine, **CHUNKS, **other) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    with Client(url) as client:
        chunk = {"by": "sentences", "size": 40, "late": "overflow" in other}
        asked: Any = {"overflow": "windows"} if "overflow" in other else {}
        found = client.encode(CHUNKED, chunk=chunk, pooling="mean", normalize=True, **asked)
    assert [(row["id"], row["row"], row["start"], row["end"]) for row in rows] == [
        (n, n, *span) for n, own in enumerate(found) for span in own.spans
    ]
    assert len({row["row"] for row in rows}) == 3
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    np.testing.assert_array_equal(vectors, found.span_vectors)
    with np.load(arrays) as file:
        assert file["rows"].tolist() == [row["row"] for row in rows]
        np.testing.assert_array_equal(file["embedding"], vectors)


def test_texts_that_do_not_fit_are_refused(
    encode: Encode,
    onnx_engine: OnnxEngine,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def skipped(**options: Any) -> str:
        out = tmp_path / "out.npz"
        options |= {"engine": onnx_engine, "on_error": "skip", "restart": True}
        assert encode(source, out, **CHUNKS | options) == 3
        return capsys.readouterr().err

    assert "line 2: the text has" in skipped()
    monkeypatch.setattr(local, "STATE_BYTES", 2**14)
    assert "the limit is 16384: split it, or pass --no-late" in skipped(overflow="windows")
