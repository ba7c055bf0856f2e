"""Every documented field of every dialect is honoured, refused, or known to change nothing."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api.dialects import DIALECTS
from service.api.requests import BoundedRequest, LenientRequest
from service.api.wire.bodies import HARMLESS, check_unknown
from service.api.wire.route import JsonRoute, ModelRequest
from service.errors import Unprocessable

ROOT = Path(__file__).parents[4]
VLLM = {
    *("model", "user", "truncate_prompt_tokens", "truncation_side", "request_id", "priority"),
    *("mm_processor_kwargs", "cache_salt", "padding", "use_activation"),
}
DOCUMENTED: dict[str, set[str]] = {
    "/v1/embeddings": {
        *("input", "model", "encoding_format", "dimensions", "user"),  # OpenAI, TEI
        *("task", "embedding_type", "normalized", "truncate", "late_chunking"),  # Jina
        *("return_multivector", "prompt_name"),
        *VLLM,
        *("add_special_tokens", "embed_dtype", "endianness", "normalize", "messages"),
        *("chat_template", "chat_template_kwargs"),
    },
    "/embed": {
        *("inputs", "normalize", "prompt_name", "truncate", "truncation_direction", "dimensions"),
    },
    "/embed_all": {"inputs", "prompt_name", "truncate", "truncation_direction"},
    "/embed_sparse": {"inputs", "prompt_name", "truncate", "truncation_direction"},
    "/predict": {"inputs", "raw_scores", "truncate", "truncation_direction"},
    "/similarity": {"inputs", "parameters"},
    "/tokenize": {"inputs", "add_special_tokens", "prompt_name"},
    "/decode": {"ids", "skip_special_tokens"},
    "/rerank": {
        *("query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction"),  # TEI
        *("documents", "return_documents", "model", "top_n"),  # Infinity
        *VLLM,
    },
    "/embeddings": {"input", "model", "encoding_format", "user", "dimensions", "modality"},
    "/classify": {"input", "model", "raw_scores"},
    "/v2/embed": {
        *("model", "texts", "images", "inputs", "input_type", "max_tokens", "output_dimension"),
        *("embedding_types", "truncate", "priority"),
    },
    "/v1/embed": {
        *("model", "texts", "images", "input_type", "embedding_types", "truncate"),
    },
    "/v2/rerank": {
        *("model", "query", "documents", "top_n", "max_tokens_per_doc", "priority"),
        *VLLM,
    },
    "/v1/rerank": {
        *("model", "query", "documents", "top_n", "rank_fields", "return_documents"),  # Cohere
        *("max_chunks_per_doc", "return_embeddings"),  # and Jina
        *VLLM,
    },
    "/score": {
        *VLLM,
        *("text_1", "text_2", "data_1", "data_2", "queries", "documents", "items"),
        *("softmax", "activation", "instruction", "chat_template"),
    },
    "/pooling": {
        *VLLM,
        *("input", "task", "dimensions", "encoding_format", "embed_dtype", "endianness"),
        *("add_special_tokens", "messages", "normalize"),
    },
}
"""Documented fields of each path of other services' dialects."""


def schemas() -> Iterator[tuple[str, type[ModelRequest]]]:
    for dialect in DIALECTS:
        for router in dialect.routers:
            for route in router.routes:
                if isinstance(route, JsonRoute):
                    for schema in route.schemas:
                        if inspect.isclass(schema) and issubclass(schema, LenientRequest):
                            yield route.path, schema


def fields() -> dict[str, set[str]]:
    """Return the fields of each path of all dialects."""
    found: dict[str, set[str]] = {}
    for path, schema in schemas():
        found.setdefault(path, set()).update(schema.model_fields)
    return found


