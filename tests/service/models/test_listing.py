"""State of every version that a service has or can load."""

from __future__ import annotations

import pytest

from service.models.listing import of_name, versions
from tests.service.harness import Client
from tests.service.repositories import FINGERPRINT, control_of, encode, load

pytestmark = pytest.mark.anyio


async def test_a_loaded_version_has_a_fingerprint_and_a_size(client: Client) -> None:
    control = control_of(client)
    await load(client, "a", version="1")
    one, two = of_name(versions(control, await control.refresh()), "a")
    assert (one.version, one.state, two.version, two.state) == ("1", "serving", "2", "available")
    assert one.fingerprint == (await encode(client, "a")).headers[FINGERPRINT]
    assert one.memory_bytes
    assert two.memory_bytes is two.fingerprint is None
