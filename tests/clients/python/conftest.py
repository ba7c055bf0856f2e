"""Both kinds of client."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of client, sync or async."""
    return str(request.param)
