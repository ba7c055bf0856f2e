"""Entity tags that a client sends."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from service.api.wire.etag import is_known


@pytest.mark.parametrize(
    ("header", "known"),
    [('"a"', True), ('W/"a"', True), ('"b", "a"', True), ('"b"', False), ("a", False), ("", False)],
)
def test_a_tag_is_known_by_itself(header: str, known: bool) -> None:
    headers = [(b"if-none-match", header.encode())]
    assert is_known(Request({"type": "http", "headers": headers}), '"a"') == known
    assert not is_known(Request({"type": "http", "headers": []}), '"a"')
