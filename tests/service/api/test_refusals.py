"""Requests that each dialect refuses, and its form of errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from model.artifact.manifest import Artifact
from model.numerics.task_head import TaskConfig
from service.api import cohere, infinity, openai, vllm
from service.api.drop_in.scores import PREDICTION_BYTES, RANK_BYTES
from service.api.kserve import models as kserve
from service.api.native.rank import MOST_DOCUMENTS
from service.api.tei import vectors as tei
from service.api.vllm import SCORE_BYTES
from service.api.wire.schemas import NAMED
from service.errors import (
    EngineFailed,
    EngineUnavailable,
    InputTooLong,
    NoTaskHead,
    NotExported,
    Overloaded,
    ReplyTooLarge,
    ServiceError,
    UnknownModel,
    Unprocessable,
)
from service.exchange import ErrorForm
from tests.service.api.rankers import QUERY, TEXTS
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE, TOKENS, serving_task
from tests.service.harness import Client

pytestmark = pytest.mark.anyio

TASKS = {"labels": LABELS, "ranks": RANKS, "sparse": SPARSE, "tokens": TOKENS, "vectors": None}
LONG = "word " * 600
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
PART = {"content": [{"type": "text", "text": "a"}]}
PAIR = {"source_sentence": "a", "sentences": ["b"]}


class Refused(NamedTuple):
    """Requests to a path that a model refuses: fields of each, its status and its error."""

    path: str
    task: str
    body: dict[str, Any]
    """Body of a request without the fields."""
    requests: list[tuple[Any, int, str]]


COHERE = Refused(
    "/v2/embed",
    "vectors",
    {"input_type": "search_document", "texts": ["a"]},
    [
        ({"texts": ["a"] * 97}, 400, "97 inputs in one request; 1 to 96 are taken"),
        ({"texts": []}, 400, "0 inputs in one request"),
        ({"texts": None}, 400, "one of `texts`, `images` and `inputs` is needed"),
        ({"inputs": [PART]}, 400, "and no other beside it"),
        ({"texts": None, "images": ["data:"]}, 400, "images[0] is a picture, and the model reads"),
        ({"texts": None, "images": ["QQ=="]}, 400, "images[0]: a data URL"),
        ({"texts": None, "inputs": [{"content": [IMAGE]}]}, 400, "the model reads only texts"),
        ({"texts": None, "inputs": [{"content": [IMAGE] * 2}]}, 400, "is not a single text or p"),
        ({"input_type": "image"}, 400, "input_type image is for pictures"),
        ({"input_type": "images"}, 400, "input_type: Input should be"),
        ({"embedding_types": ["int4"]}, 400, "embedding_types.0: Input should be"),
        ({"embedding_types": []}, 400, "embedding_types"),
        ({"truncate": "end"}, 400, "truncate: Input should be"),
        ({"output_dimension": 129}, 400, "output_dimension 129 is not in 1 … 128"),
        ({"output_dimension": 0}, 400, "output_dimension 0 is not in"),
        ({"output_dimension": 12, "embedding_types": ["binary"]}, 400, "a multiple of 8 features"),
        ({"max_tokens": 2}, 400, "2 tokens leave no room"),
        ({"texts": [LONG], "truncate": "NONE"}, 400, "tokens"),
        ({"texts": [LONG], "truncate": "NONE", "max_tokens": 7}, 400, "tokens"),
    ],
)
OPENAI = Refused(
    "/v1/embeddings",
    "vectors",
    {},
    [
        ({}, 400, "input: Field required"),
        ({"input": ""}, 400, "input[0] is empty"),
        ({"input": []}, 400, "input: empty"),
        ({"input": ["a", ""]}, 400, "input[1] is empty"),
        ({"input": [[101], []]}, 400, "input[1] is empty"),
        ({"input": {"a": 1}}, 400, "input: input[0] is not an object with one of"),
        ({"input": ["a", 1]}, 400, "input: a text, a list of"),
        ({"input": [1, "a"]}, 400, "input: a text, a list of"),
        ({"input": [True]}, 400, "input: a text, a list of"),
        ({"input": ["a"] * 513}, 400, "input: 513 in one request; at most 512"),
        ({"input": LONG}, 400, "input[0] has 602 tokens; at most 512"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions: 0 is not in 1 … 128"),
        ({"input": "a", "dimensions": 129}, 400, "dimensions: 129 is not in 1 … 128"),
        ({"input": "a", "dimensions": "5"}, 400, "dimensions: Input should be a valid integer"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format: Input should be"),
        ({"input": "a", "model": 5}, 400, "model: Input should be a valid string"),
        ({"input": "a", "task": "poetry"}, 400, "task: "),
        ({"input": "a", "input_type": "query"}, 400, "input_type: "),
        (
            {"input": "a", "late_chunking": True, "truncate_prompt_tokens": 5},
            400,
            "late_chunking: leave out `truncate_prompt_tokens`",
        ),
        ({"input": "a", "embedding_type": "int8"}, 400, "embedding_type: "),
        ({"input": "a", "output_dtype": "binary"}, 400, "output_dtype: "),
        (
            {"input": "a", "embedding_type": "binary", "encoding_format": "base64"},
            400,
            "embedding_type: binary is not given in base64",
        ),
        ({"input": "a", "embedding_type": "binary", "dimensions": 12}, 400, "dimensions: binary"),
        ({"input": "a", "output_dimension": 16}, 400, "output_dimension: "),
        ({"input": "a", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens: 0 is not in"),
        ({"input": "a", "normalize": False}, 400, "normalize: "),
        ({"input": "a", "prompt_name": "query"}, 400, "prompt_name: "),
        *(
            ({"input": ids}, 400, f"input[{place}]: token ids are refused, as they may be of anoth")
            for place, ids in ((0, [101, 7592, 102]), (0, [[101, 102]]), (1, ["a", [5]]))
        ),
    ],
)
VLLM = Refused(
    "/pooling",
    "vectors",
    {"input": "a"},
    [
        ({"dimensions": 5}, 400, "dimensions"),
        ({"encoding_format": "bytes"}, 400, "encoding_format"),
        ({"embed_dtype": "float16"}, 400, "embed_dtype"),
        ({"endianness": "big"}, 400, "endianness"),
        ({"add_special_tokens": False}, 400, "add_special_tokens"),
        ({"task": "classify"}, 400, "small has no task classify; it has embed, token_embed"),
        ({"task": "plugin"}, 400, "task"),
        ({"input": []}, 400, "input: empty"),
        ({"input": [[10**9]]}, 400, "token id 1000000000"),
        ({"input": LONG}, 400, "602 tokens; at most 512 fit"),
        ({"truncate_prompt_tokens": 0}, 400, "is not in 1 … 512"),
    ],
)
SCORED = {"text_1": "what is it", "text_2": ["a", "b c"]}
VLLM_SCORE = Refused(
    "/score",
    "vectors",
    SCORED,
    [
        ({"text_1": ["a", "b"], "text_2": ["c"]}, 400, "2 texts and 1: one with many"),
        ({"text_2": []}, 400, "1 texts and 0"),
        ({"text_1": [], "text_2": []}, 400, "0 texts and 0"),
        ({"text_2": None}, 400, "text_1 and text_2 are needed"),
        ({"text_2": None, "documents": "b"}, 400, "text_1 and text_2 are needed"),
        ({"text_2": [1]}, 400, "text_2"),
        ({"text_2": LONG}, 400, "text_2[0] has 602 tokens; at most"),
        ({"truncate_prompt_tokens": 513}, 400, "truncate_prompt_tokens: 513 is not in 1 … 512"),
        ({"truncate_prompt_tokens": -2}, 400, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 2}, 400, "2 tokens leave no room"),
        ({"text_2": ["a"] * 513}, 400, "513"),
    ],
)
INFINITY = Refused(
    "/embeddings",
    "vectors",
    {"input": "a"},
    [
        ({"dimensions": 129}, 400, "dimensions 129 is not in 1 … 128; 0 is all"),
        ({"dimensions": -1}, 400, "not in 1 … 128"),
        ({"modality": "image", "input": "https://a/b.png"}, 400, "does not embed image"),
        ({"input": []}, 422, "input"),
        ({"input": ["a"] * 2049}, 422, "input"),
        ({"input": [[1, 2]]}, 422, "input"),
        ({"encoding_format": "ubinary"}, 422, "encoding_format"),
    ],
)
RANKING = {"query": QUERY, "documents": TEXTS}
INFINITY_RANK = Refused(
    "/rerank",
    "ranks",
    RANKING,
    [
        ({"documents": []}, 422, "documents"),
        ({"documents": ["a"] * 2049}, 422, "documents"),
        ({"documents": ["a", 1]}, 422, "documents.1"),
        ({"top_n": 0}, 422, "top_n"),
        ({"query": "a" * 122_881}, 422, "query"),
        ({"query": None}, 422, "query"),
    ],
)
COHERE_RANK = Refused(
    "/v2/rerank",
    "ranks",
    RANKING,
    [
        ({"documents": []}, 400, "documents"),
        ({"documents": [1]}, 400, "documents"),
        ({"top_n": 0}, 400, "top_n"),
        ({"max_tokens_per_doc": 0}, 400, "max_tokens_per_doc"),
    ],
)
JINA_RANK = Refused(
    "/v1/rerank",
    "ranks",
    RANKING,
    [
        ({"rank_fields": ["title", "text"]}, 422, "rank_fields"),
        ({"return_embeddings": True}, 422, "return_embeddings"),
        ({"documents": [{"image": "https://a/b"}]}, 422, "documents[0] is neither"),
        ({"top_n": 0}, 422, "top_n"),
        ({"top_k": 2}, 422, "top_k: it would change the reply"),
    ],
)
TEI_RANK = Refused(
    "/rerank",
    "ranks",
    {"query": "a", "texts": ["a"]},
    [
        ({"texts": []}, 400, "texts: empty"),
        ({"query": "", "texts": ["a", ""]}, 400, "texts[1] is empty"),
        ({"texts": None}, 422, "texts"),
        ({"texts": "b"}, 422, "texts"),
        ({"query": None}, 422, "query"),
    ],
)
_EMBED: list[tuple[Any, int, str]] = [
    ({"inputs": ""}, 400, "inputs[0] is empty"),
    ({"inputs": []}, 400, "at least one"),
    ({"inputs": ["a", []]}, 400, "inputs[1] is empty"),
    ({"inputs": None}, 422, "a text, a list of token ids"),
    ({"inputs": ["a", 1]}, 422, "list of token ids"),
    ({"inputs": [1, "a"]}, 422, "a text, a list of token ids"),
    ({"inputs": [["a"]]}, 422, "a text, a list of token ids"),
    ({"inputs": 3}, 422, "a text, a list of token ids"),
    ({"inputs": [30522]}, 422, "0 … 30521"),
    ({"inputs": ["a"] * 513}, 422, "at most 512"),
    ({"inputs": LONG, "truncate": False}, 422, "602 tokens"),
    ({"truncation_direction": "up"}, 422, "direction"),
    ({"prompt_name": "q"}, 422, "prompt_name"),
]
TEI = [
    *(
        Refused(path, task, {"inputs": "a"}, _EMBED)
        for path, task in (
            *(("/embed", "vectors"), ("/embed_all", "vectors"), ("/embed_sparse", "sparse")),
        )
    ),
    Refused(
        "/embed",
        "vectors",
        {"inputs": "a"},
        [({"dimensions": size}, 422, "1 … 128") for size in (0, 129, -1)],
    ),
    Refused(
        "/similarity",
        "vectors",
        {"inputs": PAIR},
        [
            ({"inputs": PAIR | {"sentences": []}}, 400, "inputs.sentences: empty"),
            ({"inputs": PAIR | {"sentences": ["a", ""]}}, 400, "inputs.sentences[1] is empty"),
            ({"inputs": PAIR | {"source_sentence": ""}}, 400, "source_sentence[0] is empty"),
            ({"inputs": PAIR | {"sentences": "a"}}, 422, "inputs.sentences"),
            ({"inputs": {"sentences": ["a"]}}, 422, "inputs.source_sentence"),
            ({"inputs": PAIR | {"sentences": ["a"] * 513}}, 422, "513 inputs"),
            ({"parameters": {"truncation_direction": "up"}}, 422, "direction"),
            ({"parameters": {"prompt_name": "q"}}, 422, "prompt_name"),
        ],
    ),
    Refused(
        "/predict",
        "labels",
        {},
        [
            *(
                ({"inputs": given}, 422, "inputs: ")
                for given in (
                    *([], ["a", "b", "c"], [["a", "b", "c"]], [[]], [["a"], "b"], ["a", 1], 1),
                    *(None, {}),
                )
            ),
            *(({"inputs": given}, 400, "empty") for given in ("", [""], ["", ""], [["a"], [""]])),
            ({"inputs": "a", "labels": ["a"]}, 422, "labels: this model has labels of its own, or"),
            ({"inputs": "a", "template": "{}"}, 422, "template is for `labels`: add them, or"),
            ({"inputs": "a", "aggregation": "none"}, 422, "this model labels whole texts"),
            ({"inputs": LONG, "truncate": False}, 422, "602 tokens"),
        ],
    ),
    Refused(
        "/predict",
        "tokens",
        {"inputs": "a"},
        [
            ({"inputs": ["a", "b"]}, 422, "inputs[0] is a pair"),
            ({"inputs": [["a"], ["b", "c"]]}, 422, "inputs[1] is a pair"),
            ({"raw_scores": True}, 422, 'send "aggregation": "none"'),
            ({"aggregation": "last"}, 422, "aggregation: "),
        ],
    ),
    Refused(
        "/tokenize",
        "vectors",
        {"inputs": "a"},
        [
            ({"inputs": []}, 400, "at least one"),
            ({"inputs": ["a", ""]}, 400, "inputs[1] is empty"),
            ({"inputs": [1]}, 422, "a list of texts"),
            ({"prompt_name": "q"}, 422, "prompt_name"),
            ({"inputs": ["a"] * 513}, 422, "at most 512"),
        ],
    ),
    Refused(
        "/decode",
        "vectors",
        {},
        [
            ({"ids": []}, 400, "at least one"),
            ({"ids": [[1], []]}, 400, "ids[1] is empty"),
            ({"ids": "a"}, 422, "list of token ids"),
            ({"ids": ["a"]}, 422, "list of token ids"),
            ({"ids": [[1], [30522]]}, 422, "ids[1] has the token id 30522"),
            ({}, 422, "required"),
        ],
    ),
]
NO_VECTORS = "serve an embedding model"
NO_RANKS = "3 labels and is not a reranker"
WITHOUT = [
    *(
        Refused(path, task, body, [({}, status, NO_VECTORS)])
        for path, body, status in (
            ("/embed", {"inputs": "a"}, 424),
            ("/embed_all", {"inputs": "a"}, 424),
            ("/similarity", {"inputs": PAIR}, 424),
            ("/v1/embeddings", {"input": "a"}, 424),
            ("/embeddings", {"input": "a"}, 400),
            ("/v2/embed", COHERE.body, 400),
        )
        for task in ("labels", "ranks", "sparse", "tokens")
    ),
    *(
        Refused(path, "labels", body, [({}, status, NO_RANKS)])
        for path, body, status in (
            ("/rerank", RANKING, 400),
            ("/rerank", TEI_RANK.body, 424),
            ("/v1/rerank", RANKING, 400),
            ("/v2/rerank", RANKING, 400),
            ("/score", SCORED, 400),
            ("/v1/score", SCORED, 400),
        )
    ),
    Refused("/rerank", "vectors", TEI_RANK.body, [({}, 424, "small has no task head: serve a cr")]),
    Refused("/pooling", "sparse", VLLM.body, [({}, 400, "/embed_sparse")]),
    Refused("/classify", "vectors", {"input": ["a"]}, [({}, 400, "no task head")]),
    *(
        Refused("/embed_sparse", task, {"inputs": "a"}, [({}, 424, "serve a sparse encoder (SPL")])
        for task in ("vectors", "ranks")
    ),
    Refused("/predict", "vectors", {"inputs": "a"}, [({}, 424, "small has no task head: serve")]),
    Refused("/predict", "sparse", {"inputs": "a"}, [({}, 424, "small has a task head for sparse")]),
]
CLASSIFY = Refused(
    "/classify", "labels", {}, [({"input": given}, 422, "input") for given in ("a", [], [1])]
)
ALL = [COHERE, OPENAI, VLLM, VLLM_SCORE, INFINITY, INFINITY_RANK, COHERE_RANK, JINA_RANK, TEI_RANK]
ALL += [*TEI, *WITHOUT, CLASSIFY]


RANK = Refused(
    "/rank",
    "vectors",
    {"query": "a cat", "documents": ["a dog", "the cat", "a red car"]},
    [
        ({"documents": []}, 422, "documents: "),
        ({"documents": ["a"] * (MOST_DOCUMENTS + 1)}, 422, "documents: "),
        ({"documents": ["a", 1]}, 422, "documents.1: "),
        ({"query": None}, 422, "query: "),
        ({"top_n": 0}, 422, "top_n: "),
        ({"explain": "all"}, 422, "explain: "),
        ({"compare": [0, 1]}, 422, 'compare and top_words apply to explain "contrast"'),
        ({"top_words": 3}, 422, 'compare and top_words apply to explain "contrast"'),
        ({"explain": "contrast", "compare": [0]}, 422, "compare: "),
        ({"explain": "contrast", "compare": [1, 1]}, 422, "compare: "),
        ({"explain": "contrast", "compare": [0, 3]}, 422, "compare[1]: 3 is not in 0 … 2"),
        ({"explain": "contrast", "compare": [-1, 0]}, 422, "compare.0: "),
        ({"explain": "contrast", "top_words": 65}, 422, "top_words: "),
        ({"explain": "contrast", "documents": ["a"]}, 422, "at least 2, and there is 1"),
        ({"inputs": "a"}, 422, "inputs: "),
        ({"query_without": [[0, 1]], "explain": "tokens"}, 422, 'apply to explain "none"'),
        ({"query_without": [[2, 2]]}, 422, "query_without[0] is [2, 2): send spans of [0, 5)"),
        ({"query_without": [[2, 6]]}, 422, "query_without[0] is [2, 6): send spans of [0, 5)"),
        ({"query_without": [[2, 5], [0, 1]]}, 422, "query_without[1] is [0, 1): send spans"),
        ({"query_without": [[1, 2]]}, 422, "query_without[0] is [1, 2), which has no token"),
        ({"query_without": [[0]]}, 422, "query_without.0: "),
        ({"documents_without": [[[0, 1]]]}, 422, "documents_without has 1 lists, and there are 3"),
        ({"documents_without": [[], [[0, 9]], []]}, 422, "documents_without[1][0] is [0, 9)"),
        ({"query_prompt_name": "none"}, 422, "unknown prompt_name"),
    ],
)
EXPLAIN = Refused(
    "/explain",
    "vectors",
    {"inputs": [["a", "b c"]]},
    [
        ({"inputs": "a text"}, 422, "pair of texts"),
        ({"inputs": ["a text"]}, 422, "inputs[0] is no pair"),
        ({"inputs": []}, 422, "at least one pair"),
        ({"pooling": "cls"}, 422, "pairs are shares of means over tokens"),
        ({"include": []}, 422, "include"),
        ({"include": ["pairs", "pairs"]}, 422, "listed twice"),
        (
            {"include": ["matches"]},
            422,
            "matches are for sparse encoders and late-interaction models",
        ),
        ({"layer": 3}, 422, "layer 3 is not in -3 … 2"),
        (
            {"spans": "words"},
            422,
            'spans, block and top apply to occlusion: add "occlusion" to include',
        ),
        ({"top": 3, "include": ["heads"]}, 422, "spans, block and top apply to occlusion"),
        ({"top": 0, "include": ["occlusion"]}, 422, "top"),
        ({"spans": "letters", "include": ["occlusion"]}, 422, "spans"),
        ({"inputs": [["a", "word " * 600]]}, 422, "inputs[0][1] has 602 tokens"),
    ],
)
HEAD_SCORES = Refused(
    "/attention/scores",
    "vectors",
    {"inputs": "A man is playing a guitar.", "layer": 0, "head": 0},
    [
        ({"layer": 2}, 422, "layer: 2 is not in -2 … 1"),
        ({"head": -3}, 422, "head: -3 is not in -2 … 1"),
        ({"layer": None}, 422, "layer"),
        ({"queries": [40]}, 422, "queries: 40 is not in -9 … 8, the tokens of inputs[0]"),
        ({"keys": [1, -8]}, 422, "keys: one of inputs[0] is listed twice"),
        ({"queries": []}, 422, "at least one token"),
        ({"ablate": [{"layer": 5, "head": 0}]}, 422, "ablate: layer: 5 is not in"),
        ({"heads": [0]}, 422, "heads"),
    ],
)
LAYERS = Refused(
    "/encode",
    "vectors",
    {"inputs": "a"},
    [
        ({"vector_type": "int8", "layer": 0}, 422, "give `vector_ranges` for another layer"),
        ({"vector_type": "int8", "outputs": ["tokens"]}, 422, "add `pooled` to `outputs`"),
        ({"vector_type": "int4"}, 422, "vector_type"),
        ({"vector_type": "int8", "vector_ranges": [[0.0]]}, 422, "vector_ranges"),
        ({"layers": [0, 3]}, 422, "layers: 3 is not in -3 … 2"),
        (
            {"layers": [2, -1]},
            422,
            "layers: one is listed twice (negative ones count from the end)",
        ),
        ({"layers": [1, 1]}, 422, "listed twice"),
        ({"layers": []}, 422, "at least one integer"),
        ({"layers": [1], "layer": 1}, 422, "layer 1 and layers [1] exclude each other"),
        ({"ablate": [{"layer": 2, "head": 0}]}, 422, "ablate: layer: 2 is not in -2 … 1"),
        ({"ablate": [{"layer": 0, "head": -3}]}, 422, "ablate: head: -3 is not in -2 … 1"),
        ({"ablate": [{"layer": 0, "head": 0, "map": "cross"}]}, 422, "ablate"),
    ],
)
SPANS = Refused(
    "/encode",
    "vectors",
    {"inputs": ["hello world", "hello"], "pooling": "mean"},
    [
        ({"spans": [[[0, 3]]]}, 422, "spans has 1 lists for 2 inputs"),
        (
            {"spans": [[], [[0, 2], [3, 3]]]},
            422,
            "spans[1][1] is [3, 3): its start must be below its end",
        ),
        ({"spans": [[], [[5, 2]]]}, 422, "spans[1][0] is [5, 2): its start must be below its end"),
        ({"spans": [[[0, 12]], []]}, 422, "spans[0][0] is [0, 12), and inputs[0] is [0, 11)"),
        ({"spans": [[[-1, 2]], []]}, 422, "spans[0][0] is [-1, 2), and inputs[0] is [0, 11)"),
        ({"spans": [[[0, 2], [5, 6]], []]}, 422, "spans[0][1] is [5, 6), which has no token"),
        ({"spans": [[[0, 2.5]], []]}, 422, "spans[0][0] is not [start, end] of two integers"),
        ({"spans": [[[0, True]], []]}, 422, "spans[0][0] is not [start, end]"),
        ({"spans": [[[0, 1, 2]], []]}, 422, "spans[0][0] is not [start, end]"),
        ({"spans": [[0, 1], []]}, 422, "spans[0][0] is not [start, end]"),
        ({"spans": [0, 1]}, 422, "a list of [start, end] for each input is needed"),
        (
            {"spans": [[[0, 2**31]], []]},
            422,
            "spans[0][0] is [0, 2147483648), and inputs[0] is [0, 11)",
        ),
        (
            {"spans": [[[0, 2**63]], []]},
            422,
            f"spans[0][0] is [0, {2**63}), and inputs[0] is [0, 11)",
        ),
        ({"spans": [[[0, 2**64]], []]}, 422, "spans[0][0] is not [start, end] of two integers"),
        ({"spans": [[[0, 2]] * 2**14, [[0, 2]]]}, 422, "at most 16384 spans"),
    ],
)
ALL += [RANK, EXPLAIN, HEAD_SCORES, LAYERS, SPANS]


@pytest.fixture(scope="module", params=TASKS)
async def served(
    request: pytest.FixtureRequest, artifact: Artifact, anyio_backend: str
) -> AsyncIterator[tuple[str, Client]]:
    """Yield the name of a task, and a client of an application whose model has it."""
    async with serving_task(artifact, TASKS[request.param]) as client:
        yield request.param, client


async def test_refusals(served: tuple[str, Client]) -> None:
    """Each has the dialect's form of errors."""
    (task, client), others = served, []
    for group in (group for group in ALL if group.task == task):
        for fields, status, says in group.requests:
            reply = await client.post(group.path, json=group.body | fields)
            if reply.status_code != status or says not in message_of(group, reply.json()):
                others.append((group.path, fields, reply.status_code, reply.text))
    assert others == []


