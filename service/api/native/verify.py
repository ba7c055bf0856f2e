"""`POST /verify`: comparison of PyTorch's and ONNX's tensors for the texts of a request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict

import orjson
from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from model.artifact.manifest import passed_uses, recorded_tolerances
from model.config.precision import USES
from model.numerics.comparison import Comparison, Kind, Tolerance
from service.api.native.texts import Inputs
from service.api.requests import StrictRequest
from service.api.wire.pictures import loaded
from service.api.wire.replies import PROBLEMS, replies
from service.api.wire.route import ApiExchange, JsonRoute, ModelRequest
from service.api.wire.schemas import named
from service.inference import verification
from service.inference.tokenization.tokenizer import Options

_NUMBERS = dict.fromkeys(("max_abs_diff", "min_cosine", "atol", "rtol", "cosine_at_least"), float)
_DIFFERENCE = {**_NUMBERS, "passed": bool}
"""Difference of a tensor from PyTorch's."""
_LAYERS = [named("LayerDifference", {**_DIFFERENCE, "layer": int})]
_HEADS = [named("HeadDifference", {**_DIFFERENCE, "layer": int, "head": int})]
_TENSOR = named("TensorDifference", _DIFFERENCE)
_DECODER = {
    "hidden": _LAYERS,
    "cross_queries": (_LAYERS, "Query states of cross-attention."),
    "attention": _HEADS,
    "cross_attention": _HEADS,
    "logprobs": _TENSOR,
}
"""Differences of a decoder's tensors, with each input as its own target."""
REPLY = named(
    "VerifyReply",
    {
        "passed": bool,
        "reference": "torch",
        "against": "onnx",
        "inputs": int,
        "hidden": _LAYERS,
        "attention": _HEADS,
        "pooled": _TENSOR,
        "task?": (_TENSOR, "For models with a task head."),
        "decoder?": (_DECODER, "For encoder–decoders."),
    },
)
router = APIRouter(route_class=JsonRoute, tags=["operations"])


class VerifyRequest(ModelRequest, StrictRequest):
    """Request body of `POST /verify`."""

    inputs: Inputs = Field(description="Texts or pairs, or pictures, to run through both engines.")
    truncate: bool = Field(False, description="Truncate long texts instead of rejecting them.")


@router.post("/verify", responses=replies(REPLY, PROBLEMS))
async def verify(body: VerifyRequest, exchange: ApiExchange) -> Response:
    """Compare every hidden state, every map and the pooled vector of PyTorch and ONNX.

    A decoder gets each input as its own target. `passed` ignores the tensors of uses that failed
    the artifact's verification.
    """
    inference = exchange.model.tower(body.inputs).inference
    inputs = await loaded(body.inputs, exchange)
    options = Options(truncate=body.truncate)
    comparison = await verification.verify(inference, inputs, options, exchange.call())
    manifest = inference.manifest
    content = report(comparison, recorded_tolerances(manifest))
    content["passed"] = comparison.of(passed_uses(manifest) or USES).passed
    return Response(orjson.dumps(content), media_type="application/json")


def report(comparison: Comparison, tolerances: Mapping[Kind, Tolerance]) -> dict[str, object]:
    """Return a comparison as the content of the reply."""
    entries: dict[Kind, list[dict[str, object]]] = defaultdict(list)
    for key, difference in comparison.differences.items():
        where = {"layer": key.layer} if key.of_layer else {}
        where |= {"head": key.head} if key.of_head else {}
        tolerance = asdict(tolerances[key.kind])
        entries[key.kind].append(where | asdict(difference) | tolerance)
    of_task = entries["task"] + entries["token_vectors"]
    of_decoder: dict[str, object] = {}
    if entries["logprobs"]:
        of_decoder = {
            "hidden": entries["decoder_hidden"],
            "cross_queries": entries["cross_queries"],
            "attention": entries["decoder_attention"],
            "cross_attention": entries["cross_attention"],
            "logprobs": entries["logprobs"][0],
        }
    return {
        "passed": comparison.passed,
        "reference": "torch",
        "against": "onnx",
        "inputs": comparison.inputs,
        "hidden": entries["hidden"],
        "attention": entries["attention"],
        "pooled": entries["pooled"][0],
        **({"task": of_task[0]} if of_task else {}),
        **({"decoder": of_decoder} if of_decoder else {}),
    }
