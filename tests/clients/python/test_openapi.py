"""Fields of calls and of results: the fields of the service's own OpenAPI document."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headscope import (
    Contrast,
    Encoding,
    Explanation,
    HeadScores,
    Label,
    OccludedBlock,
    OccludedSpan,
    RankedDocument,
    Ranking,
    Reply,
    ServedModel,
    Span,
    TokenMatch,
    Verification,
    WithoutWord,
    WordDifference,
    fields,
)
from headscope.results import Tensor
from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from tests.service.harness import serving

pytestmark = pytest.mark.anyio

REQUESTS = {
    "EncodeRequest": fields.EncodeFields,
    "AttentionRequest": fields.AttentionFields,
    "HeadScoresRequest": fields.HeadScoresFields,
    "ExplainRequest": fields.ExplainFields,
    "RankRequest": fields.RankingFields,
    "VerifyRequest": fields.VerifyFields,
    "PredictRequest": fields.PredictFields,
    "RerankRequest": fields.RerankFields,
    "EmbedSparseRequest": fields.SparseFields,
    "ScoreRequest": fields.ScoreFields,
    "TokenizeRequest": fields.TokenizeFields,
}
INPUTS = {"inputs", "query", "texts", "documents", "text_1", "text_2"}
INPUTS |= {"data_1", "data_2", "queries", "items", "encoding_format", "return_text"}
"""Fields that the client sets itself, or does not need."""
REPLIES = {
    Encoding: ["EncodeReply", "EncodeResult"],
    Reply: ["AttentionReply", "AttentionResult"],
    HeadScores: ["HeadScoresReply", "HeadScoresResult"],
    Explanation: ["ExplainReply", "ExplainResult"],
    OccludedSpan: ["ExplainSpan"],
    OccludedBlock: ["ExplainBlock"],
    TokenMatch: ["TokenMatch"],
    Ranking: ["RankReply"],
    RankedDocument: ["RankedDocument"],
    Contrast: ["Contrast"],
    WordDifference: ["ContrastWord"],
    WithoutWord: ["WithoutWord"],
    Verification: ["VerifyReply"],
    Label: ["Prediction"],
    Span: ["LabelledSpan"],
    ServedModel: ["OpenAIModel"],
}
"""Results, and the schemas that have their fields."""
OWN = {"texts", "tensors", "target", "documents", "text", "tokenized"}
OWN |= {"vector_ranges", "sparse_indices", "sparse_values"}
"""Fields that the client adds, or that only the binary form has."""


@pytest.fixture(scope="module")
async def schemas(artifact: Artifact, anyio_backend: str) -> Any:
    """Return the schemas of the service's OpenAPI document, by name."""
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as plain:
        return (await plain.get("/openapi.json")).json()["components"]["schemas"]


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_call_has_the_fields_of_its_route(schemas: dict[str, Any], name: str) -> None:
    properties = schemas[name]["properties"].keys()
    assert REQUESTS[name].__annotations__.keys() | INPUTS == properties | INPUTS


@pytest.mark.parametrize("kind", REPLIES)
async def test_a_result_has_the_fields_of_its_reply(schemas: dict[str, Any], kind: type) -> None:
    """What a reply always has is a field, and no field is without a source."""
    found = [schemas[name] for name in REPLIES[kind]]
    properties = {name for schema in found for name in schema["properties"]}
    always = {name for schema in found for name in schema.get("required", ())}
    own = {field.name for field in dataclasses.fields(kind)}
    own |= {tensor.name for tensor in vars(kind).values() if isinstance(tensor, Tensor)}
    assert own - OWN <= properties
    assert always - {"usage", "results", "object", "owned_by"} <= own