def message_of(group: Refused, error: dict[str, Any]) -> str:
    """Return the message of an error, whose form is the dialect's of a path."""
    if "type" in error:
        assert error.keys() == NAMED["Problem"]["properties"].keys()
    elif group.path.startswith(("/v2/embed", "/v2/rerank")):
        assert error.keys() == {"message"}
    elif group.path == "/v1/rerank":
        assert error.keys() == {"detail", "message"}
    elif isinstance(error["error"], str):
        assert error.keys() == {"error", "error_type"}
        assert ("is empty" in error["error"]) <= (error["error_type"] == "Empty")
    else:
        nested: dict[str, Any] = error["error"]
        assert nested.keys() == {"message", "type", "param", "code"}
        if group.path == "/v1/embeddings" and nested["code"] != "no_embeddings":
            assert nested["type"] == "invalid_request_error"
            assert nested["message"].startswith(nested["param"])
        return str(nested["message"])
    return str(error.get("message", error.get("error")))


@pytest.mark.parametrize(
    ("path", "body", "task", "limit"),
    [
        ("/v2/embed", COHERE.body, None, 15 * 128 + 6),
        ("/v2/rerank", RANKING, RANKS, RANK_BYTES * len(TEXTS)),
        ("/v1/rerank", {"query": "a", "documents": ["b" * 200]}, RANKS, RANK_BYTES + 6 * 200),
        ("/rerank", {"query": "a", "documents": ["b"] * 3}, RANKS, 3 * RANK_BYTES),
        ("/classify", {"input": ["a", "b"]}, LABELS, 2 * (3 * PREDICTION_BYTES + 2 * 12)),
        ("/pooling", {"input": ["a", "b"]}, LABELS, 2 * (3 * 15 + 64)),
        ("/score", SCORED | {"text_2": ["a", "b c", "d"]}, RANKS, 3 * SCORE_BYTES),
    ],
)
async def test_a_reply_is_bounded_before_anything_is_computed(
    artifact: Artifact, path: str, body: dict[str, Any], task: TaskConfig | None, limit: int
) -> None:
    for most, status in ((limit, 200), (limit - 1, 413)):
        async with serving_task(artifact, task, max_response_bytes=most) as client:
            reply = await client.post(path, json=body)
            assert reply.status_code == status, reply.text
            assert status != 200 or len(reply.content) <= limit + 200


