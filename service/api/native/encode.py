"""`POST /encode`: contextual embeddings, as JSON, base64 in JSON, or safetensors."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.native.encode_replies import encode_json, encode_safetensors
from service.api.native.encode_request import EncodeRequest
from service.api.native.encode_towers import check_token_vectors, common_layers, part
from service.api.native.replies import EncodeReply, documented
from service.api.native.texts import Header, text_bytes, with_pictures
from service.api.native.vector_outputs import within_limits
from service.api.wire.media import JSON, SAFETENSORS, Part, Unwritten
from service.api.wire.picture_forms import OPENAPI
from service.api.wire.reserved import INLINE_BYTES, check_size, reserve
from service.api.wire.route import (
    JsonRoute,
    caller_of,
    model_of,
    service_of,
    wants_safetensors,
)
from service.api.wire.towers import Shares, in_order, together
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts, TextEncoding
from service.inference.separate_chunks import SeparateChunks
from service.inference.timings import Timings
from service.inference.tokenization.tokenized import TokenizedText
from service.scheduler.submission import Caller

router = APIRouter(route_class=JsonRoute, tags=["inference"])


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
    towers = model.shares(body.inputs)
    runs = [_Run.of(body, tower.inference, indices, towers) for tower, indices in towers]
    layers = common_layers(towers, [run.options for run in runs])
    body = await with_pictures(body, request)
    for run in runs:
        await run.prepare(body, caller)
    texts = in_order(towers, [run.texts for run in runs])
    size = sum(run.vector_bytes(binary=binary) for run in runs)
    ranges = runs[0].options.quantization.ranges if binary else None
    size += 0 if ranges is None else ranges.nbytes
    if binary and len(runs) > 1:
        check_token_vectors(runs[0].options, [run.inference for run in runs])
    limit = service_of(request).settings.max_response_bytes
    check_size(size, limit, "ask for fewer texts or less of them", binary=binary)
    with reserve(request, size + text_bytes(texts), advice=None) as reply:
        first, *others = runs
        encoded = await together(runs) if others else [await first.encode()]
        encodings = in_order(towers, encoded)
        timings = Timings.beside([run.prepared.timings for run in runs])
        engine = ", ".join(dict.fromkeys(run.prepared.engine for run in runs))
        header = Header(model.name, engine, layers, timings.warnings)
        parts: Sequence[Part | Unwritten]
        if binary:
            write = functools.partial(encode_safetensors, header, texts, encodings, ranges)
            parts = write() if size <= INLINE_BYTES else await asyncio.to_thread(write)
        else:
            as_base64 = body.encoding_format == "base64"
            parts = [encode_json(header, texts, encodings, as_base64=as_base64)]
        return reply.response(parts, SAFETENSORS if binary else JSON, timings)


@dataclass
class _Run:
    """Inputs of a request that one encoder or tower computes."""

    body: EncodeRequest
    """The request with these inputs alone."""
    inference: Inference
    indices: Sequence[int]
    """Index of each input in the request; empty for all inputs."""
    options: EncodeOptions
    prepared: PreparedTexts = field(init=False)
    texts: Sequence[TokenizedText] = field(init=False)
    chunks: SeparateChunks | None = None
    """Chunks of the texts, if each is encoded alone."""

    @classmethod
    def of(
        cls, body: EncodeRequest, inference: Inference, indices: Sequence[int], towers: Shares
    ) -> _Run:
        """Check the requested arrays; errors as for `EncodeRequest.arrays` and `part`."""
        if len(towers) > 1:
            body = part(body, indices)
        return cls(body, inference, indices if len(towers) > 1 else (), body.arrays(inference))

    async def prepare(self, whole: EncodeRequest, caller: Caller) -> None:
        """Read the inputs; errors as for `Inference.prepare`.

        Args:
            whole: the whole request, whose pictures have their files.
            caller: client and deadline of the request.

        """
        body, tokenizing = whole, whole.options
        if self.indices:
            inputs = [whole.inputs[index] for index in self.indices]
            body = self.body.model_copy(update={"inputs": inputs})
            tokenizing = replace(body.options, places=self.indices)
        self.body, tokenizing = body, within_limits(tokenizing, self.options.head)
        if alone := body.alone:
            asked = self.inference, body.texts, tokenizing, alone, caller, body.backend
            self.chunks = chunks = await SeparateChunks.prepare(*asked)
            self.prepared, self.texts = chunks.prepared, chunks.texts
            self.options = replace(self.options, spans=chunks.chunks)
            return
        self.prepared = prepared = await self.inference.prepare(
            body.inputs, tokenizing, caller, "encode", body.backend
        )
        self.options, self.texts = await body.with_spans(self.options, prepared), prepared.texts

    def vector_bytes(self, *, binary: bool) -> int:
        """Return the predicted bytes of the vectors in the reply."""
        return self.body.vector_bytes(self.inference, self.options, self.texts, binary=binary)

    async def encode(self) -> Sequence[TextEncoding]:
        """Return the arrays of each input; errors as for `Inference.encode`."""
        if self.chunks:
            return await self.chunks.encode(self.inference, self.options)
        encodings = await self.inference.encode(self.prepared, self.options)
        return self.body.with_windows(encodings)
