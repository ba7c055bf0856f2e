"""The values of a body are counted before anything is built from them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.wire import strict_json
from service.api.wire.strict_json import INLINE_BYTES, MAX_VALUES, count_values, read_json
from service.errors import InvalidRequest, Unprocessable

pytestmark = pytest.mark.anyio
TEXTS = st.text(st.sampled_from('ab"\\,[{]}: é😀'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers(-9, 10**9) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=40,
)


def values(body: Any) -> int:
    """Return the number of values in a body; empty lists and objects count twice."""
    if isinstance(body, list | dict):
        inner = body.values() if isinstance(body, dict) else body
        return 1 + (sum(map(values, inner)) if body else 1)
    return 1


@given(VALUES, st.integers(1, 30))
def test_commas_and_brackets_in_texts_are_no_values(body: Any, block_bytes: int) -> None:
    """This holds however the body is divided into blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "BLOCK_BYTES", block_bytes)
        assert count_values(orjson.dumps(body)) == values(body)


LARGE: dict[str, bytes] = {
    "pairs": b"[" + b",".join([b'["a","b"]'] * 1_600_000) + b"]",
    "empty lists": b"[" + b"[]," * 5_000_000 + b"[]]",
    "objects": b"[" + b'{"a":1},' * 1_900_000 + b"1]",
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "open": b'[["' * 100_000,
}


@pytest.mark.parametrize("name", LARGE)
async def test_nothing_is_built_of_too_many_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_json.orjson, "loads", None)  # any parsing fails
    with pytest.raises(Unprocessable, match="more than 65536 values"):
        await read_json(LARGE[name])


@pytest.mark.parametrize(
    "text", ["," * 3_000_000, '"' * 1_000_000, "\\" * 1_000_001, '\\"[' * 500_000]
)
async def test_a_long_text_is_one_value_whatever_it_holds(text: str) -> None:
    assert await read_json(orjson.dumps({"inputs": text})) == {"inputs": text}


async def test_the_bound_is_exact() -> None:
    list_itself = 1
    most = orjson.dumps([10**8] * (MAX_VALUES - list_itself))
    assert len(most) > INLINE_BYTES
    assert len(await read_json(most)) == MAX_VALUES - list_itself
    with pytest.raises(Unprocessable):
        await read_json(orjson.dumps([10**8] * MAX_VALUES))


async def test_what_is_no_json_is_refused_at_any_size() -> None:
    for body in (b"{", b'{"inputs": "' + b"a" * 10**6, b'"' + b"a" * 10**6 + b'\xff"'):
        with pytest.raises(InvalidRequest):
            await read_json(body)
