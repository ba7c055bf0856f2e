"""Documents of rerank requests, as texts or objects with a text, and their truncation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from service.inference.core import Inference
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.tokenizer import Options
from service.scheduler.submission import Caller

NAMING = "documents[{}]"
CHARACTER_TOKENS = 4
"""Maximum tokens of a character: its bytes in UTF-8."""
_ALONE = Options(truncate=True, naming=NAMING)


def _documents(value: object) -> list[str]:
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("documents", "a list with at least one document is needed")
    texts = []
    for index, document in enumerate(value):
        match document:
            case str(text) | {"text": str(text)}:
                texts.append(text)
            case _:
                raise PydanticCustomError(
                    "documents",
                    "documents[{index}] is neither a text nor an object with a text",
                    {"index": index},
                )
    return texts


_TEXT = {"type": "string"}
_OBJECT = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}
Documents = Annotated[
    list[str],
    PlainValidator(_documents),
    WithJsonSchema(
        {"type": "array", "items": {"anyOf": [_TEXT, _OBJECT]}, "minItems": 1, "title": "Documents"}
    ),
    Field(description="Documents to rank: texts, or objects with a `text`."),
]


async def shortened(
    inference: Inference, documents: Sequence[str], max_tokens: int, caller: Caller
) -> Sequence[str]:
    """Return each document cut after its first `max_tokens` tokens.

    Args:
        inference: inference of the model.
        documents: texts, at least one.
        max_tokens: maximum number of tokens of a document, without special tokens. Documents stay
            uncut if this is not below the model's own limit.
        caller: client and deadline of the request.

    Raises:
        Unprocessable: there are too many documents, or a document has too many characters.
        Overloaded: the queue has no room, or the deadline cannot be met.

    """
    most = CHARACTER_TOKENS * max(map(len, documents))
    if max_tokens >= min(most, inference.limits.max_tokens):
        return documents
    prepared = await inference.prepare(documents, _ALONE, caller, "encode")

    def cut() -> list[str]:
        pairs = zip(documents, prepared.texts, strict=True)
        return [first_tokens(document, text, max_tokens) for document, text in pairs]

    return await asyncio.to_thread(cut)


def first_tokens(document: str, tokenized: TokenizedText, count: int) -> str:
    """Return a document up to the end of its first `count` tokens, special tokens not counted."""
    pairs = zip(tokenized.offsets, tokenized.special_tokens_mask, strict=True)
    ends = [end for (_, end), special in pairs if not special]
    return document[: ends[count - 1]] if len(ends) > count else document
