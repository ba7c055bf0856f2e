"""Requests of a recording, and the functions that build them.

Requests fit the served model: lengths, layers and heads come from `/info`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Group = Literal[
    *("encode", "attention", "explain", "rank"),
    *("engines", "operations", "pages", "errors", "slow", "keys"),
]
"""Group of a request: `engines` name an engine that the fake service lacks, `pages` describe the
service and change with it, `slow` last until the service's own timeout."""

BINARY = {"accept": "application/vnd.safetensors"}
BASE64 = {"encoding_format": "base64"}
POOLED, TOKENS = {"outputs": ["pooled"]}, {"outputs": ["tokens"]}
STATS, ROLLOUT = {"include": ["stats"]}, {"include": ["rollout"]}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and limits of the served model."""

    tokens: int
    """Maximum tokens of a text, special tokens included."""
    characters: int
    inputs: int
    layers: int
    heads: int
    hidden: int

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Shape:
        """Return the shape in a reply of `/info`."""
        return cls(
            info["max_input_length"],
            info["max_characters"],
            info["max_client_batch_size"],
            info["layers"],
            info["heads"],
            info["hidden_size"],
        )

    def text(self, tokens: int) -> str:
        """Return a text of `tokens` tokens, special tokens included."""
        words = ("the", "of", "water", "time", "a", "day", "new", "house", "by")
        return " ".join(words[n % len(words)] for n in range(tokens - 2))


@dataclass(frozen=True, slots=True)
class Request:
    """Named bytes, to be sent over a connection of their own."""

    group: Group
    name: str
    content: bytes
    replies: int = 1
    """Number of replies; several if the bytes hold several requests."""
    exact: bool = True
    """Whether the fake engine's reply has the same bytes on every processor."""


def plain(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """Return an HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "host: recording"]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def post(path: str, body: Any, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a POST of a body as JSON, or of bytes as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return plain("POST", path, {"content-type": "application/json", **(headers or {})}, content)


def both_forms(
    group: Group, path: str, named: Iterable[tuple[str, dict[str, Any]]]
) -> Iterator[Request]:
    """Yield each body as two requests, for JSON and for safetensors."""
    for name, body in named:
        exact = group != "explain" and not inexact(body)
        yield Request(group, f"{path} {name}", post(path, body), exact=exact)
        if body.get("dtype") != "float16" and "encoding_format" not in body:
            binary = post(path, body, BINARY)
            yield Request(group, f"{path} {name}, binary", binary, exact=exact)


def inexact(body: Mapping[str, Any]) -> bool:
    """Return whether the service itself sums many terms, in the processor's fastest order."""
    asked = {*body.get("include", [])} & {"stats", "rollout", "norms", "norm_rollout"}
    return bool(asked or any(body.get(name) for name in ("normalize", "dimensions", "ablate")))
