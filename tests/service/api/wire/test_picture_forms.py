"""Forms and single pictures have the same fields as JSON; httpx, another program, writes forms."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import pytest
from PIL import Image

from service.api.wire import picture_forms
from service.api.wire.picture_forms import is_file, read_files
from service.errors import (
    InvalidRequest,
    RequestTooLarge,
    ServiceError,
    Unprocessable,
    UnsupportedMediaType,
)
from service.inference.tokenization.inputs import Picture
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import assert_problem

pytestmark = pytest.mark.anyio
PNG = b"\x89PNG\r\n\x1a\n--not the boundary\r\n"
OTHER = bytes(range(256)) * 1000
URL = "http://host/encode"


def form(files: list[Any], boundary: str = "b-1") -> httpx.Request:
    """Return a form; a file without a name is a plain field."""
    kind = f'multipart/form-data; boundary="{boundary}"'
    return httpx.Request("POST", URL, files=files, headers={"content-type": kind})


def json_part(name: str, value: object) -> tuple[str, tuple[None, str]]:
    return name, (None, json.dumps(value))


async def fields(request: httpx.Request, limit: int = 2**30) -> dict[str, Any]:
    headers = {name.lower(): value for name, value in request.headers.raw}
    assert is_file(headers)
    reservation = Reservation(ByteBudget(limit))
    return await read_files(request.read(), headers, request.url.query, reservation)


async def test_parts_are_inputs_in_order_and_fields() -> None:
    given: list[Any] = [
        ("inputs", ("a.png", PNG, "image/png")),
        json_part("outputs", ["pooled"]),
        json_part("inputs", {"text": "a"}),
        json_part("pooling", "cls"),
        ("inputs", ("b", OTHER)),
    ]
    inputs = [Picture(PNG), {"text": "a"}, Picture(OTHER)]
    expected = {"inputs": inputs, "outputs": ["pooled"], "pooling": "cls"}
    assert await fields(form(given)) == expected
    whole = [file for file in given if file[1][0]]
    whole.append(json_part("request", {"layer": 1, "first_frame": True}))
    first = [Picture(data, first_frame=True) for data in (PNG, OTHER)]
    assert await fields(form(whole)) == {"inputs": first, "layer": 1}


async def test_a_body_is_one_picture_with_options_in_the_address() -> None:
    address = f'{URL}?outputs=["pooled"]&pooling=%22cls%22&first_frame=true'
    request = httpx.Request("POST", address, content=PNG, headers={"content-type": "Image/PNG"})
    picture = Picture(PNG, first_frame=True)
    assert await fields(request) == {"inputs": [picture], "outputs": ["pooled"], "pooling": "cls"}


PART = ("inputs", ("a", PNG))


@pytest.mark.parametrize(
    ("files", "kind", "says"),
    [
        ([("picture", ("a", PNG))], Unprocessable, "files of a form are named inputs"),
        ([PART, json_part("layer", 1), json_part("layer", 2)], Unprocessable, "layer is given tw"),
        ([PART, json_part("c4 n4ry", 1), ("c4 n4ry", (None, "2"))], Unprocessable, r"\? is given"),
        ([PART, ("pooling", (None, "cls"))], InvalidRequest, "pooling: the value is not JSON"),
        ([("inputs", (None, "a"))], InvalidRequest, "inputs: the value is not JSON; a text needs"),
        ([PART, json_part("request", [])], Unprocessable, "request is an object"),
        ([PART, json_part("request", None)], Unprocessable, "request is an object"),
        ([json_part("request", {}), json_part("layer", 1)], Unprocessable, "send it alone"),
        ([PART, json_part("request", {"inputs": "a"})], Unprocessable, "inputs are given twice"),
        ([PART, json_part("first_frame", 1)], Unprocessable, "first_frame: true or false"),
        ([json_part("inputs", "a")] * 4, Unprocessable, "more than 3 parts"),
    ],
)
async def test_other_forms_are_refused(
    files: list[Any], kind: type[ServiceError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture_forms, "MAX_PARTS", 3)
    with pytest.raises(kind, match=says) as refused:
        await fields(form(files))
    assert "c4" not in refused.value.detail


async def test_damaged_forms_are_refused() -> None:
    whole = form([PART]).read()
    kind = "multipart/form-data; boundary=b-1"
    for body, content_type, error, says in [
        (whole[:-4], kind, InvalidRequest, "ends before its last boundary"),
        (whole[5:], kind, InvalidRequest, "the form is damaged"),
        (whole.replace(b"name=", b"x="), kind, InvalidRequest, "the form is damaged"),
        (whole, "multipart/form-data", InvalidRequest, "needs its boundary"),
    ]:
        headers = {"content-type": content_type}
        with pytest.raises(error, match=says):
            await fields(httpx.Request("POST", URL, content=body, headers=headers))
    zipped = {"content-type": "image/png", "content-encoding": "gzip"}
    with pytest.raises(UnsupportedMediaType, match="compressed bodies"):
        await fields(httpx.Request("POST", URL, content=PNG, headers=zipped))
    with pytest.raises(Unprocessable, match="parts of the form, not of the address"):
        await fields(
            httpx.Request("POST", f"{URL}?layer=1", content=whole, headers={"content-type": kind})
        )
    with pytest.raises(RequestTooLarge):
        await fields(form([PART]), limit=10)


async def test_only_some_routes_take_files(client: httpx.AsyncClient) -> None:
    file = io.BytesIO()
    Image.new("RGB", (2, 1)).save(file, "PNG")
    png = {"content-type": "image/png"}
    for route in ("/encode", "/attention"):
        texts = [json_part("inputs", "a text"), json_part("inputs", "another")]
        as_form = await client.post(route, files=texts)
        as_json = await client.post(route, json={"inputs": ["a text", "another"]})
        assert as_form.status_code == 200
        assert as_form.json() == as_json.json()
        refused = await client.post(route, content=file.getvalue(), headers=png)
        assert_problem(refused, 422, says="inputs[0] is a picture, and the model reads")
        refused = await client.post(route, content=b"", headers={"content-type": "text/plain"})
        assert_problem(refused, 415, says="application/json or multipart/form-data or image/*")
    refused = await client.post("/verify", content=file.getvalue(), headers=png)
    assert_problem(refused, 415, says="must be application/json")
    bodies = (await client.get("/openapi.json")).json()["paths"]["/encode"]["post"]["requestBody"]
    assert bodies["content"].keys() == {"application/json", "multipart/form-data", "image/*"}
