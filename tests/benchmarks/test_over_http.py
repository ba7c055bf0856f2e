"""Load over HTTP sends different texts, and is skipped if packages are missing."""

from __future__ import annotations

import sys

import pytest

from benchmarks import over_http
from benchmarks.harness.bench import Bench


def test_generators_send_other_texts():
    texts = [f"text {i}" for i in range(1000)]
    first, second = (over_http.bodies(texts, 4, n) for n in range(2))
    sent = [text for body in (*first, *second) for text in body["inputs"]]
    assert len(set(sent)) == len(sent) == 2 * 4 * over_http.BODIES


@pytest.mark.parametrize("name", ["fastapi", "uvicorn"])
def test_without_the_web_http_is_said_not_to_be_measured(
    name: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, name, None)
    (figure,) = over_http.measure(bench)
    assert figure.value is None
    assert figure.note == f"not installed: {name}"
