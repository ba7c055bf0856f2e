"""`POST /align`: word alignments between a source text and its translation."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from service.api.native.alignment_reply import AlignmentReply
from service.api.native.indices import Indices, selected_heads
from service.api.native.pairs import PAIRS, pairs_schema
from service.api.native.replies import AlignReply
from service.api.native.texts import BackendName, StrictRequest
from service.api.wire.media import JSON
from service.api.wire.problems import PROBLEMS
from service.api.wire.reserved import check_size, reserve
from service.api.wire.route import (
    JsonRoute,
    ModelRequest,
    caller_of,
    model_of,
    service_of,
)
from service.errors import Unprocessable
from service.inference.alignment.matching import SOFTMAX_THRESHOLD, Method
from service.inference.alignment.pairs import AlignmentOptions, prepare_pairs
from service.inference.alignment.word_alignments import CrossAlignment, align_vectors
from service.inference.alignment.words import Split
from service.inference.core import Inference
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction

router = APIRouter(route_class=JsonRoute, tags=["inference"])


Pairs = Annotated[list[tuple[str, str]], PAIRS, pairs_schema("the tired animal", "das müde Tier")]


class AlignRequest(ModelRequest, StrictRequest):
    """Request body of `POST /align`."""

    inputs: Pairs = Field(description="Pairs of a source and a target.")
    method: Method | None = Field(
        None,
        description="`cross` for encoder–decoders and `mutual` for other models by default.",
    )
    layer: int | None = Field(
        None,
        description="Hidden state whose vectors are compared: 0 = embeddings … L = last, "
        "negative from the end; the middle layer by default. Not for `cross`.",
    )
    layers: Indices = Field(None, description="Decoder layers, for `cross`; all by default.")
    heads: Indices = Field(None, description="Decoder heads, for `cross`; all by default.")
    threshold: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Threshold of both directions' probabilities, for `softmax`; "
        f"{SOFTMAX_THRESHOLD} by default.",
    )
    split: Split = Field(
        "punctuation",
        description="Split at spaces and around punctuation marks, or at spaces alone.",
    )
    matrix: bool = Field(False, description="Whether to return the scores of all word pairs.")
    truncate: bool = Field(False, description="Truncate long texts instead of rejecting them.")
    truncation_direction: Direction = Field("right", description="Side to cut.")
    prompt_name: str | None = Field(
        None, description="Name of a prompt in the checkpoint's configuration."
    )
    backend: BackendName | None = Field(
        None, description="Engine that computes the reply; there is no fallback."
    )

    @property
    def tokenization(self) -> Options:
        """Tokenisation options of the texts."""
        return Options(self.truncate, self.truncation_direction, self.prompt_name)


@router.post("/align", response_model=None, responses={200: {"model": AlignReply}, **PROBLEMS})
async def align(body: AlignRequest, request: Request) -> Response:
    """Align the words of each source with the words of its target."""
    model, caller = model_of(request), caller_of(request)
    inference = model.inference
    options = alignment_options(body, inference)
    prepared = await prepare_pairs(
        inference, body.inputs, options, body.tokenization, caller, body.backend
    )
    form = AlignmentReply(model.name, prepared, options.method, matrix=body.matrix)
    if options.method == "cross":
        cross = CrossAlignment(inference, prepared, options)
        computing = cross.hidden_bytes
    else:
        cross, computing = None, 4 * inference.config.hidden_size * prepared.tokens
    held = form.most_bytes + computing + prepared.working_bytes
    limit = service_of(request).settings.max_response_bytes
    check_size(held, limit, "send fewer pairs", binary=True)
    with reserve(request, form.most_bytes, held=held, advice=None) as reply:
        if cross:
            alignments = await cross.results()
        else:
            alignments = await align_vectors(inference, prepared, options)
        return reply.response([form.pieces(alignments)], JSON, prepared.texts.timings)


def alignment_options(request: AlignRequest, inference: Inference) -> AlignmentOptions:
    """Return the alignment options of a request, with non-negative indices.

    Raises:
        Unprocessable: a layer or head does not exist, or a field belongs to another method.

    """
    decoder = inference.decoder
    method = request.method or ("cross" if decoder else "mutual")
    _check_fields(request, method)
    if method == "cross":
        if decoder is None:
            raise Unprocessable("method cross: this model has no decoder")
        layers, heads = selected_heads(
            request.layers, request.heads, decoder.layers, " of the decoder"
        )
        return AlignmentOptions(method, request.split, layers=layers, heads=heads)
    threshold = SOFTMAX_THRESHOLD if request.threshold is None else request.threshold
    layer = _layer(request.layer, inference)
    return AlignmentOptions(method, request.split, layer, threshold=threshold)


def _check_fields(request: AlignRequest, method: Method) -> None:
    """Reject fields of other methods.

    Raises:
        Unprocessable: a field of another method is set.

    """
    cross = method == "cross"
    others = {
        "layer": not cross,
        "layers": cross,
        "heads": cross,
        "threshold": method == "softmax",
    }
    for name, fits in others.items():
        if getattr(request, name) is not None and not fits:
            raise Unprocessable(f"{name} does not apply to method {method}: {_INSTEAD[name]}")


_INSTEAD = {
    "layer": "`layers` are the decoder's",
    "layers": "`layer` selects the vectors to compare",
    "heads": "they are for cross",
    "threshold": "it is for softmax",
}


def _layer(asked: int | None, inference: Inference) -> int:
    """Return the non-negative index of the hidden state whose vectors are compared.

    Raises:
        Unprocessable: the encoder has no such layer.

    """
    layers = inference.config.num_hidden_layers
    if asked is None:
        return max(default_layer(layers), inference.manifest.state_layers[0])
    if not -layers - 1 <= asked <= layers:
        raise Unprocessable(f"layer {asked} is not in {-layers - 1} … {layers}")
    return asked % (layers + 1)


def default_layer(layers: int) -> int:
    """Return the index of the middle layer, 6 of 12; docs/align.md lists error rates by layer."""
    return (layers + 1) // 2
