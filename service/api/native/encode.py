"""`POST /encode`: contextual embeddings, as JSON, base64 in JSON, or safetensors.

Notation: B texts, T tokens of all texts, H hidden size.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response

from service.api.native.encode_request import EncodeRequest
from service.api.native.texts import (
    TEXT,
    Envelope,
    nested,
    reply,
    text_bytes,
    text_fields,
    text_tensors,
)
from service.api.wire.bodies import OPENAPI
from service.api.wire.json_pieces import PIECE, base64_pieces, grouped, safetensors_parts
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT, SAFETENSORS, Part, Unwritten
from service.api.wire.pictures import Shares, in_order, together
from service.api.wire.replies import PROBLEMS, replies
from service.api.wire.route import INLINE_BYTES, ApiExchange, JsonRoute, PartsResponse
from service.api.wire.schemas import any_of, named
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.outputs.declared import OUTPUTS
from service.inference.outputs.field import Field, TextArrays, joined
from service.inference.plan import Plan
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Picture
from service.inference.tokenization.text import Text
from service.scheduler.call import Call

SMALL_BYTES = PIECE * JSON_BYTES_PER_FLOAT
"""Maximum predicted bytes of vectors in JSON that is written at once."""
_APART = "send texts and pictures in requests of their own"


def part(body: EncodeRequest, indices: Sequence[int]) -> EncodeRequest:
    """Return the request of one tower; prompts, tasks and windows are for the texts alone."""
    for name in ("spans", "chunk"):
        if getattr(body, name) is not None:
            raise Unprocessable(f"{name} is for inputs of one tower: {_APART}")
    inputs = [body.inputs[index] for index in indices]
    update: dict[str, object] = {"inputs": inputs}
    if isinstance(inputs[0], Picture):
        windows = body.overflow == "windows"
        update |= {"prompt_name": None, "task": None}
        update |= {"overflow": None} if windows else {}
    return body.model_copy(update=update)


def common_layers(towers: Shares, plans: Sequence[Plan]) -> dict[str, list[int]]:
    """Return the field `layers` of a reply; empty without `layers` in the request."""
    layers = [list(own.options.layers) for own in plans]
    if len(towers) > 1 and layers[0] != layers[1]:
        raise Unprocessable(
            f"layers {layers[0]} of the {towers[0][0].inference.tower} tower are {layers[1]} of "
            f"the other: use indices from 0, or {_APART}"
        )
    return {"layers": layers[0]} if layers[0] else {}


def check_token_vectors(plan: Plan, towers: Sequence[Inference]) -> None:
    """Raise if the token vectors of two towers do not fit into one tensor."""
    sizes = [tower.config.hidden_size for tower in towers]
    if "tokens" in plan.options.outputs and len(set(sizes)) > 1:
        raise Unprocessable(
            f"token vectors have {sizes[0]} features in the {towers[0].tower} tower and {sizes[1]} "
            f"in the other, which is no tensor: ask for JSON, or {_APART}"
        )


def encode_json(
    envelope: Envelope,
    plan: Plan,
    arrays: Sequence[TextArrays],
    size: int,
    *,
    as_base64: bool,
) -> Part | Unwritten:
    """Return the JSON reply, written if it is small."""
    pairs = zip(envelope.texts, arrays, strict=True)
    if plan.plain and not (as_base64 or size > SMALL_BYTES):
        results: Iterable[dict[str, object]] = [text_fields(text) | own for text, own in pairs]
    else:
        results = (
            text_fields(text) | json_members(plan, own, as_base64=as_base64) for text, own in pairs
        )
        if as_base64 or size > SMALL_BYTES:
            return envelope.pieces(results)
    return envelope.whole(results)


def json_members(plan: Plan, arrays: TextArrays, *, as_base64: bool) -> dict[str, object]:
    """Return the outputs of a text in JSON."""
    values: dict[str, object] = {}
    for field in plan.members:
        array = arrays[field.name]
        if as_base64 and not field.fact:
            array = array.astype(field.dtype or array.dtype, copy=False)
            values[field.name] = base64_pieces(array)
        else:
            values[field.name] = np.ascontiguousarray(array) if field.axes else array.item()
    return grouped(values)


def encode_safetensors(envelope: Envelope, plan: Plan, arrays: Sequence[TextArrays]) -> list[Part]:
    """Serialise the binary reply: texts end to end, with their bounds and the ranges of vectors.

    Arguments as for `encode_json`. Outputs that have neither bounds nor facts precede the texts.
    """
    first = [own for own in plan.outputs if not any(f.fact or f.bounds_of for f in own.fields)]
    leading = [field for output in first for field in output.fields]
    others = [field for field in plan.fields if field not in leading]
    tensors = joined(leading, arrays) | text_tensors(envelope.texts) | joined(others, arrays)
    if (ranges := plan.quantization.ranges) is not None:
        tensors["vector_ranges"] = ranges
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    return safetensors_parts(contiguous, envelope.metadata())


def _vector(field: Field) -> object:
    """Return the form of a field of a text: lists, with hidden states in front, or base64."""
    form = nested(int if "int" in field.dtype else float, len(field.axes))
    forms = [form, [form]] if field.layered else [form]
    return (form if field.fact else any_of(*forms, str)), field.about


def _vectors() -> dict[str, object]:
    """Return the forms of all outputs of a text."""
    members = dict[str, object]()
    groups: dict[str, dict[str, object]] = {}
    for field in (field for output in OUTPUTS.values() for field in output.fields):
        name, dot, member = field.name.partition(".")
        if dot:
            members[f"{name}?"] = groups.setdefault(name, {})
            groups[name][member] = _vector(field)
        elif not field.bounds_of:
            members[f"{name}?"] = _vector(field)
    return members


RESULT = named("EncodeResult", {**TEXT, **_vectors()})
REPLY = reply(
    "EncodeReply", {"layers?": ([int], "If the request has `layers`."), "results": [RESULT]}
)
router = APIRouter(route_class=JsonRoute, tags=["inference"])


@router.post("/encode", responses=replies(REPLY, PROBLEMS, binary=True), openapi_extra=OPENAPI)
async def encode(body: EncodeRequest, exchange: ApiExchange) -> Response:
    """Return contextual embeddings: token vectors, one pooled vector for each text, or both.

    Token vectors of 302 tokens with 768 features take 2.77 MB of JSON, a pooled vector 17 kB:
    `outputs: ["pooled"]` omits the token vectors.
    """
    binary, caller, model = exchange.wants_safetensors(), exchange.call(), exchange.model
    towers = model.shares(body.inputs)
    runs = [_Run(body, tower.inference, indices, towers) for tower, indices in towers]
    first, plan = runs[0], runs[0].plan
    layers = common_layers(towers, [run.plan for run in runs]) if plan.options.layers else {}
    body = await body.with_pictures(exchange)
    for run in runs:
        await run.prepare(body, caller)
    as_base64, texts, several = body.encoding_format == "base64", first.texts, len(runs) > 1
    float_bytes = 4 if binary else 6 if as_base64 else JSON_BYTES_PER_FLOAT
    size = plan.nbytes(texts, float_bytes)
    if binary and (ranges := plan.quantization.ranges) is not None:
        size += ranges.nbytes
    if several:
        texts = in_order(towers, [run.texts for run in runs])
        size += sum(run.plan.nbytes(run.texts, float_bytes) for run in runs[1:])
        if binary:
            check_token_vectors(plan, [run.inference for run in runs])
    fewer, beside = "ask for fewer texts or less of them", text_bytes(texts)
    exchange.reserve(size, fewer, beside=beside, binary=binary)
    engine, timings = first.prepared.engine, first.prepared.timings
    if several:
        arrays = in_order(towers, await together(run.encode() for run in runs))
        engine = ", ".join(dict.fromkeys(run.prepared.engine for run in runs))
        timings = Timings.beside([run.prepared.timings for run in runs])
    else:
        arrays = await first.encode()
    envelope = Envelope(model.name, engine, texts, layers, timings.warnings)
    parts: Sequence[Part | Unwritten]
    if binary:
        write = functools.partial(encode_safetensors, envelope, plan, arrays)
        parts = write() if size <= INLINE_BYTES else await asyncio.to_thread(write)
    else:
        parts = [encode_json(envelope, plan, arrays, size, as_base64=as_base64)]
    return PartsResponse(parts, SAFETENSORS if binary else JSON, timings)


class _Run:
    """Inputs of a request that one encoder or tower computes."""

    def __init__(
        self, body: EncodeRequest, inference: Inference, indices: Sequence[int], towers: Shares
    ) -> None:
        """Check the requested arrays; errors as for `EncodeRequest.planned` and `part`."""
        self._indices = indices if len(towers) > 1 else ()
        self.inference = inference
        self.body = part(body, indices) if self._indices else body
        self.plan, self._tokenizing = self.body.planned(inference)
        self.prepared: PreparedTexts
        self.texts: Sequence[Text] = ()

    async def prepare(self, whole: EncodeRequest, caller: Call) -> None:
        """Read the inputs; errors as for `Inference.prepare`."""
        body, tokenizing, inference = whole, self._tokenizing, self.inference
        if self._indices:
            inputs = [whole.inputs[index] for index in self._indices]
            body = self.body.model_copy(update={"inputs": inputs})
            tokenizing = replace(tokenizing, places=self._indices)
        if body.chunk and (alone := body.alone):
            asked = body.texts, alone, tokenizing, caller, body.backend
            self.prepared = await inference.prepare_chunks(*asked)
            self.texts = self.prepared.whole
            return
        self.prepared = prepared = await inference.prepare(
            body.inputs, tokenizing, caller, "encode", body.backend
        )
        self.texts = prepared.texts
        if body.spans or body.chunk:
            await body.find_spans(prepared.texts)

    async def encode(self) -> Sequence[TextArrays]:
        """Return the arrays of each input; errors as for `Inference.encode`."""
        return await self.inference.encode(self.prepared, self.plan)
