"""Inputs that become vectors, and lists of inputs, in all dialects."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema_rs
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from model.artifact.manifest import Artifact
from service.api.drop_in.embedding import ListForm, TextsOrIds, check_given
from service.api.wire import reserved
from service.engines.contract import Floats
from service.errors import EmptyInputs
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input, TokenIds
from tests.service.harness import reserved_replies, serving, state_of
from tests.service.several import fake_of

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


@pytest.mark.parametrize("given", [None, 1, {}, [1, "a"], ["a", 1], [[1], 2], [True], [[1.0]]])
def test_what_is_neither_text_nor_ids_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="a text, a list of token ids"):
        INPUTS.validate_python(given)


@pytest.mark.parametrize("given", [[-1], [[-1]], [0, -1], ["a", [0, -1]]])
def test_negative_ids_are_refused_as_in_the_document(given: Any) -> None:
    with pytest.raises(ValidationError, match="token id -1 is negative"):
        INPUTS.validate_python(given)
    assert not jsonschema_rs.is_valid(INPUTS.json_schema(), given)


@pytest.mark.parametrize(
    ("given", "says"),
    [([], "texts: empty"), (["a", ""], r"texts\[1\] is empty"), ([TokenIds(())], r"texts\[0\]")],
)
def test_empty_inputs_are_named(given: list[Input], says: str) -> None:
    with pytest.raises(EmptyInputs, match=says):
        check_given(given, "texts")
    check_given(["a", TWO], "texts")


def test_a_list_is_one_json_value() -> None:
    vectors = [np.array([0.1, -2], np.float32), np.array([[3], [4]], np.float32)]

    def item(number: int, vector: Floats) -> list[bytes]:
        return [b"[%d," % number, vector.tobytes().hex().encode(), b"]"]

    form = ListForm(b"[", item, lambda _: b"]")
    written = b"".join(form.pieces(vectors, Timings(0, 0.0, 0.0)))
    assert written == b"[[0,cdcccc3d000000c0],[1,0000404000008040]]"


@pytest.mark.anyio
async def test_large_lists_leave_the_event_loop_and_have_their_limit(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread writes the same reply; a list that is too large is refused before it is computed."""
    body = {"input": ["a", "b c"]}

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/embeddings", json=body)

    async with serving(artifact, fake_of(artifact), max_response_bytes=4000) as client:
        expected = await ask(client)
        monkeypatch.setattr(reserved, "INLINE_BYTES", 1)
        assert (await ask(client)).content == expected.content
        sizes = reserved_replies(client.app, monkeypatch)
        body["input"].append("d")
        refused = await ask(client)
        assert (refused.status_code, sizes, state_of(client.app).replies.held) == (413, [], 0)
        assert "send fewer texts" in refused.json()["error"]["message"]
