"""Inputs may be objects with a text or a picture."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from service.api.native.inputs import Inputs
from service.inference.tokenization.inputs import Picture
from tests.service.harness import assert_problem

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
