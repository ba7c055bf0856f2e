"""Jina's `late_chunking`: the inputs are chunks of one text, which is encoded as a whole.

"When set to true, Jina AI API will concatenate all sentences in the input field and feed them as a
single string to the model": https://jina.ai/embeddings. A space separates two inputs without white
space between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request

from model.numerics.pooling import modes_of
from service.api.drop_in.embedding import Embedding, PreparedEmbedding, prepare_embedding
from service.api.wire.route import model_of
from service.errors import Unprocessable
from service.inference.text_spans import spans_of
from service.inference.tokenization.inputs import Input, Picture
from service.inference.tokenization.truncation import Offset

JOINED = "the joined input"
"""Name of the text of all inputs in error messages."""


async def prepare_late_chunks(request: Request, wanted: Embedding) -> PreparedEmbedding:
    """Tokenise all inputs of a request as one text, of which each input is a span.

    Args:
        request: HTTP request, which names the model and the client.
        wanted: texts, at least one, and options of their vectors.

    """
    if "cls" in modes_of(model_of(request).inference.sentence.pooling):
        raise Unprocessable(
            "late_chunking: the model pools the first token, which is in no input: leave it out, "
            "or ask POST /encode for `spans` with `pooling` mean"
        )
    text, spans = joined(wanted.inputs)
    options = replace(wanted.options, naming=JOINED)
    prepared = await prepare_embedding(request, replace(wanted, inputs=[text], options=options))
    try:
        found = await asyncio.to_thread(spans_of, [text], [spans], prepared.texts.texts)
    except Unprocessable as error:
        message = str(error).replace("spans[0]", "input").replace("inputs[0]", JOINED)
        raise Unprocessable(f"late_chunking: {message}") from None
    return replace(prepared, options=replace(prepared.options, pooled=False, spans=found))


def joined(inputs: Sequence[Input]) -> tuple[str, list[Offset]]:
    """Return the text of all inputs, and the start and end of each in it.

    Raises:
        Unprocessable: an input is a list of token ids or a picture.

    """
    parts: list[str] = []
    spans: list[Offset] = []
    end = 0
    for index, given in enumerate(inputs):
        if isinstance(given, Picture):
            raise Unprocessable(f"late_chunking: input[{index}] is a picture: leave it out")
        if not isinstance(given, str):
            raise Unprocessable(
                f"late_chunking: input[{index}] is no text: send the texts of token ids"
            )
        if parts and given and not (parts[-1][-1:].isspace() or given[0].isspace()):
            parts.append(" ")
            end += 1
        parts.append(given)
        spans.append((end, end + len(given)))
        end += len(given)
    return "".join(parts), spans
