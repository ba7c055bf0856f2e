"""Outputs in JSON and bytes: values survive the round trip, within the predicted size."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from service.api.kserve.outputs import Output, head, opened, tails, text_values
from tests.service.harness import tokenized

TEXTS = [tokenized(length) for length in (3, 1, 6)]
NAMES: tuple[Any, ...] = ("tokens", "offsets", "truncated", "cu_seqlens", "token_ids")
AWKWARD = np.array([[0.1, 1 / 3, -0.0], [1e-45, 3.4028235e38, -7.0000005e-5]], np.float32)


def output(name: Any, values: Any, *, binary: bool) -> Output:
    shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
    return Output(name, shape, binary, values)


@pytest.mark.parametrize("most", [1, 4, 2**16])
def test_json(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.wire.json_pieces.PIECE", most)
    monkeypatch.setattr("service.api.kserve.outputs.ITEMS", most)
    values = {"pooled": AWKWARD} | {name: text_values(name, TEXTS) for name in NAMES}
    given = [output(name, value, binary=False) for name, value in values.items()]
    assert tails(given) == []
    reply = json.loads(b"".join(head({"id": "x"}, given)))
    assert reply["id"] == "x"
    for one, found in zip(given, reply["outputs"], strict=True):
        assert found.keys() == {"name", "datatype", "shape", "data"}
        assert len(b"".join(one.entry())) <= one.size
        own = np.array(values[one.name])
        np.testing.assert_array_equal(np.array(found["data"], own.dtype), own.reshape(-1))
        assert found["shape"] == list(own.shape)


def test_bytes() -> None:
    values = {"pooled": AWKWARD[:, ::-1]} | {name: text_values(name, TEXTS) for name in NAMES}
    given = [output(name, value, binary=True) for name, value in values.items()]
    reply = json.loads(b"".join(head({}, given)))
    for one, found, tail in zip(given, reply["outputs"], tails(given), strict=True):
        assert found["parameters"] == {"binary_data_size": len(tail)}
        assert len(tail) == one.nbytes < one.size
    floats, tokens, offsets, truncated, *_ = map(bytes, tails(given))
    assert floats == np.ascontiguousarray(AWKWARD[:, ::-1]).tobytes()
    assert tokens[:4] == len(TEXTS[0].tokens[0].encode()).to_bytes(4, "little")
    assert tokens[4:].startswith(TEXTS[0].tokens[0].encode())
    assert offsets == np.array(values["offsets"], "<i4").tobytes()
    assert truncated == b"\0\1\0"


def test_values_that_come_later_leave_the_json_open() -> None:
    later = Output("attention", (4,), binary=False)
    assert opened([later])
    begun = b"".join(head({}, [output("pooled", AWKWARD, binary=False), later]))
    assert json.loads(begun + b"1,2,3,4]}]}")["outputs"][1]["data"] == [1, 2, 3, 4]
    assert not opened([Output("attention", (4,), binary=True)])