DETAIL = "input[3] is too much"
FORMS: dict[ErrorForm, dict[type[ServiceError], int]] = {
    cohere.error_response: {
        UnknownModel: 404, NoTaskHead: 400, Unprocessable: 400, Overloaded: 429
    },
    cohere.jina_error_response: {UnknownModel: 404, NoTaskHead: 400, Unprocessable: 422},
    infinity.error_response: {
        UnknownModel: 400, NoTaskHead: 400, Unprocessable: 422, Overloaded: 429, EngineFailed: 500
    },
    kserve.error_response: {
        InputTooLong: 400, UnknownModel: 404, ReplyTooLarge: 413, Overloaded: 503,
        EngineUnavailable: 503,
    },
    openai.error_response: {
        UnknownModel: 404, InputTooLong: 400, Unprocessable: 400, EngineUnavailable: 503
    },
    tei.error_response: {Overloaded: 429},
    vllm.error_response: {
        UnknownModel: 404, NoTaskHead: 400, Unprocessable: 400, EngineFailed: 500,
        NotExported: 501, Overloaded: 429,
    },
}  # fmt: skip
"""Form of a dialect → status of each error."""
OPENAI_ERRORS = {
    UnknownModel: ("invalid_request_error", "model", "model_not_found"),
    InputTooLong: ("invalid_request_error", "input", "input_too_long"),
    Unprocessable: ("invalid_request_error", "input", "unprocessable"),
    EngineUnavailable: ("server_error", "input", "engine_unavailable"),
}
"""Type, field and code of each error: https://platform.openai.com/docs/guides/error-codes."""
VLLM_TYPES = {
    404: "NotFoundError",
    400: "BadRequestError",
    500: "InternalServerError",
    501: "NotImplementedError",
    429: "Too Many Requests",
}
"""As in `vllm/entrypoints/serve/utils/error_response.py`."""


