"""Errors of `model`, whose messages are one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from model.errors import ModelError


def refused(
    kind: type[ModelError], about: object, call: Callable[..., object], *given: Any, **options: Any
) -> str:
    """Return the message of the error that a call raises, which names what it is about."""
    with pytest.raises(ModelError) as failed:
        call(*given, **options)
    message = str(failed.value)
    assert type(failed.value) is kind, message
    assert "\n" not in message
    assert str(about) in message
    return message
