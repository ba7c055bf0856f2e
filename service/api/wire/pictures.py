"""Pictures of a request: base64, data URLs or addresses, and their files; inputs of two towers."""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import PydanticCustomError

from service.api.wire.bodies import FIRST_FRAME
from service.api.wire.route import ApiExchange
from service.api.wire.schemas import Schema, any_of, schema
from service.errors import Unprocessable
from service.inference.tokenization.inputs import Input, Picture
from service.models.served import ServedModel

ONE_FIELD = (
    "give an object with exactly one of `text`, `image` and `image_url`, and `first_frame` beside "
    "a picture if the file may be animated"
)
INLINE_CHARACTERS = 2**16
"""Maximum characters of base64 in a request that are decoded on the event loop, in 0.3 ms; more
are decoded in a thread."""
SLICE_CHARACTERS = 2**18
"""Characters that are decoded at a time, as each call holds Python's global lock: 1 ms."""
_DATA_URL = re.compile(
    r"data:image/[a-z0-9.+-]{1,40}(?:;[a-z0-9=._-]{1,80})?;base64,", re.IGNORECASE
)
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)


def closed_object(**members: object) -> Schema:
    """Return the schema of an object with exactly these members; see `schema`."""
    return Schema({**schema(members), "additionalProperties": False})


_PART = any_of(
    closed_object(type="text", text=str),
    closed_object(type="image_url", image_url={"url": str}),
)
ONE_PART = Schema({"type": "array", "items": _PART, "minItems": 1, "maxItems": 1})
"""JSON schema of a list of one `content_part`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPicture(Picture):
    """Picture of a request whose file is still to be decoded or fetched; its `data` is empty."""

    field: str
    """Field of the request, for error messages: `inputs[3].image`."""
    source: str
    """File in base64, possibly as a data URL; or the file's address."""


def wrong(message: str) -> PydanticCustomError:
    """Return the error of an invalid value of a field."""
    return PydanticCustomError("inputs", "{problem}", {"problem": message})


def picture(
    value: object, field: str, *, first_frame: bool = False, addresses: bool = False
) -> GivenPicture:
    """Return the picture of a field with base64, which is checked later, a data URL or address."""
    if not isinstance(value, str) or not value:
        raise wrong(f"{field}: base64 of a picture's file, or a data URL, is needed")
    if not addresses and _ADDRESS.match(value):
        raise wrong(f"{field} is an address: send addresses as `image_url`")
    return GivenPicture(b"", first_frame, field=field, source=value)


def picture_at(value: object, field: str, *, first_frame: bool = False) -> GivenPicture:
    """Return the picture at a URL: a data URL, or an address of http or https."""
    if isinstance(value, str) and (value[:5].lower() == "data:" or _ADDRESS.match(value)):
        return GivenPicture(b"", first_frame, field=field, source=value)
    raise wrong(
        f"{field}: a data URL, such as data:image/png;base64,…, or an address of http or https is "
        "needed"
    )


def content_part(value: object, field: str) -> Input:
    """Return the text or picture of a part of a message's content, as OpenAI, vLLM and Cohere do.

    Parts are as in `ONE_PART`; `field` is the part's path in the request.
    """
    match value:
        case {"type": "text", "text": str(text), **others} if not others:
            return text
        case {"type": "image_url", "image_url": {"url": url, **options}, **others} if not others:
            if options.keys() - {"detail"} or options.get("detail", "auto") not in (None, "auto"):
                raise wrong(f"{field}.image_url has options that change nothing: leave them out")
            return picture_at(url, f"{field}.image_url.url")
    raise wrong(
        f'{field} is neither {{"type": "text", "text": …}} nor '
        '{"type": "image_url", "image_url": {"url": …}}'
    )


def element(value: dict[str, object], field: str) -> Input:
    """Return the text or picture of an object among the inputs, whose path is `field`."""
    first_frame = value.get(FIRST_FRAME, False)
    names = value.keys() - {FIRST_FRAME}
    if len(names) != 1 or not names <= {"text", "image", "image_url"}:
        raise wrong(f"{field} is neither a text nor a picture: {ONE_FIELD}")
    (name,) = names
    content = value[name]
    if name == "text":
        if not isinstance(content, str) or FIRST_FRAME in value:
            raise wrong(f"{field}.text: a text is needed, without `first_frame`")
        return content
    if not isinstance(first_frame, bool):
        raise wrong(f"{field}.first_frame: true or false is needed")
    read = picture if name == "image" else picture_at
    return read(content, f"{field}.{name}", first_frame=first_frame)