@pytest.mark.parametrize(
    ("form", "error", "status"),
    [(form, error, status) for form, errors in FORMS.items() for error, status in errors.items()],
)
def test_form(form: ErrorForm, error: type[ServiceError], status: int) -> None:
    """Of Cohere's reference, `infinity_emb/fastapi_schemas/errors.py`, Triton's http_server.cc."""
    response = form(error(DETAIL, retry_after_seconds=2), "an-id")
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["retry-after"] == "2"
    kind, param, code = OPENAI_ERRORS.get(error, (None, None, None))
    expected: dict[ErrorForm, dict[str, Any]] = {
        cohere.error_response: {"message": DETAIL},
        cohere.jina_error_response: {"detail": DETAIL, "message": DETAIL},
        infinity.error_response: {"type": None, "param": None, "code": status},
        kserve.error_response: {"error": DETAIL},
        openai.error_response: {"type": kind, "param": param, "code": code},
        tei.error_response: {"error": DETAIL, "error_type": "Overloaded"},
        vllm.error_response: {"type": VLLM_TYPES.get(status), "param": None, "code": status},
    }
    body = expected[form]
    if "code" in body:
        body = {"error": {"message": DETAIL, **body}}
    if form is infinity.error_response and status == 422:
        body["detail"] = [{"loc": ["body"], "msg": DETAIL, "type": "value_error"}]
    assert json.loads(bytes(response.body)) == body


async def test_openais_own_limit_holds_where_the_service_takes_more(artifact: Artifact) -> None:
    async with serving_task(artifact, None, max_client_batch_size=4000) as client:
        answer = await client.post("/v1/embeddings", json={"input": ["a"] * 2049})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        assert "at most 2048" in answer.json()["error"]["message"]
