"""Replies with maps that come a layer at a time."""

from __future__ import annotations

import json

import numpy as np
import pytest

from service.api.kserve.attention import MapsWriter
from service.api.kserve.outputs import Output
from service.inference.attention.maps import LayerMaps, TextSummary
from tests.service.harness import body_of

POOLED = np.arange(6, dtype=np.float32).reshape(2, 3)
LAYERS = [np.full((1, size, size), size, np.float32) / 7 for size in (2, 2, 3, 3)]


@pytest.mark.parametrize("binary", [True, False])
def test_maps_stand_last_and_end_to_end(binary: bool) -> None:
    maps = Output("attention", (26,), binary)
    writer = MapsWriter({}, [Output("pooled", (2, 3), binary)], maps, keeps_back=True)
    writer.outputs = [Output("pooled", (2, 3), binary, POOLED)]
    parts = [*writer.start()]
    for number, layer in enumerate(LAYERS):
        found = LayerMaps(number // 2, writer.dump(layer), None, None, None)
        parts += writer.layer(found)
        if number % 2:
            parts += writer.text(TextSummary(number // 2, {}, None, None))
    reply = body_of([*parts, *writer.end()])
    expected = np.concatenate([layer.reshape(-1) for layer in LAYERS])
    if binary:
        assert writer.json_length is not None
        assert writer.length == len(reply)
        assert json.loads(reply[: writer.json_length])["outputs"][1]["shape"] == [26]
        assert reply[writer.json_length :] == POOLED.tobytes() + expected.tobytes()
    else:
        assert (writer.json_length, writer.length) == (None, None)
        pooled, attention = json.loads(reply)["outputs"]
        assert pooled["data"] == POOLED.reshape(-1).tolist()
        np.testing.assert_array_equal(np.array(attention["data"], np.float32), expected)
