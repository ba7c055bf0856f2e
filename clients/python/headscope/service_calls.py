"""The calls that ask a service about itself: its models, and how exact they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack
from urllib.parse import urlencode

from headscope import reading
from headscope.call import Call
from headscope.fields import VerifyFields
from headscope.inputs import Text, texts_of
from headscope.joining import only, worst
from headscope.service_results import Info, ServedModel, Verification


def info(model: str | None = None) -> Call[Any, Info]:
    """What is served, by what, and its limits: of the first model, or of the one that is named."""
    query = "" if model is None else "?" + urlencode({"model": model})
    return Call(f"/info{query}", (), None, reading.read_info, only)


def models() -> Call[Any, list[ServedModel]]:
    """The models that are served."""
    return Call("/v1/models", (), None, reading.read_models, only)


def verify(inputs: str | Sequence[Text], **fields: Unpack[VerifyFields]) -> Call[Any, Verification]:
    """Texts through PyTorch and through the engine; of several requests the worst difference.

    Raises:
        ValueError: there is no text.

    """
    every = texts_of(inputs)
    if not every:
        raise ValueError("inputs is empty: nothing can be compared")
    return Call("/verify", every, {**fields}, reading.read_verification, worst)
