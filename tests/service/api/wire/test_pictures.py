"""Pictures in JSON and in forms, within their limits; results of both towers in order."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from PIL import Image
from pydantic_core import PydanticCustomError

from service.api.wire import bodies, pictures
from service.api.wire.bodies import MEDIA_TYPES, checked_media_type, read_files
from service.api.wire.pictures import element, in_order, loaded, together
from service.errors import (
    InvalidRequest,
    RequestTooLarge,
    ServiceError,
    Unprocessable,
    UnsupportedMediaType,
)
from service.inference.tokenization.inputs import Input, Picture
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import assert_problem, bare_service, exchange

pytestmark = pytest.mark.anyio


FILE = bytes(range(256)) * 3
TEXT = base64.b64encode(FILE).decode()


def request(budget: ByteBudget | None = None, **settings: Any) -> Any:
    service = bare_service(**settings)
    service.replies = budget or service.replies
    found: Any = exchange(service=service)
    images = SimpleNamespace(artifact=SimpleNamespace(manifest=SimpleNamespace(images=True)))
    found.model = SimpleNamespace(towers=[images])
    return found


async def files(*values: dict[str, object], **settings: Any) -> list[Input]:
    given = [element(value, f"inputs[{index}]") for index, value in enumerate(values)]
    return await loaded(given, request(**settings))


@pytest.mark.parametrize("slice_characters", [4, 8, 2**18])
async def test_base64_and_data_urls_are_files(
    slice_characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "SLICE_CHARACTERS", slice_characters)
    for inline in (0, 2**16):
        monkeypatch.setattr(pictures, "INLINE_CHARACTERS", inline)
        for length in (len(FILE), 1, 2, 3):
            text = base64.b64encode(FILE[:length]).decode()
            assert await files(
                {"image": text},
                {"text": "a text"},
                {"image": f"data:image/png;base64,{text}"},
                {"image_url": f"DATA:image/svg+xml;charset=utf-8;base64,{text}"},
                {"image": text, "first_frame": True},
            ) == [
                Picture(FILE[:length]),
                "a text",
                *[Picture(FILE[:length])] * 2,
                Picture(FILE[:length], first_frame=True),
            ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("c4n4ry!", "is not base64: use the alphabet"),
        ("QQ", "is not base64"),
        ("QQ==QQ==", "is not base64"),
        ("QUFB\nQUFB", "is not base64"),
        ("Q-_=", "is not base64"),
        ("é", "is not base64"),
        ("data:image/png;base64,", "is empty: send the file"),
        ("data:image/png,QUFB", "is not a data URL of a picture in base64"),
        ("data:text/html;base64,QUFB", "is not a data URL of a picture in base64"),
    ],
)
async def test_other_texts_are_refused_without_repeating_them(
    text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "SLICE_CHARACTERS", 4)
    with pytest.raises(Unprocessable, match=rf"inputs\[1\]\.image {says}") as refused:
        await files({"text": "a"}, {"image": text})
    assert text not in refused.value.detail


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "exactly one of"),
        ({"image": TEXT, "text": "a"}, "exactly one of"),
        ({"image": TEXT, "detail": "high"}, "exactly one of"),
        ({"first_frame": True}, "exactly one of"),
        ({"text": 1}, r"inputs\[7\]\.text: a text is needed"),
        ({"text": "a", "first_frame": True}, "without `first_frame`"),
        ({"image": TEXT, "first_frame": 1}, "first_frame: true or false"),
        ({"image": None}, r"inputs\[7\]\.image: base64 of a picture's file"),
        ({"image": ""}, "base64 of a picture's file"),
        ({"image": "https://example.org/a.png"}, "send addresses as `image_url`"),
        ({"image_url": TEXT}, "a data URL, such as"),
        ({"image_url": "ftp://example.org/a.png"}, "an address of http or https is needed"),
    ],
)
def test_an_object_has_one_text_or_picture(value: dict[str, object], says: str) -> None:
    with pytest.raises(PydanticCustomError, match=says):
        element(value, "inputs[7]")


async def test_files_have_limits() -> None:
    size = len(FILE)
    for text in (TEXT, f"data:image/png;base64,{TEXT}"):
        assert await files({"image": text}, max_image_bytes=size) == [Picture(FILE)]
        with pytest.raises(Unprocessable, match=f"more than {size - 1} bytes"):
            await files({"image": text}, max_image_bytes=size - 1)
    with pytest.raises(Unprocessable, match="3 inputs in one request; at most 2"):
        await files(*[{"image": TEXT}] * 3, max_client_batch_size=2)
    with pytest.raises(RequestTooLarge):
        await loaded([element({"image": TEXT}, "inputs[0]")], request(ByteBudget(size - 1)))


AT = [{"image_url": f"https://example.org/{n}.png"} for n in range(6)]


async def test_pictures_are_fetched_if_the_service_fetches_any() -> None:
    class Fetcher:
        async def fetch(
            self, url: str, field: str, client: str, deadline: float, memory: Reservation
        ) -> bytes:
            assert deadline <= time.monotonic() + 30
            assert (client, memory.size) == ("", 0)
            return f"{field} {url}".encode()

    given = [element(value, f"inputs[{n}]") for n, value in enumerate([{"text": "a"}, *AT])]
    found = request()
    found.service.images = Fetcher()
    assert await loaded(given, found) == [
        "a",
        *(
            Picture(f"inputs[{n + 1}].image_url https://example.org/{n}.png".encode())
            for n in range(6)
        ),
    ]
    with pytest.raises(Unprocessable, match=r"inputs\[0\]\.image_url is an address, and this serv"):
        await files(AT[0])


async def test_texts_stay_the_same_list() -> None:
    given: list[Input] = ["a", ("b", "c")]
    assert await loaded(given, request()) is given


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
    checked_media_type(headers, MEDIA_TYPES)
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
    monkeypatch.setattr(bodies, "MAX_PARTS", 3)
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


def test_results_are_in_the_order_of_the_inputs() -> None:
    shares: Any = [(None, [1, 2]), (None, [0, 3])]
    assert in_order(shares, ["bc", "ad"]) == ["a", "b", "c", "d"]
    assert in_order(shares[:1], ["bc"]) == "bc"


async def test_towers_run_at_the_same_time_and_an_error_of_one_cancels_the_other() -> None:
    met, cancelled = asyncio.Barrier(2), asyncio.Event()
    await together([met.wait(), met.wait()])

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(ZeroDivisionError):
        await together([endless(), fail()])
    assert cancelled.is_set()
