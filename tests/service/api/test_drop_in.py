"""Inputs, prompts, documents and scores that the dialects share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import jsonschema_rs
import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from scipy.special import expit
from transformers import AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from model.artifact.sentence import SentenceConfig
from service.api.drop_in.embedding import ListForm, TextsOrIds, prompt_for, without_prompt
from service.api.drop_in.scores import Documents, Ranking, shortened
from service.api.openai import joined
from service.api.wire import route
from service.engines.onnx import OnnxEngine
from service.errors import Unprocessable
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input, TokenIds
from service.scheduler.call import Call
from tests.service.api.test_openai import URL
from tests.service.harness import reserved_replies, serving, state_of
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio


DOCUMENTS: TypeAdapter[list[str]] = TypeAdapter(Documents)
LONG_TEXTS = ["Antidisestablishmentarianism, naïvely put.", "a b", "", "one two three four 😀 six"]


def test_objects_stand_for_their_texts() -> None:
    assert DOCUMENTS.validate_python(["a", {"text": "b", "title": "c"}]) == ["a", "b"]


async def test_documents_end_with_the_last_token_that_fits(
    artifact: Artifact, onnx_engine: OnnxEngine, small_checkpoint: Any
) -> None:
    """The cut documents have the first ids that transformers finds in the whole ones."""
    reference = AutoTokenizer.from_pretrained(small_checkpoint)
    async with serving(artifact, onnx_engine) as client:
        inference = state_of(client.app).models.default.inference
        caller = Call("", float("inf"))
        for count in (1, 3, 5):
            found = await shortened(inference, LONG_TEXTS, count, caller)
            for text, cut in zip(LONG_TEXTS, found, strict=True):
                ids = reference(text, add_special_tokens=False)["input_ids"]
                assert reference(cut, add_special_tokens=False)["input_ids"] == ids[:count]
                assert cut == text if len(ids) <= count else text.startswith(cut)
        for most in (4 * max(map(len, LONG_TEXTS)), 4096):  # nothing is tokenised for these
            assert await shortened(inference, LONG_TEXTS, most, caller) is LONG_TEXTS


INPUTS: TypeAdapter[list[Input]] = TypeAdapter(TextsOrIds)
ONE, TWO = TokenIds((1,)), TokenIds((1, 2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [TWO]),
        ([[1, 2], [1]], [TWO, ONE]),
        (["a", [1]], ["a", ONE]),
        ([], []),
        ([[]], [TokenIds(())]),
    ],
)
def test_a_list_of_ints_is_one_text(given: Any, expected: list[Input]) -> None:
    assert INPUTS.validate_python(given) == expected


@pytest.mark.parametrize("given", [[-1], [[-1]], [0, -1], ["a", [0, -1]]])
def test_negative_ids_are_refused_as_in_the_document(given: Any) -> None:
    with pytest.raises(ValidationError, match="token id -1 is negative"):
        INPUTS.validate_python(given)
    assert not jsonschema_rs.is_valid(INPUTS.json_schema(), given)


def test_a_list_is_one_json_value() -> None:
    vectors = [np.array([0.5, -2], np.float32), np.array([[3], [4]], np.float32)]
    form = ListForm(b'{"a":[', b"[%d,", b"]", lambda timings: {"n": timings.tokens}, kept=1)
    written = b"".join(form.pieces(vectors, Timings(7, 0.0, 0.0)))
    assert written == b'{"a":[[0,[0.5]],[1,[[3.0]]]],"n":7}'
    assert b"".join(ListForm(b"[").pieces(vectors, Timings(7, 0.0, 0.0))) == (
        b"[[0.5,-2.0],[[3.0],[4.0]]]"
    )


async def test_large_lists_leave_the_event_loop_and_have_their_limit(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread writes the same reply; a list that is too large is refused before it is computed."""
    body = {"input": ["a", "b c"]}

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/embeddings", json=body)

    async with serving(artifact, fake_of(artifact), max_response_bytes=4000) as client:
        expected = await ask(client)
        monkeypatch.setattr(route, "INLINE_BYTES", 1)
        assert (await ask(client)).content == expected.content
        sizes = reserved_replies(monkeypatch)
        body["input"].append("d")
        refused = await ask(client)
        assert (refused.status_code, sizes, state_of(client.app).replies.held) == (413, [], 0)
        assert "send fewer texts" in refused.json()["error"]["message"]


