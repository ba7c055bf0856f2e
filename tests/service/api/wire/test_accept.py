"""Choice between two media types for a client."""

from __future__ import annotations

import httpx
import pytest

from service.api.wire.accept import prefers
from service.api.wire.media import SAFETENSORS

BINARY = [
    "{st}",
    "{ST}",
    " {st} ; q=0.5 ",
    "{st};q=1.000",
    "{st};q=0.001",
    "{st}, application/json",
    "application/json, {st}",
    "application/json;q=0.5, {st};q=0.5",
    "{st}, */*",
    "*/*;q=0.8, {st};q=0.9",
    "{st};q=0.5, application/json;q=0.4, */*",
    "{st};q=0.5, */*",
    "{st};q=0.5, application/*;q=0.6, */*;q=0",
    "{st};q=0.5, text/html",
    "{st};q=0, {st};q=0.5",
    "{st};version=1;q=0.5",
    "{st};q=two",
    "{st};q=",
    "{st};q=-1",
    "{st};q=nan",
]
JSON = [
    "",
    "*/*",
    "application/*",
    "application/json",
    "{st}x",
    "x{st}",
    "text/html;type={st}",
    "{st};q=0",
    "{st}; Q=0.000",
    "{st};version=1 ;\tq=0 ",
    "{st};q=0, */*",
    "{st};q=0.5, application/json",
    "application/json;q=0.9, {st};q=0.8",
    "{st};q=0.5, application/json;q=0.6, */*;q=0.1",
]


@pytest.mark.parametrize("accept", BINARY)
def test_who_names_it_and_likes_it_no_less_gets_it(accept: str) -> None:
    asked = accept.format(st=SAFETENSORS, ST=SAFETENSORS.upper())
    assert prefers(asked, SAFETENSORS, "application/json")


@pytest.mark.parametrize("accept", JSON)
def test_everyone_else_gets_the_default(accept: str) -> None:
    assert not prefers(accept.format(st=SAFETENSORS), SAFETENSORS, "application/json")


@pytest.mark.anyio
async def test_a_reply_is_in_the_form_that_is_preferred(client: httpx.AsyncClient) -> None:
    for accepts, form in (
        ([f"{SAFETENSORS};q=0"], "application/json"),
        ([f"{SAFETENSORS};q=0.5, application/json"], "application/json"),
        ([f"application/json;q=0.5, {SAFETENSORS}"], SAFETENSORS),
        (["application/json;q=0.5", SAFETENSORS], SAFETENSORS),
        (["text/html", f"{SAFETENSORS};q=0"], "application/json"),
    ):
        headers = [("accept", accept) for accept in accepts]
        reply = await client.post("/encode", json={"inputs": "a"}, headers=headers)
        assert reply.headers["content-type"] == form, accepts
