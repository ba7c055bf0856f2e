"""`GET /vocabulary`: tokens by their indices in sparse vectors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from service.api.tei.embed_sparse import SPARSE_KINDS
from service.api.tei.texts import ERRORS
from service.api.wire.media import is_known
from service.api.wire.reply_headers import check_expected
from service.api.wire.route import (
    ApiExchange,
    bind_model,
    chosen_model,
    json_reply,
    name_model,
    reserve,
)
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.tasks.task_heads import required_task
from service.inference.timings import Timings

router = APIRouter(tags=["tasks"])
TOKEN_BYTES = 24
"""Predicted bytes of a token in JSON, above the mean of a vocabulary."""


class VocabularyQuery(BaseModel):
    """Query of `GET /vocabulary`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(
        None, description="Name of a model; the first sparse encoder by default."
    )
    index: list[int] = Field(
        [], description="Token ids, as /embed_sparse returns them; all by default."
    )


@router.get(
    "/vocabulary",
    response_model=None,
    responses={
        200: {"model": list[str | None]},
        304: {"description": "The client's copy is current, by the ETag in `if-none-match`"},
        **ERRORS,
    },
)
async def vocabulary(
    query: Annotated[VocabularyQuery, Query()], request: Request, exchange: ApiExchange
) -> Response:
    """Return the tokens of the requested ids, in order; by default of all ids.

    Ids without a token are null. The indices of method bm42 are hashes of stems, which have no
    vocabulary.
    """
    model = await chosen_model(exchange, query.model, _check_sparse)
    check_expected(exchange.headers, bind_model(exchange, model))
    inference, etag = model.inference, f'"{model.artifact.sha256[:32]}"'
    indices = _known(query.index, inference.config.vocab_size)
    headers = {"etag": etag, "cache-control": "no-cache"}
    if is_known(request, etag):
        current = Response(status_code=304, headers=headers)
        name_model(exchange, current, query.model)
        return current
    size = TOKEN_BYTES * len(indices)
    timings = Timings(0, time.monotonic(), 0.0)
    reserve(exchange, size, advice="name some by `index`")
    reply = await json_reply(exchange, lambda: inference.tokenizer.vocabulary(indices), timings)
    reply.headers.update(headers)
    name_model(exchange, reply, query.model)
    return reply


def _check_sparse(inference: Inference) -> None:
    required_task(inference.manifest, SPARSE_KINDS, "a sparse encoder (SPLADE)")


def _known(asked: Sequence[int], size: int) -> Sequence[int]:
    """Return the requested indices, or all indices.

    Raises:
        Unprocessable: an index exceeds the vocabulary.

    """
    for place, index in enumerate(asked):
        if not 0 <= index < size:
            raise Unprocessable(
                f"index[{place}] is not in 0 … {size - 1}; indices of method bm42 are hashes of "
                "stems, which have no vocabulary"
            )
    return asked or range(size)