CHUNKS = ["Berlin is a capital.", "It has a river.\n", "Its streets are wide."]
WHOLE = "Berlin is a capital. It has a river.\nIts streets are wide."
LATE: dict[str, Any] = {"input": CHUNKS, "late_chunking": True, "normalized": False}


async def test_each_input_is_pooled_from_the_whole_text(
    client: httpx.AsyncClient, small_checkpoint: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_checkpoint)
    model: Any = AutoModel.from_pretrained(small_checkpoint).eval()
    with torch.no_grad():
        states = model(**tokenizer(WHOLE, return_tensors="pt")).last_hidden_state[0, 1:-1]
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in CHUNKS]
    wanted = [part.mean(dim=0).numpy() for part in states.split(lengths)]
    reply = await client.post(URL, json=LATE)
    assert reply.status_code == 200, reply.text
    items = reply.json()["data"]
    assert [item["index"] for item in items] == [0, 1, 2]
    found = [item["embedding"] for item in items]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_a_space_separates_inputs_without_white_space() -> None:
    text, spans = joined(CHUNKS)
    assert text == WHOLE
    assert [text[start:end] for start, end in spans] == CHUNKS
    with pytest.raises(Unprocessable, match=r"late_chunking: input\[1\] is no text"):
        joined(["a", TokenIds((101, 102))])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input": ["a", "\n"]}, "late_chunking: input[1] is [1, 2), which has no token"),
        ({"input": ["word " * 300] * 2}, "the joined input has 602 tokens; at most 512 fit"),
        ({"input": ["word " * 300] * 2, "truncate": True}, "late_chunking: input[1] is [1500,"),
        ({"truncate_prompt_tokens": 9}, "late_chunking: leave out"),
    ],
)
async def test_what_does_not_fit_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], says: str
) -> None:
    reply = await client.post(URL, json=LATE | body)
    assert reply.status_code in (400, 422)
    assert says in reply.json()["error"]["message"]


@pytest.mark.parametrize(("default", "name"), [(None, None), ("query", "")])
def test_a_default_prompt_is_switched_off_by_an_empty_name(
    default: str | None, name: str | None
) -> None:
    prompts = {"query": "query: "}
    sentence = SentenceConfig(max_length=9, prompts=prompts, default_prompt_name=default)
    assert without_prompt(cast("Any", SimpleNamespace(sentence=sentence))) == name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (None, None),
        ("search_query", "query"),
        ("retrieval.query", "query"),
        ("search_document", "passage"),
        ("document", "passage"),
        ("clustering", None),
        ("mine", "mine"),
    ],
)
def test_a_kind_of_input_has_the_prompt_of_the_likest_name(
    kind: str | None, name: str | None
) -> None:
    prompts = dict.fromkeys(("mine", "passage", "query"), "p: ")
    inference = SimpleNamespace(sentence=SentenceConfig(max_length=9, prompts=prompts))
    assert prompt_for(cast("Any", inference), kind, "task") == name


def test_an_unknown_kind_of_input_is_refused() -> None:
    inference = SimpleNamespace(sentence=SentenceConfig(max_length=9, prompts={"mine": "m"}))
    with pytest.raises(Unprocessable, match=r"^task: unknown; .*text-matching, separation, mine$"):
        prompt_for(cast("Any", inference), "poetry", "task")


LOGITS = (-50.0, -40.0, -50.0, 3.0)


def _ranking(*, logits: bool) -> Ranking:
    return Ranking(LOGITS, logits, Timings(0, 0.0, 0.0))


def test_equal_scores_keep_their_order_and_small_ones_theirs() -> None:
    """A sigmoid of −40 and of −50 differ; of equal texts the first comes first."""
    ranking = _ranking(logits=True)
    assert [index for index, _ in ranking.best(raw=True)] == [3, 1, 0, 2]
    assert ranking.scores() == pytest.approx(expit(LOGITS), rel=1e-6)
    assert ranking.scores(raw=True) == list(LOGITS)


def test_max_sim_is_given_as_it_is() -> None:
    assert _ranking(logits=False).scores() == list(LOGITS)
