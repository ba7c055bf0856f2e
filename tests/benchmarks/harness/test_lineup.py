"""A peer is measured if its vectors are right; otherwise it ends, and the reason is given."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.harness import lineup
from benchmarks.harness.lineup import Wanted, line_up
from tests.benchmarks.harness.test_servers import server

TEXTS = ["a", "abc"]


class Baseline:
    """System that computes the stand-in's vectors, or the opposite ones."""

    def __init__(self, sign: float) -> None:
        self.sign = sign

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        return self.sign * np.array([[len(text), 1.0] for text in texts])

    def seconds(self, texts: list[str]) -> float:
        return 1.0


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_a_peer_with_other_vectors_ends(right: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(lineup.SERVERS, "stand-in", lambda _name, _folder: server())
    baseline: Any = Baseline(1 if right else -1)
    wanted = Wanted((), (2,), ["stand-in"])
    before = {child.pid for child in psutil.Process().children()}  # of other tests
    with contextlib.ExitStack() as stack:
        found = line_up(baseline, Path(), wanted, TEXTS, stack)
        assert len({child.pid for child in psutil.Process().children()} - before) == right
    assert [way.cosine for way in found.ways[1:]] == pytest.approx([1.0, 1.0] if right else [])
    assert list(found.absent) == ([] if right else ["stand-in"])
