"""`POST /`: alias of the route for the model's task, as in TEI."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import ConfigDict
from starlette.responses import Response

from service.api.tei.embed import EmbedRequest, embed_texts
from service.api.tei.embed_sparse import EmbedSparseRequest, embed_sparse
from service.api.tei.predict import PredictRequest, predict
from service.api.tei.rerank import RerankRequest, rerank
from service.api.tei.texts import ERRORS
from service.api.wire.route import ApiExchange, JsonRoute, ModelRequest, validated

router = APIRouter(route_class=JsonRoute, tags=["tei"])


class RootRequest(ModelRequest):
    """Request of the route for the model's task."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        frozen=True,
        json_schema_extra={
            "anyOf": [
                {"$ref": f"#/components/schemas/{request.__name__}"}
                for request in (EmbedRequest, PredictRequest, EmbedSparseRequest, RerankRequest)
            ]
        },
    )


@router.post("/", response_model=None, responses=ERRORS)
async def root(body: RootRequest, exchange: ApiExchange) -> Response:
    """Dispatch to /rerank, /predict, /embed_sparse or /embed, by the model's task."""
    task = exchange.model.inference.manifest.task
    content = {**(body.model_extra or {}), "model": body.model}
    match task and (task.kind, task.outputs):
        case ("sequence_classification", 1):
            return await rerank(validated(RerankRequest, content), exchange)
        case ("sequence_classification" | "token_classification", _):
            return await predict(validated(PredictRequest, content), exchange)
        case ("sparse", _):
            return await embed_sparse(validated(EmbedSparseRequest, content), exchange)
    return await embed_texts(validated(EmbedRequest, content), exchange)
