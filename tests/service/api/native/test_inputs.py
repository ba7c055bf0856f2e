"""Texts, pictures, pairs and targets as inputs of a request."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError

from service.api.native.explain import Sides
from service.api.native.texts import (
    Envelope,
    Inputs,
    Targets,
    text_bytes,
    text_fields,
    text_tensors,
    usage,
)
from service.inference.tokenization.inputs import Input, Picture
from service.inference.tokenization.text import Text
from tests.service.harness import assert_problem, tokenized

pytestmark = pytest.mark.anyio


SCHEMA: TypeAdapter[Any] = TypeAdapter(Inputs)
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"
)


def test_elements_are_texts_pairs_and_pictures() -> None:
    assert SCHEMA.validate_python({"text": "a"}) == ["a"]
    assert SCHEMA.validate_python([{"text": "a"}, "b", ["c", "d"]]) == ["a", "b", ("c", "d")]
    first, second = SCHEMA.validate_python([{"image": "QQ=="}, Picture(b"a file")])
    assert (first.source, first.field) == ("QQ==", "inputs[0].image")
    assert second == Picture(b"a file")


@pytest.mark.parametrize("given", [[{"text": "a"}, 1], [{"text": "a"}, ["b"]]])
def test_other_elements_are_refused_by_number(given: object) -> None:
    with pytest.raises(ValueError, match=r"inputs\[1\] is neither a text, a pair nor a picture"):
        SCHEMA.validate_python(given)


async def test_texts_in_objects_are_texts(client: httpx.AsyncClient) -> None:
    for route in ("/encode", "/attention"):
        objects = [{"text": "a text"}, {"text": "another"}]
        replies = [
            (await client.post(route, json={"inputs": inputs})).json()
            for inputs in (["a text", "another"], objects)
        ]
        assert replies[0] == replies[1]


@pytest.mark.parametrize("route", ["/encode", "/attention", "/verify", "/attention/scores"])
async def test_a_model_of_texts_refuses_pictures(client: httpx.AsyncClient, route: str) -> None:
    body = {"inputs": ["a", {"image": PIXEL}]}
    body |= {"layer": 0, "head": 0} if route == "/attention/scores" else {}
    refused = await client.post(route, json=body)
    says = (
        "inputs[1].image is a picture, and the model reads only texts: choose a model of pictures"
    )
    assert_problem(refused, 422, says)


ADAPTER: TypeAdapter[Any] = TypeAdapter(Targets)
TEXTS = [tokenized(3), tokenized(1, 2)]


def metadata(texts: list[Text]) -> dict[str, str]:
    return Envelope("m", "onnx", texts, {"layers": [0]}).metadata()


@pytest.mark.parametrize(("given", "found"), [("a", ["a"]), ("", [""]), (["a", ""], ["a", ""])])
def test_a_text_is_a_list_of_one(given: Any, found: Any) -> None:
    assert ADAPTER.validate_python(given) == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "a text, or a list of texts, is needed"),
        (1, "a text, or a list"),
        ({"0": "a"}, "a text, or a list"),
        (["a", 1], r"targets\[1\] is no text"),
        ([["a", "b"]], r"targets\[0\] is no text"),
    ],
)
def test_what_is_no_target(given: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ADAPTER.validate_python(given)


def test_without_targets_nothing_is_added() -> None:
    assert usage(TEXTS) == {"inputs": 2, "tokens": 4}
    names = [*text_fields(TEXTS[1]), *text_tensors(TEXTS), *metadata(TEXTS)]
    assert not [name for name in names if name.startswith("target")]


def test_targets_have_lists_of_their_own() -> None:
    targets = [tokenized(1, 5), tokenized(4, 6)]
    texts = [
        dataclasses.replace(text, target=target)
        for text, target in zip(TEXTS, targets, strict=True)
    ]
    assert usage(texts) == {"inputs": 2, "tokens": 9}
    assert text_bytes(texts) == text_bytes(TEXTS) + text_bytes(targets)
    lists = {
        name: json.loads(value)
        for name, value in metadata(texts).items()
        if name not in ("model", "backend")
    }
    assert lists["usage"]["tokens"] == 9
    assert lists["target_tokens"] == [target.tokens for target in targets]
    assert lists["target_offsets"][0] == [[0, 1]]


PICTURE = {"image": "aGk="}
SIDES: TypeAdapter[list[Input]] = TypeAdapter(Sides)


def test_sides_of_pairs_are_texts_or_pictures() -> None:
    first, second, *others = SIDES.validate_python([["a", PICTURE], [{"text": "b"}, PICTURE]])
    assert (first, others[0]) == ("a", "b")
    assert [getattr(side, "field", None) for side in (second, others[1])] == [
        "inputs[0][1].image",
        "inputs[1][1].image",
    ]
    assert SIDES.validate_python([["a", ""]]) == ["a", ""]
    assert SIDES.json_schema()["items"]["minItems"] == 2


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "at least one pair of texts or pictures"),
        ([["a"]], r"inputs\[0\] is no pair of texts or pictures"),
        ([["a", 1]], r"inputs\[0\] is no pair"),
        ([["a", PICTURE], ["a", "b"]], r"inputs\[1\]\[1\] and inputs\[0\]\[1\] are a text and a"),
        ([["a", {"audio": "x"}]], r"inputs\[0\]\[1\] is neither a text nor a picture"),
    ],
    ids=str,
)
def test_what_is_no_pair_of_sides(value: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        SIDES.validate_python(value)
