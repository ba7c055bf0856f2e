"""`POST /embed_sparse`: a weight for words of the vocabulary, in TEI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from service.api.route import JsonRoute, caller_of, service_of
from service.api.tei.errors import ERRORS
from service.api.tei.texts import TeiRequest, respond
from service.errors import EmptyInputs
from service.inference.task_heads import (
    SparseVector,
    required_task,
    sparse_vectors,
    task_scores,
)

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
VALUE_BYTES = 40
"""Of an index and its value in JSON."""


def _inputs(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise PydanticCustomError("inputs", "a text or a list of texts is needed")
    return list(value)


class EmbedSparseRequest(TeiRequest):
    """`POST /embed_sparse`."""

    inputs: Annotated[
        list[str],
        PlainValidator(_inputs),
        WithJsonSchema(
            {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                "title": "Inputs",
                "examples": ["What is Deep Learning?"],
            }
        ),
    ] = Field(description="A text, or many.")
    prompt_name: str | None = Field(
        None, description="A prefix that the checkpoint's own configuration names."
    )


class SparseValue(BaseModel):
    """A token id and its weight."""

    index: int
    value: float


@router.post(
    "/embed_sparse",
    response_model=None,
    responses={200: {"model": list[list[SparseValue]]}, **ERRORS},
)
async def embed_sparse(body: EmbedSparseRequest, request: Request) -> Response:
    """The words of the vocabulary that each text is about, ascending, and the weight of each."""
    inference, caller = service_of(request).inference, caller_of(request)
    task = required_task(inference.manifest, "sparse", "a sparse encoder (SPLADE)")
    if not body.inputs:
        raise EmptyInputs("`inputs` is empty")
    options = body.options(body.prompt_name)
    prepared = await inference.prepare(body.inputs, options, caller, "encode")
    vectors = sparse_vectors(await task_scores(prepared, task))
    size = VALUE_BYTES * sum(len(vector.indices) for vector in vectors) + 2 * len(vectors)
    return await respond(request, size, lambda: values(vectors), prepared.timings)


def values(vectors: Sequence[SparseVector]) -> list[list[dict[str, Any]]]:
    """Each vector as its indices, ascending, and their values."""
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(vector.indices.tolist(), vector.values, strict=True)
        ]
        for vector in vectors
    ]
