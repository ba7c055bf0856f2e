"""Calls for information about a service: its models, and their verification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack
from urllib.parse import urlencode

from headscope import reading
from headscope.call import Call, CallFor
from headscope.fields import VerifyFields
from headscope.inputs import Text, texts_of
from headscope.joining import only, worst
from headscope.service_results import Info, ServedModel, Verification


def info(model: str | None = None) -> CallFor[Info]:
    """Return information about a model and its limits: the first model, or the named one."""
    query = "" if model is None else "?" + urlencode({"model": model})
    return Call(f"/info{query}", (), None, reading.read_info, only)


def models() -> CallFor[list[ServedModel]]:
    """Return the served models."""
    return Call("/v1/models", (), None, reading.read_models, only)


def verify(inputs: str | Sequence[Text], **fields: Unpack[VerifyFields]) -> CallFor[Verification]:
    """Compare the engine with PyTorch on some texts; return the worst differences.

    Raises:
        ValueError: there are no texts.

    """
    texts = texts_of(inputs)
    if not texts:
        raise ValueError("inputs is empty: nothing can be compared")
    return Call("/verify", texts, {**fields}, reading.read_verification, worst)
