"""A wrong number ends the run, and the error names the model."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import correctness
from benchmarks.harness.encoding import Encoding

REAL_POOLED, REAL_TENSORS = Encoding.pooled, correctness.runtime_tensors


def nan_pooled(encoding: Encoding, batch):
    return [vector * np.nan for vector in REAL_POOLED(encoding, batch)]


def other_pooled(encoding: Encoding, batch):
    found = REAL_POOLED(encoding, batch)
    return [*found[:-1], found[-1][::-1]]


def other_states(*arguments):
    found = REAL_TENSORS(*arguments)
    found[-1][correctness.Key("hidden", 1)][0, 0] += 1
    return found


def other_map(*arguments):
    found = REAL_TENSORS(*arguments)
    found[0][correctness.Key("attention", 1, 1)][0, 0] += 0.5
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "wrong", "said"),
    [
        (Encoding, "pooled", nan_pooled, "pooled"),
        (Encoding, "pooled", other_pooled, "pooled"),
        (correctness, "runtime_tensors", other_states, "hidden 1"),
        (correctness, "runtime_tensors", other_map, "attention 1.1"),
    ],
)
def test_a_wrong_number_ends_the_run(
    dry, monkeypatch: pytest.MonkeyPatch, place, name: str, wrong, said: str
):
    monkeypatch.setattr(place, name, wrong)
    code, found = dry("correctness", "limits")
    assert code == 1
    assert list(found["steps"]) == ["correctness"]
    step = found["steps"]["correctness"]
    assert step["error"].startswith("WrongError: out of tolerance: tiny, fp32, tiny, fp16")
    for figure in step["figures"]:
        assert figure["value"] == "WRONG"
        assert figure["details"]["failed"] == [said]
        assert bool(figure["details"]["not_finite"]) == (wrong is nan_pooled)
