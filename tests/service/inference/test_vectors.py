"""Vectors of layers, of task heads and in each type; scores of a head within its limits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling as Library

from model.artifact.manifest import Artifact
from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import CALIBRATION, TextVectors
from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig
from service.api.native.attention import maps
from service.engines.contract import Output
from service.engines.fake import FakeEngine
from service.errors import ReplyTooLarge, Unprocessable
from service.inference.encoding import EncodeOptions
from service.inference.outputs.declared import names_of
from service.inference.outputs.task_head import token_vectors
from service.inference.plan import Plan, quantization_of
from service.inference.tokenization.text import TextSpans, places_of
from service.models.state import state_of
from tests.service.harness import CONFIG, serving, tokenized

STATES = np.random.default_rng(0).standard_normal((3, 5, 8), np.float32)
SEVERAL: dict[str, Any] = {"layers": (2, 0, 1), "normalize": False}
TEXT = tokenized(5)


def plan(*outputs: str, **options: Any) -> Plan:
    """Return the plan of a model without modules."""
    sentence = SentenceConfig(max_length=9, include_prompt=False)
    manifest: Any = SimpleNamespace(sentence=sentence, config=CONFIG, task=None)
    return Plan(EncodeOptions(outputs, **options), manifest, TextVectors(sentence, 8, {}))


def pooled_by_the_library(states: np.ndarray, mode: str, first: int = 0) -> np.ndarray:
    """Return the pooled vector of token vectors, without the first of them."""
    mask = torch.tensor([[0] * first + [1] * (len(states) - first)])
    if mode == "cls":  # the library takes the first token, masked or not
        states, mask = states[first:], mask[:, first:]
    features = {"token_embeddings": torch.from_numpy(states)[None], "attention_mask": mask}
    vector: np.ndarray = Library(8, mode)(features)["sentence_embedding"][0].numpy()
    return vector


@pytest.mark.parametrize("mode", ["mean", "max", "cls"])
@pytest.mark.parametrize("first", [0, 2])
def test_each_state_is_pooled_as_sentence_transformers_does(mode: Any, first: int) -> None:
    text = replace(TEXT, prompt_tokens=first)
    found = plan("pooled", pooling=mode, **SEVERAL).arrays(text, Output(list(STATES)))
    assert [*found] == ["pooled"]
    wanted = [pooled_by_the_library(state, mode, first) for state in STATES]
    np.testing.assert_allclose(found["pooled"], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "mode", ["mean", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"]
)
def test_a_span_is_pooled_as_a_text_is(mode: Any) -> None:
    text = replace(TEXT, spans=TextSpans(places_of([(0, 1)]), np.array([[1, 5]])))
    own: Any = {"lasttoken": "last"}.get(mode, mode)
    found = plan("spans", pooling=own, normalize=False).arrays(text, Output([STATES[0]]))
    wanted = [pooled_by_the_library(STATES[0, 1:5], mode)]
    np.testing.assert_allclose(found["span_vectors"], wanted, rtol=1e-5, atol=1e-6)


def test_states_are_copied_out_of_their_batch() -> None:
    found = plan("tokens", **SEVERAL).arrays(TEXT, Output(list(STATES)))
    assert [*found] == ["embeddings"]
    np.testing.assert_array_equal(found["embeddings"], STATES)
    assert not np.shares_memory(found["embeddings"], STATES)


def test_each_text_keeps_its_own() -> None:
    texts = [{"pooled": STATES[:, index]} for index in range(5)]
    plan("pooled", dimensions=3, **SEVERAL).complete(texts)
    for index, own in enumerate(texts):
        np.testing.assert_array_equal(own["pooled"], STATES[:, index, :3])


@pytest.mark.parametrize("layers", [(), (2, 0, 1)])
def test_vectors_are_completed_where_they_are_computed(layers: tuple[int, ...]) -> None:
    pooled = STATES[:, 0]
    output = Output([] if not layers else list(STATES[:, :1]), None if layers else pooled[0])
    found = plan("pooled", dimensions=3, normalize=True, layers=layers).arrays(TEXT, output)
    wanted = torch.nn.functional.normalize(torch.from_numpy(pooled[:, :3]), dim=-1).numpy()
    np.testing.assert_allclose(found["pooled"], wanted if layers else wanted[0], rtol=1e-6)


SPARSE = TaskConfig(kind="sparse", outputs=5, pooling="max")
LATE = LateInteraction(modules=(), skipped_ids=(7,), first_token=1)
HYBRID = TaskConfig(kind="hybrid", outputs=3, pooling="none", late=LATE, unused_ids=(0, 2))
IDS = np.array([0, 9, 7, 9, 2])
SCORES = np.array([[1, 1, 5], [2, 2, 0.5], [3, 3, 0.25], [4, 4, 0.75], [5, 5, 0.125]], np.float32)


def test_token_vectors_are_without_skipped_tokens_and_weights() -> None:
    found = token_vectors(HYBRID, SCORES, IDS, "query")
    assert found.tolist() == [[2, 2], [3, 3], [4, 4], [5, 5]]
    found = token_vectors(HYBRID, SCORES, IDS, "document")
    assert found.tolist() == [[2, 2], [4, 4], [5, 5]]
    with pytest.raises(ValueError, match="sparse computes no token vectors"):
        token_vectors(SPARSE, SCORES, IDS, "query")


def test_outputs_are_what_the_task_head_adds() -> None:
    for task, names in ((None, ()), (HYBRID, ("sparse", "multivector"))):
        manifest: Any = SimpleNamespace(task=task)
        assert names_of(manifest) == ("tokens", "pooled", *names)


RANGES = [[-1.0, -2.0, 0.0], [1.0, 2.0, 0.0]]
STATIC = TextVectors(SentenceConfig(max_length=9), 3, {})
VECTORS = TextVectors(SentenceConfig(max_length=9), 3, {CALIBRATION: np.array(RANGES, np.float32)})


def options(**fields: Any) -> EncodeOptions:
    return EncodeOptions(("pooled",), **fields)


def test_ranges_are_the_requests_or_the_artifacts() -> None:
    ranges = [[0.0, 0.0], [1.0, 1.0]]
    asked = options(dimensions=2, vector_type="int8", vector_ranges=ranges)
    given = quantization_of(asked, STATIC, 2)
    assert given.ranges is not None
    assert given.ranges.tolist() == ranges
    recorded = quantization_of(options(vector_type="uint8"), VECTORS, 2)
    assert recorded.ranges is not None
    assert recorded.ranges.tolist() == RANGES
    assert quantization_of(options(layer=0, vector_type="binary"), STATIC, 2).ranges is None


@pytest.mark.parametrize(
    ("vector_type", "ranges", "fields", "vectors", "problem"),
    [
        ("float16", RANGES, {}, VECTORS, "vector_type float16 has no ranges"),
        ("int8", None, {"layer": 1}, VECTORS, "another layer or pooling"),
        ("int8", None, {"layers": (1, 2)}, VECTORS, "another layer or pooling"),
        ("uint8", None, {"pooling": "max"}, VECTORS, "another layer or pooling"),
        ("int8", None, {}, STATIC, "records no ranges: give `vector_ranges`"),
        ("int8", RANGES, {"dimensions": 2}, VECTORS, "has 3 numbers, where the vectors have 2"),
        ("int8", [[0, 1, 0], [0, 0, 0]], {}, VECTORS, "feature 1 has 1 … 0"),
        ("int8", [[0, 0, 0], [0, 0, 1e39]], {}, VECTORS, "feature 2 has 0 … 1e"),
    ],
)
def test_what_does_not_fit_is_refused(
    vector_type: Any, ranges: Any, fields: dict[str, Any], vectors: TextVectors, problem: str
) -> None:
    asked = options(vector_type=vector_type, vector_ranges=ranges, **fields)
    with pytest.raises(Unprocessable, match=problem):
        quantization_of(asked, vectors, 2)


@pytest.mark.anyio
@pytest.mark.parametrize("inline", [0, 10**6])
async def test_vectors_are_converted_in_their_order(
    monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr("service.inference.plan.INLINE_FEATURES", inline)
    rows = np.array([[1, -1, 1], [-1, 1, 70000]], np.float32)

    async def converted(name: Any) -> list[Any]:
        texts: list[Any] = [{"pooled": row, "span_vectors": np.stack([row, -row])} for row in rows]
        return [*await plan("pooled", "spans", vector_type=name).converted(texts)]

    found = await converted("ubinary")
    assert [own["pooled"].tolist() for own in found] == [[0b10100000], [0b01100000]]
    assert found[0]["span_vectors"].tolist() == [[0b10100000], [0b01000000]]
    with pytest.raises(Unprocessable, match=r"vector_type float16: inputs\[1\]: a feature is beyo"):
        await converted("float16")


def test_memory_is_that_of_all_states_and_of_the_longest_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert maps.working_bytes([tokenized(5), tokenized(2)], 7) == 4 * (7 * 7 + 2 * 25)
    monkeypatch.setattr(maps, "LAYER_BYTES", 2 * 4 * 10 * 10)
    with pytest.raises(ReplyTooLarge, match=r"inputs\[1\] has 11 tokens: .* 968 bytes"):
        maps.working_bytes([tokenized(10), tokenized(11)], 7)


@pytest.mark.anyio
async def test_plans_are_kept_by_the_fields_that_decide_them_and_bounded(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inference.core.MOST_PLANS", 2)
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:

        async def encode(**fields: Any) -> int:
            body = {"inputs": "a", "outputs": ["pooled"]} | fields
            return (await client.post("/encode", json=body)).status_code

        plans = state_of(client.app).models.default.inference.plans
        assert [await encode(), await encode(inputs=["b", "c"])] == [200, 200]
        (first,) = plans.values()
        assert await encode(spans=[[[0, 1]]]) == await encode(layers=[0]) == 200
        assert await encode(dimensions=10**6) == await encode(prompt_name="x" * 10**5) == 422
        assert [*plans.values()] == [first]
        assert [await encode(dimensions=size) for size in (1, 2)] == [200, 200]
        assert len(plans) == 2
        assert first not in plans.values()
