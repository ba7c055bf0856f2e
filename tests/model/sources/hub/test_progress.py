"""Progress lines of a download."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub.utils import http_backoff

from model.sources.hub.download import attempts_told, size_told
from tests.hub import STATUSES, StandIn

LIBRARY = logging.getLogger("huggingface_hub")


def test_attempts_are_told_as_huggingface_hub_logs_them(
    hub: StandIn, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    before = [*LIBRARY.handlers], LIBRARY.propagate
    hub.failure = "unavailable"
    with attempts_told(said.append):
        LIBRARY.getChild("utils._http").warning("You are sending unauthenticated requests.")
        with pytest.raises(Exception, match="503"):
            http_backoff("GET", hub.endpoint, max_retries=1)
    assert said == ["the hub fails; trying again in 1 s"]
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert (LIBRARY.handlers, LIBRARY.propagate) == before


def test_how_long_the_hub_lets_wait(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setitem(STATUSES, "too many", (429, {"Retry-After": "7"}))
    hub.failure = "too many"
    with attempts_told(said.append), pytest.raises(Exception, match="429"):
        http_backoff("GET", hub.endpoint, max_retries=1)
    assert said == ["the hub asks to wait 8.0 s"]


@pytest.mark.parametrize("size", [4_000_000, None])
def test_lines_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    monkeypatch.setattr("model.sources.hub.download._EVERY_SECONDS", 0.001)
    (tmp_path / "a.incomplete").write_bytes(bytes(1_250_000))
    (tmp_path / "b.incomplete").write_bytes(b"")
    (tmp_path / "whole").write_bytes(bytes(3_000_000))
    said: list[str] = []
    twice = threading.Semaphore(0)

    def progress(line: str) -> None:
        said.append(line)
        twice.release()

    with size_told(tmp_path, "model.safetensors", size, progress):
        assert twice.acquire(timeout=60)
        assert twice.acquire(timeout=60)
    reported = len(said)
    whole = "" if size is None else " of 4.0 MB"
    assert said[0] == "fetching model.safetensors" + ("" if size is None else ", 4.0 MB")
    assert said[1] == f"model.safetensors: 1.2 MB{whole}"
    assert len(said) == reported


def test_a_terminal_has_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.sources.hub.download._EVERY_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said: list[str] = []
    with size_told(tmp_path, "model.safetensors", 10**6, said.append):
        threading.Event().wait(0.05)
    assert said == ["fetching model.safetensors, 1.0 MB"]
