"""Ratios to the faster peer, which has to give the same vectors."""

from __future__ import annotations

import pytest

from benchmarks import in_process
from benchmarks.harness.bench import Bench
from benchmarks.harness.encoding import Encoding
from benchmarks.harness.vectors import OtherVectorsError
from tests.benchmarks.test_correctness import other_pooled


def test_the_ratio_is_to_the_faster_peer():
    seconds = {in_process.OURS: [1.0, 2.0, 2.0], "slow": [9.0, 9.0, 9.0], "fast": [3.0, 4.0, 8.0]}
    assert in_process.fastest_peer(seconds) == ("fast", 3.0)


@pytest.mark.slow
def test_other_vectors_are_not_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Encoding, "pooled", other_pooled)
    encoding, peer = (
        bench.encoding(bench.model, "fp16"),
        in_process.peer(bench, bench.model, compiled=False),
    )
    with pytest.raises(OtherVectorsError, match="cosine"):
        in_process.check(encoding, peer, ["the cat", "a"])
