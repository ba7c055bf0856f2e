"""The client to which a request counts."""

from __future__ import annotations

import pytest

from service.http.admission import Admission
from tests.service.harness import exchange


@pytest.mark.parametrize(("client", "name"), [(("192.0.2.7", 80), "192.0.2.7"), (None, "")])
def test_without_hosts_and_keys_everybody_is_an_address(
    client: tuple[str, int] | None, name: str
) -> None:
    found = exchange(path="/info", headers=[(b"host", b"evil.example")], client=client)
    Admission(None, None).admit(found)
    assert (found.client, found.key) == (name, "")
