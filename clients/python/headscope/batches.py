"""Splitting of long lists of inputs into several requests.

A request is limited by the limits that the service reports, and so that several requests fit into
its queue and its memory at once. If an estimate was too high, the service answers 413 and the
request is split in half (`headscope.exchange`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headscope.service_results import Info

if TYPE_CHECKING:
    from headscope.call import CallFor

REQUEST_CHARACTERS = 2**18
PICTURE_CHARACTERS = 2**22
"""Characters of pictures in base64; a larger picture gets a request of its own."""
REPLY_BYTES = 2**25
QUEUE_SHARE = 8
"""Divisor of the queue's size for one request, which leaves room for other clients."""
BYTES_PER_TOKEN = 3
"""Bytes per token in UTF-8, for short words and ideographs; an overestimate of tokens in most
languages."""


def tokens_of(texts: Sequence[str], info: Info) -> int:
    """Estimate the number of tokens of an input, at most the model's maximum."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return min(size // BYTES_PER_TOKEN + 2, info.max_input_length)


def ranges_of(call: CallFor[object], info: Info) -> Iterator[range]:
    """Yield the inputs of each request, in order; a large input gets a request of its own."""
    bounds = (
        info.max_client_batch_size,
        REQUEST_CHARACTERS,
        PICTURE_CHARACTERS,
        max(1, info.max_queue_tokens // QUEUE_SHARE),
        REPLY_BYTES,
    )
    start, total = 0, [0] * len(bounds)
    for i in range(len(call.inputs)):
        texts, pictures = call.texts(i), call.pictures(i)
        tokens = info.picture_tokens * len(pictures)
        if texts or not pictures:
            tokens += tokens_of(texts, info)
        of_pictures = sum(picture.characters for picture in pictures)
        size = (1, sum(map(len, texts)), of_pictures, tokens, call.weigh(tokens, info))
        total = [a + b for a, b in zip(total, size, strict=True)]
        if i > start and any(a > bound for a, bound in zip(total, bounds, strict=True)):
            yield range(start, i)
            start, total = i, list(size)
    yield range(start, len(call.inputs))
