"""`POST /verify`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from model.artifact.compare import TOLERANCES, Comparison, Kind
from model.artifact.manifest import Precision
from service.api.json_route import JsonRoute
from service.api.native.replies import VerifyReply
from service.api.native.requests import VerifyRequest
from service.api.reply import PROBLEMS

router = APIRouter(route_class=JsonRoute, tags=["operations"])


@router.post("/verify", response_model=None, responses={200: {"model": VerifyReply}, **PROBLEMS})
async def verify(body: VerifyRequest, request: Request) -> Response:
    """The inputs through PyTorch and ONNX: every hidden state, every map, the pooled vector."""
    comparison = await request.app.state.predictor.verify(body)
    content = report(comparison, request.app.state.artifact.manifest.precision)
    return Response(orjson.dumps(content), media_type="application/json")


def report(comparison: Comparison, precision: Precision) -> dict[str, Any]:
    """A comparison in the shape of the reply."""
    entries: dict[Kind, list[dict[str, Any]]] = {"hidden": [], "attention": [], "pooled": []}
    for key, difference in comparison.differences.items():
        where = {"hidden": {"layer": key.layer}, "pooled": {}}.get(
            key.kind, {"layer": key.layer, "head": key.head}
        )
        tolerance = asdict(TOLERANCES[precision][key.kind])
        entries[key.kind].append(where | asdict(difference) | tolerance)
    return {
        "passed": comparison.passed,
        "reference": "torch",
        "against": "onnx",
        "inputs": comparison.inputs,
        "hidden": entries["hidden"],
        "attention": entries["attention"],
        "pooled": entries["pooled"][0],
    }
