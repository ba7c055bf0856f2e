"""`GET /vocabulary`: the tokens that the indices of sparse vectors stand for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from service.api.drop_in.reserved import INLINE_BYTES
from service.api.native.texts import check_size
from service.api.tei.errors import ERRORS
from service.api.wire.etag import is_known
from service.api.wire.media import JSON
from service.api.wire.route import answered_by, name_model, service_of
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.tasks.task_heads import required_task

router = APIRouter(tags=["tasks"])
TOKEN_BYTES = 24
"""Of a token in JSON, more than the mean of a vocabulary."""


class VocabularyQuery(BaseModel):
    """`GET /vocabulary`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(
        None, description="Which of several models; the first sparse encoder by default."
    )
    index: list[int] = Field(
        [], description="Token ids, as /embed_sparse answers with; without, every one from 0 on."
    )


@router.get(
    "/vocabulary",
    response_model=None,
    responses={
        200: {"model": list[str | None]},
        304: {"description": "The client has it: `if-none-match` names its entity tag"},
        **ERRORS,
    },
)
async def vocabulary(query: Annotated[VocabularyQuery, Query()], request: Request) -> Response:
    """The model's tokens by their ids, or those of some ids in the order asked.

    An id that the tokenizer has no token for is null. The indices of method bm42 are hashes of
    stems, which have no vocabulary.
    """
    state = service_of(request)
    model = state.models.able(query.model, _check_sparse)
    answered_by(request, model)
    inference, etag = model.inference, f'"{model.artifact.sha256[:32]}"'
    indices = _known(query.index, inference.config.vocab_size)
    headers = {"etag": etag, "cache-control": "no-cache"}
    if is_known(request, etag):
        reply = Response(status_code=304, headers=headers)
        name_model(reply, state.models, query.model, model)
        return reply
    size = TOKEN_BYTES * len(indices)
    check_size(size, state.settings.max_response_bytes, "name some by `index`", binary=True)

    def write() -> bytes:
        return orjson.dumps(inference.tokenizer.vocabulary(indices))

    with state.replies.hold(size):
        body = write() if size <= INLINE_BYTES else await asyncio.to_thread(write)
    reply = Response(body, headers=headers, media_type=JSON)
    name_model(reply, state.models, query.model, model)
    return reply


def _check_sparse(inference: Inference) -> None:
    required_task(inference.manifest, {"sparse"}, "a sparse encoder (SPLADE)")


def _known(asked: Sequence[int], size: int) -> Sequence[int]:
    """The indices asked for, or all of them.

    Raises:
        Unprocessable: one is no token's.

    """
    for place, index in enumerate(asked):
        if not 0 <= index < size:
            raise Unprocessable(
                f"index[{place}] is not in 0 … {size - 1}; those of method bm42 are hashes of "
                "stems, which have no vocabulary"
            )
    return asked or range(size)
