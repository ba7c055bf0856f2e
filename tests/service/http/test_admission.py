"""What a head must have, and on whose account its request is."""

from __future__ import annotations

from typing import Any

import pytest

from service.errors import MisdirectedRequest, Unauthorized
from service.http.admission import Admission
from service.http.hosts import AllowedHosts
from service.http.keys import ApiKeys


def head(host: bytes = b"localhost", key: bytes = b"", path: str = "/info") -> dict[str, Any]:
    headers = [(b"host", host), (b"authorization", b"Bearer " + key)]
    return {"path": path, "headers": headers, "client": ("192.0.2.7", 80)}


def test_without_hosts_and_keys_everybody_is_an_address() -> None:
    assert Admission(None, None).client(head(b"evil.example")) == "192.0.2.7"
    assert Admission(None, None).client(head() | {"client": None}) == ""


def test_the_owner_of_a_key_is_one_wherever_it_asks_from() -> None:
    admission = Admission(None, ApiKeys("one,two"))
    names = {admission.client(head(key=key)) for key in (b"one", b"two")}
    assert len(names) == 2
    assert not names & {"", "192.0.2.7", "one", "two"}
    with pytest.raises(Unauthorized):
        admission.client(head(key=b"three"))


@pytest.mark.parametrize("path", ["/info", "/health/live"])
def test_the_host_comes_first(path: str) -> None:
    admission = Admission(AllowedHosts([]), ApiKeys("one"))
    for key in (b"one", b"three"):
        with pytest.raises(MisdirectedRequest):
            admission.client(head(b"evil.example", key, path))
    assert admission.client(head(key=b"one", path=path))
