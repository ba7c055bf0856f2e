"""`POST /embed` and `POST /embed_all`: vectors of texts and of their tokens, in TEI's format."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from service.api.drop_in.embedding import (
    Embedding,
    ListForm,
    TextsOrIds,
    check_embedder,
    check_given,
    embed,
)
from service.api.tei.texts import ERRORS, TeiRequest, add_compute_headers
from service.api.wire.json_pieces import array_pieces
from service.api.wire.route import ApiExchange, JsonRoute
from service.inference.core import Inference

router = APIRouter(route_class=JsonRoute, tags=["tei"])
LIST = ListForm(b"[", lambda _, vector: array_pieces(vector), lambda _: b"]")
"""A bare list of vectors."""


class EmbedAllRequest(TeiRequest):
    """Request body of `POST /embed_all`."""

    inputs: TextsOrIds = Field(description="A text, token ids of one text, or a list of either.")
    prompt_name: str | None = Field(
        None, description="Name of a prompt in the checkpoint's configuration."
    )

    def check_model(self, inference: Inference) -> None:
        """Check that the model embeds texts."""
        check_embedder(inference)


class EmbedRequest(EmbedAllRequest):
    """Request body of `POST /embed`."""

    normalize: bool = Field(True, description="Return unit vectors.")
    dimensions: int | None = Field(
        None, description="Keep the first n features, then normalise; the checkpoint's default."
    )


@router.post("/embed", response_model=None, responses={200: {"model": list[list[float]]}, **ERRORS})
async def embed_texts(body: EmbedRequest, exchange: ApiExchange) -> Response:
    """Return a list with a vector of each text, also for a single text."""
    body.check_model(exchange.model.inference)
    check_given(body.inputs, "inputs")
    options = body.options(exchange, body.prompt_name)
    wanted = Embedding(body.inputs, options, body.dimensions, body.normalize)
    return add_compute_headers(await embed(exchange, wanted, LIST), exchange, body.inputs)


@router.post(
    "/embed_all",
    response_model=None,
    responses={200: {"model": list[list[list[float]]]}, **ERRORS},
)
async def embed_tokens(body: EmbedAllRequest, exchange: ApiExchange) -> Response:
    """Return the last hidden state of each token of each text, including special tokens."""
    body.check_model(exchange.model.inference)
    check_given(body.inputs, "inputs")
    wanted = Embedding(body.inputs, body.options(exchange, body.prompt_name), tokens=True)
    return add_compute_headers(await embed(exchange, wanted, LIST), exchange, body.inputs)
