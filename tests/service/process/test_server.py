"""The server around the application."""

from __future__ import annotations

import gc

import pytest
import uvicorn

from service.process.server import Server


def test_what_a_server_was_made_of_is_never_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the collector's own count of what it leaves alone."""
    counts = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_: counts.append(gc.get_freeze_count()))
    try:
        Server.run(Server.__new__(Server))
    finally:
        gc.unfreeze()
    assert counts[0] > 10_000
