"""Pictures as inputs: what is sent, and which replies are read."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from headscope.inputs import Picture, is_picture, items_of, read_picture
from tests.clients.python.fake import INFO, asked, binary, sent
from tests.service.pictures import picture

PNG = picture(width=5, height=3)
IMAGE = Image.open(BytesIO(PNG))
ELEMENT = {"image": base64.b64encode(PNG).decode()}


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(data)))


def test_files_bytes_and_images_are_pictures(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    for given in (path, PNG, bytearray(PNG), memoryview(PNG)):
        assert is_picture(given)
        assert read_picture(given).data == PNG
    assert read_picture(path).name == "cat.png"
    found = read_picture(IMAGE)
    np.testing.assert_array_equal(pixels(found.data), pixels(PNG))
    assert found.name == "a picture of 5 × 3 pixels"
    assert found.characters == len(found.element["image"])
    assert not any(map(is_picture, ["cat.png", ["a", "b"], ("a", "b")]))
    with pytest.raises(TypeError, match=r"mode CMYK is no PNG: pass image.convert"):
        read_picture(IMAGE.convert("CMYK"))
    with pytest.raises(FileNotFoundError):
        read_picture(tmp_path / "none.png")


def test_pictures_may_stand_beside_texts() -> None:
    assert items_of(PNG) == [read_picture(PNG)]
    first, *others = items_of([PNG, "a", ("b", "c")])
    assert isinstance(first, Picture)
    assert others == ["a", ["b", "c"]]
    with pytest.raises(TypeError, match=r"inputs\[1\] is not a text, a pair of texts or a pict"):
        items_of([PNG, 1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="texts and pairs cannot be in one list"):
        items_of(["a", ("b", "c")])


def test_the_service_gets_base64_and_gives_the_grid(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures of more than `PICTURE_CHARACTERS` together take several requests."""
    monkeypatch.setattr("headscope.exchange.PICTURE_CHARACTERS", len(ELEMENT["image"]))
    requests: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/info":
            images = {"grid": [2, 3], "special_tokens": ["[CLS]"]}
            return httpx.Response(200, json=INFO | {"images": images})
        requests.append(sent(request)["inputs"])
        inputs = requests[-1]
        pictures = [isinstance(given, dict) for given in inputs]
        lists = {
            "grid": [[2, 3] if own else None for own in pictures],
            "size": [[5, 3] if own else None for own in pictures],
            "crop": [[0.0, 0.0, 5.0, 3.0] if own else None for own in pictures],
            "tower": ["vision" if own else "text" for own in pictures],
        }
        pooled = np.zeros((len(inputs), 1), np.float32)
        tokens = ["a" * 7 if own else given for own, given in zip(pictures, inputs, strict=True)]
        return httpx.Response(200, content=binary(tokens, {"pooled": pooled}, **lists))

    first, text, last = asked(kind, "encode", answer, [PNG, "some text", PNG])
    assert requests == [[ELEMENT, "some text"], [ELEMENT]]
    for own in (first, last):
        assert (own.grid, own.size, own.crop) == ((2, 3), (5, 3), (0.0, 0.0, 5.0, 3.0))
        assert own.tower == "vision"
        assert own.texts == (f"a picture of {len(PNG)} bytes",)
        assert f"a picture of {len(PNG)} bytes" in repr(own)
    assert (text.grid, text.tower, text.texts) == (None, "text", ("some text",))


def test_predict_sends_a_batch_of_pictures_and_texts(kind: str) -> None:
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/info":
            return httpx.Response(200, json=INFO)
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=[[{"score": 1.0, "label": "cat"}]] * 2)

    labels = asked(kind, "predict", answer, [PNG, "a text"])
    assert bodies == [{"inputs": [ELEMENT, ["a text"]]}]
    assert [own[0].label for own in labels] == ["cat", "cat"]
