"""`POST /encode`: contextual embeddings, as JSON, base64 in JSON, or safetensors.

Notation: B texts, T tokens of all texts, S tokens of one text, H hidden size, L layers.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field
from starlette.responses import Response

from model.artifact.layer_parts import PARTS, PartName
from model.artifact.vectors import TextVectors
from model.config.encoder import EncoderConfig
from model.numerics.pooling import PoolingName
from model.numerics.quantization import VectorType
from service.api.native.encode_replies import encode_json, encode_safetensors
from service.api.native.indices import (
    Ablate,
    EncoderHead,
    Indices,
    Patch,
    ablated_heads,
    head_patches,
    selected_indices,
)
from service.api.native.inputs import PictureInputs
from service.api.native.long_text_fields import LongTextRequest
from service.api.native.replies import EncodeReply, documented
from service.api.native.texts import (
    Header,
    no_duplicates,
    text_bytes,
    with_pictures,
)
from service.api.native.vector_outputs import (
    OutputName,
    vector_bytes,
    with_vectors,
    within_limits,
)
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT, SAFETENSORS, Part, Unwritten
from service.api.wire.picture_forms import OPENAPI
from service.api.wire.reserved import INLINE_BYTES, check_size, reserve
from service.api.wire.route import (
    JsonRoute,
    caller_of,
    model_of,
    service_of,
    wants_safetensors,
)
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions, TextEncoding
from service.inference.layer_runs import working_bytes
from service.inference.separate_chunks import SeparateChunks
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.vector_types import quantization_of

router = APIRouter(route_class=JsonRoute, tags=["inference"])


class EncodeRequest(LongTextRequest):
    """Request body of `POST /encode`."""

    takes_files = True
    inputs: PictureInputs = Field(description="Texts, pairs of texts, or pictures.")
    outputs: Annotated[
        list[OutputName],
        Field(min_length=1, max_length=4),
        AfterValidator(no_duplicates),
    ] = Field(
        default=["tokens", "pooled"],
        description="Token vectors, one pooled vector, a sparse vector, and the vectors of late "
        "interaction, as far as the model has them; none by default with `spans` or `chunk`.",
    )
    layer: int = Field(
        -1, description="Hidden state: 0 = embeddings … L = last; negative from the end."
    )
    layers: Indices = Field(None, description="Hidden states, in this order, in place of `layer`.")
    ablate: Ablate[EncoderHead] = Field(None, description="Heads whose output is set to zero.")
    patch: Annotated[list[Patch], Field(min_length=1, max_length=4096)] | None = Field(
        None, description="Heads whose output is replaced by their output in another text."
    )
    include: (
        Annotated[
            list[PartName],
            Field(min_length=1, max_length=len(PARTS)),
            AfterValidator(no_duplicates),
        ]
        | None
    ) = Field(
        None,
        description="Further vectors of each token, from the layer that outputs the state: the "
        "output of attention, the state before the feed-forward part, and the output of this part.",
    )
    pooling: PoolingName | None = Field(None, description="The checkpoint's default.")
    normalize: bool | None = Field(
        None, description="L2-normalise the pooled vector; the checkpoint's default."
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        description="Keep the first n features of the pooled vector, then normalise; the "
        "checkpoint's `truncate_dim` by default.",
    )
    vector_type: VectorType = Field(
        "float32",
        description="Type of the pooled vector, as of sentence-transformers' "
        "`quantize_embeddings`; binary vectors have eight features in a byte.",
    )
    vector_ranges: Annotated[list[list[float]], Field(min_length=2, max_length=2)] | None = Field(
        None,
        description="Lowest and highest value of each feature, for int8 and uint8; the artifact's "
        "by default, over its calibration texts.",
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float",
        description="base64 = little-endian float32, or the `vector_type`, row-major, one string "
        "for each array.",
    )


@router.post(
    "/encode", response_model=None, responses=documented(EncodeReply), openapi_extra=OPENAPI
)
async def encode(body: EncodeRequest, request: Request) -> Response:
    """Return contextual embeddings: token vectors, one pooled vector for each text, or both.

    Token vectors of 302 tokens with 768 features take 2.77 MB of JSON, a pooled vector 17 kB:
    `outputs: ["pooled"]` omits the token vectors.
    """
    binary, caller = wants_safetensors(request), caller_of(request)
    model = model_of(request)
    inference = model.inference
    options = encode_options(body, inference.config, inference.vectors)
    options = with_vectors(options, body.outputs, body.prompt_name, inference.manifest)
    inference.require_options(options)
    body.check_long_texts(options, inference.sentence)
    body = await with_pictures(body, request)
    tokenizing, chunks = within_limits(body.options, options.head), None
    if alone := body.alone:
        asked = inference, body.texts, tokenizing, alone, caller, body.backend
        chunks = await SeparateChunks.prepare(*asked)
        prepared, texts = chunks.prepared, chunks.texts
        options = replace(options, spans=chunks.chunks)
    else:
        prepared = await inference.prepare(body.inputs, tokenizing, caller, "encode", body.backend)
        options, texts = await body.with_spans(options, prepared), prepared.texts
    as_base64 = body.encoding_format == "base64"
    float_bytes = 4 if binary else 6 if as_base64 else JSON_BYTES_PER_FLOAT
    features = inference.vectors.kept(options.pooling, options.dimensions)
    size = float_bytes * floats(options, texts, inference.config.hidden_size, features)
    size += vector_bytes(options.head, texts, float_bytes)
    ranges = options.quantization.ranges if binary else None
    size += 0 if ranges is None else ranges.nbytes
    limit = service_of(request).settings.max_response_bytes
    check_size(size, limit, "ask for fewer texts or less of them", binary=binary)
    predicted = size + text_bytes(texts)
    held = predicted + working_bytes(prepared, inference.config, options)
    with reserve(request, predicted, held=held, advice=None) as reply:
        if chunks:
            encodings: Sequence[TextEncoding] = await chunks.encode(inference, options)
        else:
            encodings = body.with_windows(await inference.encode(prepared, options))
        layers = {"layers": [*options.layers]} if options.layers else {}
        header = Header(model.name, prepared.engine, layers, prepared.timings.warnings)
        parts: Sequence[Part | Unwritten]
        if binary:
            write = functools.partial(encode_safetensors, header, texts, encodings, ranges)
            parts = write() if size <= INLINE_BYTES else await asyncio.to_thread(write)
        else:
            parts = [encode_json(header, texts, encodings, as_base64=as_base64)]
        return reply.response(parts, SAFETENSORS if binary else JSON, prepared.timings)


def encode_options(
    request: EncodeRequest, config: EncoderConfig, vectors: TextVectors
) -> EncodeOptions:
    """Return the options of a request, with non-negative layer indices.

    Raises:
        Unprocessable: a layer or head does not exist or is listed twice, `dimensions` exceeds the
            vector, `layer` and `layers` are both set, parts of the embeddings are requested, which
            no layer outputs, or `vector_type` and its ranges do not fit.

    """
    states, size = config.num_hidden_layers + 1, vectors.size(request.pooling)
    layers = request.layers
    if layers is not None and "layer" in request.model_fields_set:
        raise Unprocessable(f"layer {request.layer} and layers {layers} exclude each other")
    if not -states <= request.layer < states:
        raise Unprocessable(f"layer {request.layer} is not in {-states} … {states - 1}")
    if request.dimensions is not None and request.dimensions > size:
        raise Unprocessable(f"dimensions {request.dimensions} is more than the model's {size}")
    ablated = ablated_heads(request.ablate, "encoder", config, "")
    plain = request.spans is None and request.chunk is None
    default = plain or "outputs" in request.model_fields_set
    outputs = request.outputs if default else ()
    options = EncodeOptions(
        layer=request.layer % states,
        tokens="tokens" in outputs,
        pooled="pooled" in outputs,
        pooling=request.pooling,
        dimensions=request.dimensions,
        normalize=request.normalize,
        layers=() if layers is None else selected_indices("layers", layers, states, ""),
        ablated=ablated,
        patches=head_patches(request.patch, len(request.inputs), config, ablated),
        parts=tuple(request.include or ()),
    )
    if request.vector_type != "float32" and plain and not options.pooled:
        raise Unprocessable(
            f"vector_type {request.vector_type} is a type of pooled vectors: add `pooled` to "
            "`outputs`"
        )
    quantization = quantization_of(
        request.vector_type, request.vector_ranges, options, vectors, states - 1
    )
    options = replace(options, quantization=quantization)
    if options.parts and 0 in options.states:
        raise Unprocessable(
            f"include: {options.parts[0]}: hidden state 0 is the embeddings, which no layer "
            "outputs; ask for layers 1 … L"
        )
    return options


def floats(
    options: EncodeOptions, texts: Sequence[TokenizedText], hidden_size: int, vector_size: int
) -> int:
    """Return the number of floats in the vectors of a reply."""
    tokens = sum(len(text.input_ids) for text in texts)
    of_tokens = options.tokens + len(options.parts)
    pooled = options.pooled * len(texts) + sum(len(spans.ranges) for spans in options.spans)
    of_state = of_tokens * tokens * hidden_size + pooled * vector_size
    return len(options.states) * of_state
