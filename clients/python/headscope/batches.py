"""Long lists of inputs as several requests.

Bounds of one request are what the service says of itself, and sizes at which several of them fit
into its queue and its memory at a time. A guess that was too high is told by a 413, and the request
is halved (`headscope.exchange`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headscope.service_results import Info

if TYPE_CHECKING:
    from headscope.call import Call

REQUEST_CHARACTERS = 2**18
REPLY_BYTES = 2**25
QUEUE_SHARE = 8
"""A request has at most this part of the queue: the service leaves room for other clients."""
BYTES_PER_TOKEN = 3
"""UTF-8, of short words and of ideographs; on the safe side of most languages."""


def tokens_of(texts: Sequence[str], info: Info) -> int:
    """About how many tokens an input of one or more texts has, at most what the model takes."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return min(size // BYTES_PER_TOKEN + 2, info.max_input_length)


def ranges_of(call: Call[Any, Any], info: Info) -> Iterator[range]:
    """The inputs of each request, in their order; an input that is large stands alone."""
    bounds = (
        info.max_client_batch_size,
        REQUEST_CHARACTERS,
        max(1, info.max_queue_tokens // QUEUE_SHARE),
        REPLY_BYTES,
    )
    start, total = 0, [0] * len(bounds)
    for i in range(len(call.inputs)):
        texts = call.texts(i)
        tokens = tokens_of(texts, info)
        size = (1, sum(map(len, texts)), tokens, call.weigh(tokens, info))
        total = [a + b for a, b in zip(total, size, strict=True)]
        if i > start and any(a > bound for a, bound in zip(total, bounds, strict=True)):
            yield range(start, i)
            start, total = i, list(size)
    yield range(start, len(call.inputs))
