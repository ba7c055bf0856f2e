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
    """One text's attention from the service at `url`.

    Args:
        url: where the service is, such as `http://localhost:8000`.
        text: a text, or a pair `("question", "answer")`.
        api_key: sent as `Authorization: Bearer …`.
        timeout_seconds: after which it is given up.
        fields: the others of `POST /attention`: `layers`, `heads`, `include`, `ablate`, `top_k`, …

    Raises:
        HeadscopeError: the service refuses, fails, or does not answer; its own words, and status.
        ValueError: `url` is not one of http or https.

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
    """The attention of many texts, or of many pairs; else as `attention`."""
    with Client(url, api_key=api_key, timeout=timeout_seconds) as client:
        return client.attention(texts, **fields)
