"""Check of the model that a request expects, by the header `x-expect-fingerprint`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from service.errors import AnotherModel, Unprocessable
from service.inference.fingerprint import EXPECT_HEADER, FINGERPRINT_CHARACTERS

_HEADER = EXPECT_HEADER.encode()
_FINGERPRINT = re.compile(rb"[0-9a-f]{%d}" % FINGERPRINT_CHARACTERS)
FingerprintHeader = tuple[bytes, bytes]
"""Name and value of the reply header with a model's fingerprint."""


def check_expected(headers: Mapping[bytes, bytes], answering: FingerprintHeader) -> None:
    """Raise if a request expects another model than the answering one."""
    expected = headers.get(_HEADER)
    if expected in (None, answering[1]):
        return
    if not _FINGERPRINT.fullmatch(expected):
        raise Unprocessable(
            f"{EXPECT_HEADER} must be {FINGERPRINT_CHARACTERS} hexadecimal digits, as in the "
            f"header {answering[0].decode()} of replies"
        )
    raise AnotherModel(
        f"{EXPECT_HEADER} is {expected.decode()}, and the model here is {answering[1].decode()}: "
        "vectors of the two cannot be compared; send the request to the expected model, or compute "
        "the stored vectors again"
    )
