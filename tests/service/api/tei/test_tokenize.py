"""`POST /tokenize` and `POST /decode` in TEI's forms."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from tests.service.harness import serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
TEXT = "naïve café 😀 ok"


@pytest.fixture(scope="module")
def tokenizer(artifact: Artifact) -> Tokenizer:
    """Return the checkpoint's tokenizer from the tokenizers library."""
    return Tokenizer.from_file(str(artifact.path(TOKENIZER)))


async def test_offsets_are_bytes(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    """Each token's bytes are its text; special ones have none."""
    answer = await client.post("/tokenize", json={"inputs": [TEXT, "a"]})
    found, _ = answer.json()
    encoding = tokenizer.encode(TEXT)
    assert [token["id"] for token in found] == encoding.ids
    first, *inner, last = found
    assert first == {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert last == {"id": 102, "text": "[SEP]", "special": True, "start": None, "stop": None}
    for token, (start, end) in zip(inner, encoding.offsets[1:-1], strict=True):
        shown = TEXT.encode()[token["start"] : token["stop"]].decode()
        assert shown == token["text"] == TEXT[start:end]
        assert token["special"] is False
    assert inner[-1]["stop"] == len(TEXT.encode()) > len(TEXT)


async def test_special_tokens_are_a_choice(client: httpx.AsyncClient) -> None:
    body = {"inputs": "a [SEP] b", "add_special_tokens": False}
    (found,) = (await client.post("/tokenize", json=body)).json()
    assert [token["text"] for token in found] == ["a", "[SEP]", "b"]
    body["inputs"] = [" ", " a"]
    nothing, found = (await client.post("/tokenize", json=body)).json()
    assert (nothing, [token["text"] for token in found]) == ([], ["a"])


async def test_a_prompt_is_part_of_the_text(artifact: Artifact) -> None:
    """Offsets then count in prompt and text together, as in TEI."""
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": {"q": "é: "}})
    prompted = variant(artifact, "prompted", 128, sentence=sentence)
    async with serving(prompted, fake_of(prompted)) as client:
        body = {"inputs": "cat", "prompt_name": "q"}
        (found,) = (await client.post("/tokenize", json=body)).json()
    assert [(token["text"], token["start"], token["stop"]) for token in found[1:-1]] == [
        ("é", 0, 2),
        (":", 2, 3),
        ("cat", 4, 7),
    ]


async def test_any_length_is_tokenised_and_decoded(
    client: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    """More tokens than the model takes, in a list that leaves the event loop."""
    texts = ["the cat is here " * 500, "a dog"] * 20
    answer = await client.post("/tokenize", json={"inputs": texts})
    ids = [[token["id"] for token in tokens] for tokens in answer.json()]
    assert ids == [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert len(ids[0]) > 2000
    beyond = {"inputs": "the cat is here " * 20_000}  # a single text is bounded by the body alone
    (tokens,) = (await client.post("/tokenize", json=beyond)).json()
    assert [token["id"] for token in tokens] == tokenizer.encode(beyond["inputs"]).ids
    decoded = await client.post("/decode", json={"ids": ids})
    assert decoded.json() == tokenizer.decode_batch(ids)


async def test_ids_become_text(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a cat").ids
    assert (await client.post("/decode", json={"ids": ids})).json() == ["a cat"]
    special = await client.post("/decode", json={"ids": [ids, ids], "skip_special_tokens": False})
    assert special.json() == ["[CLS] a cat [SEP]"] * 2


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/tokenize", {"inputs": []}, 400, "at least one"),
        ("/tokenize", {"inputs": ["a", ""]}, 400, "inputs[1] is empty"),
        ("/tokenize", {"inputs": [1]}, 422, "a list of texts"),
        ("/tokenize", {"inputs": "a", "prompt_name": "q"}, 422, "prompt_name"),
        ("/tokenize", {"inputs": ["a"] * 513}, 422, "at most 512"),
        ("/decode", {"ids": []}, 400, "at least one"),
        ("/decode", {"ids": [[1], []]}, 400, "ids[1] is empty"),
        ("/decode", {"ids": "a"}, 422, "list of token ids"),
        ("/decode", {"ids": ["a"]}, 422, "list of token ids"),
        ("/decode", {"ids": [[1], [30522]]}, 422, "ids[1] has the token id 30522"),
        ("/decode", {}, 422, "required"),
    ],
)
async def test_refusals(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, says: str
) -> None:
    answer = await client.post(path, json=body)
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text


async def test_a_reply_has_its_limit(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact), max_response_bytes=1000) as client:
        assert (await client.post("/tokenize", json={"inputs": "a b"})).status_code == 200
        assert (await client.post("/tokenize", json={"inputs": "a " * 20})).status_code == 413
        assert (await client.post("/decode", json={"ids": [1997] * 400})).status_code == 413
