"""Attention from a running service, in a few lines of Python.

reply = attention("http://localhost:8000", "The animal didn't cross the street.")
reply.tokens, reply.weights[3, 1]
reply.head_view()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from headscope.client import Client
from headscope.fields import AttentionFields
from headscope.inputs import Text
from headscope.reply import Reply


def attention(
    url: str,
    text: Text,
    *,
    api_key: str | None = None,
    timeout_seconds: float = 120,
    **fields: Unpack[AttentionFields],
) -> Reply:
    """Return one text's attention from the service at `url`.

    Args:
        url: address of the service, such as `http://localhost:8000`.
        text: a text, or a pair `("question", "answer")`.
        api_key: sent as `Authorization: Bearer …`.
        timeout_seconds: maximum seconds for the call.
        fields: further fields of `POST /attention`: `layers`, `heads`, `include`, `ablate`, …

    Raises:
        HeadscopeError: the service refuses, fails, or does not answer.
        ValueError: `url` is not an http or https address.

    """
    return attentions(url, [text], api_key=api_key, timeout_seconds=timeout_seconds, **fields)[0]


def attentions(
    url: str,
    texts: Sequence[Text],
    *,
    api_key: str | None = None,
    timeout_seconds: float = 120,
    **fields: Unpack[AttentionFields],
) -> list[Reply]:
    """Return the attention of several texts or pairs; arguments as for `attention`."""
    with Client(url, api_key=api_key, timeout=timeout_seconds) as client:
        return client.attention(texts, **fields)
