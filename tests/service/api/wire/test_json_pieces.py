"""Pieces are the bytes that orjson makes of the whole, and float16 weights what numpy makes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest

from service.api.wire import json_pieces as module
from service.api.wire.json_pieces import (
    base64_pieces,
    float16_weights,
    item_pieces,
    json_pieces,
    list_pieces,
)

MOST = 20
SHAPES = [(0,), (1,), (20,), (21,), (100,), (3, 7), (5, 0), (2, 21), (4, 5, 3), (2, 3, 50), (1, 1)]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", MOST)


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 9, shape).astype(dtype)


def whole(value: Any) -> bytes:
    return orjson.dumps(value, np.ascontiguousarray, orjson.OPT_SERIALIZE_NUMPY)


def few(piece: Any) -> bool:
    return sum(character in b"0123456789" for character in b" " + piece) == 0 or (
        len(bytes(piece).replace(b"[", b"").replace(b"]", b"").split(b",")) <= MOST
    )


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_array(shape: tuple[int, ...], dtype: Any) -> None:
    array = numbers(shape, dtype)
    pieces = [*json_pieces(array)]
    assert b"".join(pieces) == whole(array)
    assert all(map(few, pieces))
    assert b"[" + b"".join(item_pieces(array)) + b"]" == whole(array)
    assert b"".join(list_pieces([array, array])) == whole([array, array])


def test_an_array_as_it_reads() -> None:
    array = numbers((6, 8, 10))
    for view in (array[:, ::-2], array.T, np.asfortranarray(array)):
        assert b"".join(json_pieces(view)) == whole(np.ascontiguousarray(view))


MEMBERS: list[dict[str, Any]] = [
    {},
    {"a": 1},
    {"é\n": "ü", "b": [1, 2], "c": None},
    {"tokens": ["x"] * 50, "pooled": numbers((20,)), "other": numbers((19,)), "last": 3},
    {"maps": numbers((2, 3, 30)), "small": numbers((2,)), "more": numbers((4, 40))},
    {"a": {"b": numbers((30,)), "c": {}}, "d": numbers((4, 4))[:, ::-1]},
]


@pytest.mark.parametrize("members", MEMBERS, ids=str)
def test_an_object(members: dict[str, Any]) -> None:
    pieces = [*json_pieces(members)]
    assert b"".join(pieces) == whole(members)
    floats = [piece for piece in pieces if b"." in piece]
    assert all(bytes(piece).count(b".") <= MOST for piece in floats)


def test_pieces_within_an_object() -> None:
    made = json_pieces({"a": 1, "b": list_pieces([1, 2]), "c": iter([b'"', b"x", b'"']), "d": 2})
    assert orjson.loads(b"".join(made)) == {"a": 1, "b": [1, 2], "c": "x", "d": 2}


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_items_are_made_as_they_are_written(count: int) -> None:
    made: list[int] = []

    def items() -> Iterator[dict[str, int]]:
        for number in range(count):
            made.append(number)
            yield {"number": number}

    pieces, seen = list_pieces(items()), []
    for number, piece in enumerate(pieces):
        seen.append(piece)
        assert len(made) <= number + 1
    assert b"".join(seen) == whole([{"number": number} for number in range(count)])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 100])
def test_base64(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BASE64_BYTES", 12)
    array = numbers((count, 2))[:, ::-1]
    written = base64.b64encode(np.ascontiguousarray(array).tobytes())
    pieces = [*base64_pieces(array)]
    assert b"".join(pieces) == b'"' + written + b'"'
    assert max(map(len, pieces)) <= 16
    big = array.astype(">f4")
    assert b"".join(base64_pieces(big)) == b"".join(pieces)


def ties() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return every float16 from 0 to 1, the midpoints between neighbours, and adjacent floats."""
    halves = np.arange(0, 0x3C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    points = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2])
    above, below = (np.nextafter(points, np.float32(end)) for end in (2, 0))
    return np.clip(np.concatenate([points, above, below]), 0, 1)


@pytest.mark.parametrize(
    "weights",
    [
        ties(),
        np.random.default_rng(0).random((3, 200, 200), np.float32),
        np.random.default_rng(1).random(10**5, np.float32) ** 40,
        np.zeros((2, 1, 1), np.float32),
        np.ones(1, np.float32),
    ],
    ids=["ties", "ordinary", "tiny", "zero", "one"],
)
def test_it_is_what_numpy_gives(weights: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    expected = weights.astype(np.float16)
    np.testing.assert_array_equal(float16_weights(weights), expected, strict=True)
