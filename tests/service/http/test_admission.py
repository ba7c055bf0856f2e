"""Required headers of a request, and the client to which it is attributed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.errors import MisdirectedRequest, Unauthorized
from service.http.admission import Admission, AllowedHosts, ApiKeys, KeyFile
from service.request_context import RequestContext
from tests.service.harness import request_context


def head(host: bytes = b"localhost", key: bytes = b"", path: str = "/info") -> dict[str, Any]:
    headers = [(b"host", host), (b"authorization", b"Bearer " + key)]
    return {"path": path, "headers": headers, "client": ("192.0.2.7", 80)}


def admitted(admission: Admission, scope: dict[str, Any]) -> RequestContext[object]:
    """Return the context of an admitted request."""
    context = request_context()
    admission.admit(scope, context)
    return context


def test_without_hosts_and_keys_everybody_is_an_address() -> None:
    context = admitted(Admission(None, None), head(b"evil.example"))
    assert (context.client, context.key) == ("192.0.2.7", "")
    assert admitted(Admission(None, None), head() | {"client": None}).client == ""


def test_the_owner_of_a_key_is_one_wherever_it_asks_from() -> None:
    admission = Admission(None, ApiKeys("one,two"))
    names = {admitted(admission, head(key=key)).client for key in (b"one", b"two")}
    assert len(names) == 2
    assert not names & {"", "192.0.2.7", "one", "two"}
    with pytest.raises(Unauthorized):
        admitted(admission, head(key=b"three"))


def test_a_key_has_a_name_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("search:one\njobs:two\n", encoding="utf-8")
    admission = Admission(None, ApiKeys("three", KeyFile(tmp_path / "keys")))
    context = admitted(admission, head(key=b"two"))
    assert (context.client, context.key) == ("jobs", "jobs")
    assert admitted(admission, head(key=b"three")).key == "key 0"
    with pytest.raises(Unauthorized):
        admitted(admission, head(key=b"jobs"))


def test_keys_that_change_are_heeded(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("search:one\n", encoding="utf-8")
    file = KeyFile(path)
    admission = Admission(None, ApiKeys(None, file))
    path.write_text("search:two\nother:three\n", encoding="utf-8")
    file.refresh()
    with pytest.raises(Unauthorized):
        admitted(admission, head(key=b"one"))
    assert admitted(admission, head(key=b"three")).client == "other"


@pytest.mark.parametrize("path", ["/metrics", "/health", "/health/ready", "/v2/health/live"])
def test_the_metrics_port_needs_no_key(path: str) -> None:
    admission = Admission(None, ApiKeys("one"), metrics_port=9000)
    asked = head(path=path) | {"server": ("192.0.2.1", 9000)}
    assert admitted(admission, asked).client == ""
    if path == "/metrics":
        with pytest.raises(Unauthorized):
            admitted(admission, asked | {"server": ("192.0.2.1", 8000)})


@pytest.mark.parametrize("path", ["/", "/encode", "/info", "/metrics/", "/openapi.json"])
def test_the_metrics_port_answers_nothing_else(path: str) -> None:
    admission = Admission(None, ApiKeys("one"), metrics_port=9000)
    with pytest.raises(MisdirectedRequest, match="/metrics and the health routes alone"):
        admitted(admission, head(key=b"one", path=path) | {"server": ("192.0.2.1", 9000)})


@pytest.mark.parametrize("path", ["/info", "/health/live"])
def test_the_host_comes_first(path: str) -> None:
    admission = Admission(AllowedHosts([]), ApiKeys("one"))
    for key in (b"one", b"three"):
        with pytest.raises(MisdirectedRequest):
            admitted(admission, head(b"evil.example", key, path))
    assert admitted(admission, head(key=b"one", path=path)).client
