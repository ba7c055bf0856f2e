"""Pictures in a request's fields are decoded within their limits, and refused in plain words."""

from __future__ import annotations

import base64
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from service.api.wire import pictures
from service.api.wire.pictures import element, loaded
from service.errors import DeadlinePassed, RequestTooLarge, Unprocessable
from service.http.image_fetch import FetchLimits, image_hosts
from service.inference.tokenization.inputs import Input, Picture
from service.request_context import RequestContext
from service.settings import Settings
from service.system.budget import ByteBudget, Reservation

pytestmark = pytest.mark.anyio
FILE = bytes(range(256)) * 3
TEXT = base64.b64encode(FILE).decode()


def request(budget: ByteBudget | None = None, **settings: Any) -> Request:
    state = SimpleNamespace(settings=Settings().model_copy(update=settings))
    app = SimpleNamespace(state=SimpleNamespace(service=state))
    context = RequestContext[object]("id", Reservation(budget or ByteBudget(2**30)), {})
    images = SimpleNamespace(artifact=SimpleNamespace(manifest=SimpleNamespace(images=True)))
    context.model = SimpleNamespace(towers=[images])
    return Request({"type": "http", "app": app, "context": context})


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


async def test_pictures_are_fetched_from_allowed_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(
        url: str, field: str, hosts: object, limits: FetchLimits, client: str, memory: Reservation
    ) -> bytes:
        assert (limits.max_bytes, hosts) == (100, image_hosts("example.org"))
        assert limits.seconds == 5
        assert limits.deadline <= time.monotonic() + 30
        assert (client, memory.size) == ("", 0)
        return f"{field} {url}".encode()

    monkeypatch.setattr(pictures, "fetch", fetch)
    pictures_of = await files({"text": "a"}, *AT, image_hosts="example.org", max_image_bytes=100)
    assert pictures_of == [
        "a",
        *(
            Picture(f"inputs[{n + 1}].image_url https://example.org/{n}.png".encode())
            for n in range(6)
        ),
    ]
    with pytest.raises(Unprocessable, match=r"inputs\[0\]\.image_url is an address, and this serv"):
        await files(AT[0])
    monkeypatch.undo()
    with pytest.raises(DeadlinePassed):
        await files(AT[0], image_hosts="example.org", request_timeout_seconds=1e-9)


async def test_texts_stay_the_same_list() -> None:
    given: list[Input] = ["a", ("b", "c")]
    assert await loaded(given, request()) is given