def rows(heading: str) -> dict[str, list[str]]:
    """Return the rows of a table of the page, by the field in the first cell."""
    page = (ROOT / "docs" / "dialects.md").read_text(encoding="utf-8")
    table = re.search(rf"\| field \| {re.escape(heading)}.*?\n\n", page, re.DOTALL)
    assert table
    cells = [line.split("|")[1:-1] for line in table[0].splitlines()[2:] if line]
    return {row[0].strip().strip("`"): [cell.strip() for cell in row[1:]] for row in cells}


def test_a_documented_field_is_honoured_refused_or_listed_as_without_effect() -> None:
    ignored = rows("of | why").keys()
    for path, names in DOCUMENTED.items():
        assert names - fields()[path] - HARMLESS.keys() <= ignored, path
    assert not ignored & HARMLESS.keys()


def test_every_path_with_a_lenient_request_has_its_documented_fields_here() -> None:
    assert fields().keys() - {"/v1/score"} == DOCUMENTED.keys()


def test_the_page_lists_who_honours_each_field_and_which_values_all_accept() -> None:
    table, taken = rows("honoured by"), fields()
    assert table.keys() == HARMLESS.keys()
    for name, (honoured, *accepted) in table.items():
        assert {path for path in taken if name in taken[path]} == set(
            re.findall(r"`([^`]+)`", honoured)
        ), name
        values = [json.loads(value) for value in re.findall(r"`([^`]+)`", accepted[0])]
        assert values == list(HARMLESS[name]), name


@pytest.mark.anyio
@pytest.mark.parametrize("path", DOCUMENTED)
async def test_a_field_that_the_path_has_not_is_refused_by_name(
    client: httpx.AsyncClient, path: str
) -> None:
    missing = HARMLESS.keys() - fields()[path]
    assert missing
    for name in missing:
        answer = await client.post(path, json={name: "anything", "documents": []})
        assert answer.status_code in (400, 422), answer.text
        assert f"{name}: it would change the reply" in answer.text


def test_values_that_change_nothing_are_accepted() -> None:
    check_unknown({"late_chunking": False, "truncate": "END", "images": []}, ())
    check_unknown({"late_chunking": None, "dimensions": None}, ())
    check_unknown({"late_chunking": True}, {"late_chunking"})
    for fields in ({"unknown": 1, "late_chunking": True}, {"late_chunking": 0}):  # 0 == False
        with pytest.raises(Unprocessable, match=r"^late_chunking: .* leave it out, or send False$"):
            check_unknown(fields, ())


TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1]}
REQUIRED: dict[str, Any] = {
    "input": ["a"],
    "inputs": ["a"],
    "ids": [1],
    "query": "a",
    "documents": ["a"],
    "texts": ["a"],
    "text_1": "a",
    "text_2": "a",
    "layer": 0,
    "head": 0,
    **TENSOR,
}
"""Value of each field that is required in some request."""
OWN: dict[str, Any] = {
    "SimilarityRequest": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "ExplainRequest": {"inputs": [["a", "b"]]},
    "InferRequest": {"inputs": [TENSOR]},
    "RequestedOutput": {"name": "pooled"},
    "Patch": {"from": 0},
    "Chunk": {"by": "tokens"},
}


def every_schema(of: type[BoundedRequest]) -> Iterator[type[BoundedRequest]]:
    for schema in of.__subclasses__():
        if not inspect.isabstract(schema):
            yield schema
        yield from every_schema(schema)


@pytest.mark.parametrize(
    "schema", sorted(set(every_schema(BoundedRequest)), key=str), ids=lambda one: one.__name__
)
def test_null_is_absent_for_every_optional_field(schema: type[BoundedRequest]) -> None:
    known = {field.alias or name: field for name, field in schema.model_fields.items()}
    given = {
        name: value
        for name, value in (REQUIRED | OWN.get(schema.__name__, {})).items()
        if name in known and (known[name].is_required() or name.startswith("text"))
    }
    nulls = {name: None for name in known if name not in given}
    assert schema.model_validate(given | nulls) == schema.model_validate(given)