async def loaded(inputs: list[Input], exchange: ApiExchange) -> list[Input]:
    """Return inputs whose pictures have their files; without pictures the same list.

    Raises:
        Unprocessable: the model reads texts only, there are too many inputs, a picture is not in
            base64 or cannot be fetched, or its file exceeds `--max-image-bytes`.
        DeadlinePassed: the deadline passed before all pictures were fetched.
        Overloaded: there is not enough memory.

    """
    if {*map(type, inputs)}.isdisjoint((Picture, GivenPicture)):
        return inputs
    pictures = {index: one for index, one in enumerate(inputs) if isinstance(one, Picture)}
    if not any(tower.artifact.manifest.images for tower in exchange.model.towers):
        first, given = next(iter(pictures.items()))
        raise Unprocessable(
            f"{getattr(given, 'field', f'inputs[{first}]')} is a picture, and the model reads only "
            "texts: choose a model of pictures"
        )
    settings = exchange.service.settings
    if len(inputs) > settings.max_client_batch_size:
        raise Unprocessable(
            f"{len(inputs)} inputs in one request; at most {settings.max_client_batch_size} are "
            "taken"
        )
    most = settings.max_image_bytes
    for index, one in pictures.items():
        _check_size(len(one.data), f"inputs[{index}]", most)
    given_pictures = [one for one in pictures.values() if isinstance(one, GivenPicture)]
    at_address = [one for one in given_pictures if _ADDRESS.match(one.source)]
    encoded = [one for one in given_pictures if not _ADDRESS.match(one.source)]
    size = sum(len(one.source) for one in encoded)
    exchange.reservation.grow(size * 3 // 4)

    def decoded() -> dict[str, bytes]:
        return {one.field: _file(one, most) for one in encoded}

    files = decoded() if size <= INLINE_CHARACTERS else await asyncio.to_thread(decoded)
    if at_address:
        files |= await _fetched(at_address, exchange)
    return [
        Picture(files[one.field], one.first_frame) if isinstance(one, GivenPicture) else one
        for one in inputs
    ]


async def _fetched(pictures: Sequence[GivenPicture], exchange: ApiExchange) -> dict[str, bytes]:
    """Return the file of each picture at an address by its field."""
    fetcher, deadline = exchange.service.images, exchange.deadline()
    client, reservation = exchange.client, exchange.reservation
    if fetcher is None:
        raise Unprocessable(
            f"{pictures[0].field} is an address, and this service fetches no pictures "
            "(--image-hosts): send the file in base64"
        )
    files = await together(
        [fetcher.fetch(one.source, one.field, client, deadline, reservation) for one in pictures]
    )
    return {one.field: file for one, file in zip(pictures, files, strict=True)}


def _file(given: GivenPicture, max_bytes: int) -> bytes:
    """Return the file of a picture in base64."""
    text, start = given.source, 0
    if text[:5].lower() == "data:":
        head = _DATA_URL.match(text)
        if head is None:
            raise Unprocessable(
                f"{given.field} is not a data URL of a picture in base64: begin it with "
                "data:image/png;base64, or its own type"
            )
        start = head.end()
    _check_size(3 * (len(text) - start) // 4 - 2, given.field, max_bytes)
    parts = []
    try:
        for at in range(start, len(text), SLICE_CHARACTERS):
            part = text[at : at + SLICE_CHARACTERS]
            if part.endswith("=") and at + SLICE_CHARACTERS < len(text):
                raise ValueError("padding before the end")
            parts.append(binascii.a2b_base64(part, strict_mode=True))
    except ValueError:  # of which binascii.Error is a subclass
        raise Unprocessable(
            f"{given.field} is not base64: use the alphabet with + and /, padding, and no line "
            "breaks"
        ) from None
    data = b"".join(parts)
    if not data:
        raise Unprocessable(f"{given.field} is empty: send the file of a picture")
    _check_size(len(data), given.field, max_bytes)
    return data


def _check_size(size: int, field: str, max_bytes: int) -> None:
    if size > max_bytes:
        raise Unprocessable(
            f"{field} has more than {max_bytes} bytes (--max-image-bytes): send a smaller picture"
        )


Item = TypeVar("Item")
Shares = Sequence[tuple[ServedModel, Sequence[int]]]
"""Towers that encode inputs of a request, each with the indices of its inputs."""


def in_order(towers: Shares, of_towers: Sequence[Sequence[Item]]) -> Sequence[Item]:
    """Return the items of all towers' inputs, in the order of the request's inputs."""
    if len(towers) == 1:
        return of_towers[0]
    indices = [index for _, own in towers for index in own]
    items = [item for own in of_towers for item in own]
    by_index = dict(zip(indices, items, strict=True))
    return [by_index[index] for index in range(len(items))]


async def together(coroutines: Iterable[Coroutine[Any, Any, Item]]) -> list[Item]:
    """Return the results of coroutines that run at the same time; an error cancels the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
