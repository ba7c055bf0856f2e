"""Labels of heads, by hand, and errors for parts that were not requested."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import HeadscopeError, Reply

SHARES = ("cls", "sep", "self", "previous", "next")


def reply(size: int, separators: int = 1, **stats: float) -> Reply:
    """Return a reply of one head, layer 3 and head 7, with these statistics."""
    values = dict.fromkeys(("entropy", *SHARES), 0.0) | stats
    ids = [101, *[7] * (size - separators - 1), *[102] * separators]
    return Reply(
        model="m",
        backend="onnx",
        layers=[3],
        heads=[7],
        texts=("",),
        tokens=["t"] * size,
        token_ids=ids,
        segment_ids=[0] * size,
        offsets=[(0, 1) if token == 7 else (0, 0) for token in ids],
        truncated=False,
        tensors={f"stats.{name}": np.full((1, 1), value) for name, value in values.items()},
    )


@pytest.mark.parametrize(
    ("found", "label"),
    [
        (reply(10, previous=0.5, cls=0.4), "previous token"),
        (reply(10, next=0.51, cls=0.5), "next token"),
        (reply(10, self=0.9), "itself"),
        (reply(10, cls=0.5, self=0.5), "itself"),
        (reply(10, cls=0.7, previous=0.5), "[CLS] sink"),
        (reply(10, sep=0.6), "separator sink"),
        (reply(10, sep=0.6, separators=3), "separator sink"),
        (reply(10, sep=0.6, separators=4), None),  # even attention gives them 0.4
        (reply(10, cls=0.49), None),
        (reply(3, self=0.6), None),  # even attention gives it 1/3
        (reply(3, self=0.67), "itself"),
        (reply(10, entropy=0.81 * np.log(10)), "broad"),
        (reply(10, entropy=0.79 * np.log(10)), None),
        (reply(10, entropy=0.81 * np.log(10), cls=0.5), "[CLS] sink"),
    ],
)
def test_labels(found, label):
    assert found.label(3, 7) == label


def test_what_was_not_asked_for_is_told():
    with pytest.raises(HeadscopeError, match='include "stats"'):
        _ = Reply(**reply(4).__dict__ | {"tensors": {}}).statistics
    with pytest.raises(HeadscopeError, match='include "weights"'):
        _ = reply(4).weights
    with pytest.raises(ValueError, match="not in list"):
        reply(4).label(0, 7)
