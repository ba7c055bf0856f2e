"""Routes and fields against Infinity's own OpenAPI document, with a list of differences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.app import create_app
from service.settings import Settings
from tests.conftest import SHARED
from tests.service.several import fake_of

DOCUMENT = SHARED / "data" / "infinity-openapi.json"
WITHOUT_ROUTES = {
    "/embeddings_image": "no images; there too replaced by `modality`",
    "/embeddings_audio": "no audio; there too replaced by `modality`",
}
OWN_FORM = {
    "/health": "ready or 503, where Infinity gives the time",
    "/": "the dashboard, where Infinity redirects to its documentation",
    "/metrics": "Prometheus' own form, which neither document describes",
}
ROUTES = ("/embeddings", "/rerank", "/classify", "/models")
DIFFERENT = {
    "model": "optional, without a default that is no model's name",
    "modality": "audio is understood, and refused by name",
    "InfinityEmbeddingsRequest.input": "of pictures as well, in the same schema",
    "data": "no vectors of audio or images, no matrices; `stats` are numbers; compared below",
}
"""Fields whose types differ on purpose."""
OURS = {
    "_OpenAIEmbeddingInput_Text": "InfinityEmbeddingsRequest",
    "RerankInput": "InfinityRerankRequest",
    "ClassifyInput": "ClassifyRequest",
    "OpenAIEmbeddingResult": "EmbeddingsReply",
    "ReRankResult": "RerankReply",
    "ClassifyResult": "ClassifyReply",
    "OpenAIModelInfo": "InfinityModels",
}


def shape(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """Return the types, bounds and fields of a schema, apart from null, names and defaults."""
    if "$ref" in schema:
        return shape(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        ways = [shape(document, one) for one in schema["anyOf"] if one != {"type": "null"}]
        return sorted(ways, key=repr) if len(ways) > 1 else ways[0]
    if "properties" in schema:
        return {name: shape(document, one) for name, one in schema["properties"].items()}
    kept = ("type", "minItems", "maxItems", "maxLength", "exclusiveMinimum", "uniqueItems")
    found = {name: schema[name] for name in kept if name in schema}
    if "items" in schema:
        found["items"] = shape(document, schema["items"])
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return found | {"values": sorted(values)}


def named(names: Iterable[str], name: str) -> str:
    """Return Infinity's schema of a name; FastAPI separates schemas of one name by module."""
    parted = re.compile(rf"(service__api__infinity__\w+__)?{name}")
    (found,) = (one for one in names if parted.fullmatch(one))
    return found


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    if not DOCUMENT.exists():
        pytest.skip(f"{DOCUMENT} is not there")
    document: dict[str, Any] = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    return document


@pytest.fixture(scope="module")
def ours(artifact: Artifact) -> dict[str, Any]:
    return create_app(Settings(), [artifact], [fake_of(artifact)]).openapi()


def test_every_route_is_there_or_listed(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    known = {*ROUTES, *WITHOUT_ROUTES, *OWN_FORM}
    assert theirs["paths"].keys() == known
    for path in ROUTES:
        assert theirs["paths"][path].keys() <= ours["paths"][path].keys()
        for method, route in theirs["paths"][path].items():
            assert route["responses"].keys() <= ours["paths"][path][method]["responses"].keys()


@pytest.mark.parametrize(("their_name", "our_name"), OURS.items())
def test_every_field_is_taken_and_given(
    theirs: dict[str, Any], ours: dict[str, Any], their_name: str, our_name: str
) -> None:
    schemas, names = theirs["components"]["schemas"], ours["components"]["schemas"]
    found = named(names, our_name)
    expected, given = shape(theirs, schemas[their_name]), shape(ours, names[found])
    assert given.keys() - {"warnings"} == expected.keys()
    for name in expected.keys() - DIFFERENT.keys():
        if f"{our_name}.{name}" in DIFFERENT:
            continue
        assert given[name] == expected[name], name
    required = set(schemas[their_name].get("required", ()))
    assert required <= set(names[found].get("required", ())) | {"data"}
    for name, field in schemas[their_name]["properties"].items():
        if "default" in field and name not in ("model", "object"):
            assert names[found]["properties"][name].get("default") == field["default"], name


def test_items_of_replies(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """The items of `data` have the same fields."""
    for their_name, our_name in (
        ("OpenAIEmbeddingResult", "EmbeddingsReply"),
        ("ClassifyResult", "ClassifyReply"),
        ("OpenAIModelInfo", "InfinityModels"),
    ):
        names = ours["components"]["schemas"]
        found = named(names, our_name)
        expected = shape(theirs, theirs["components"]["schemas"][their_name])["data"]["items"]
        given = shape(ours, names[found])["data"]["items"]
        if "items" in expected:
            expected, given = expected["items"], given["items"]
        assert given.keys() == expected.keys()
