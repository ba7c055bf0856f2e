"""Tokens of the client against transformers' tokenizer: ids, and offsets in code points."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import httpx
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headscope import AsyncClient, InvalidReply, Refused
from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from tests.clients.python.fake import asked
from tests.service.harness import serving

pytestmark = pytest.mark.anyio
TEXTS = [
    "The cat sat.",
    "naïve 🙂 café: 的 unbelievably",
    "  a   b ",
    "word " * 300,
    "query: query: it",
]
PROMPTS = {"query": "query: ", "accents": "É\u0301tude 🙂: "}


@pytest.fixture(scope="module")
def tokenizer(small_checkpoint: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(str(small_checkpoint))


def with_prompts(artifact: Artifact, default: str | None) -> Artifact:
    sentence = artifact.manifest.sentence.model_copy(
        update={"prompts": PROMPTS, "default_prompt_name": default}
    )
    manifest = artifact.manifest.model_copy(update={"sentence": sentence})
    return dataclasses.replace(artifact, manifest=manifest)


@pytest.mark.parametrize("default", [None, "query", "accents"])
async def test_tokens_are_those_of_transformers(artifact, tokenizer, default):
    """Also after a prompt, whose tokens have no position in the text."""
    served = with_prompts(artifact, default)
    prompt = PROMPTS[default] if default else ""
    engine = FakeEngine(served.manifest.config)
    async with (
        serving(served, engine, max_client_batch_size=2) as plain,
        AsyncClient("http://localhost", transport=httpx.ASGITransport(plain.app)) as client,
    ):
        found = await client.tokenize(TEXTS)
        bare = await client.tokenize(TEXTS[0], add_special_tokens=False)
    for text, one in zip(TEXTS, found, strict=True):
        expected = tokenizer(prompt + text, return_offsets_mapping=True)
        assert (one.text, one.token_ids) == (text, expected["input_ids"])
        size = len(prompt)
        moved = [(max(a - size, 0), max(b - size, 0)) for a, b in expected["offset_mapping"]]
        assert one.offsets == moved
        for token, place, special in zip(one.tokens, one.offsets, one.special, strict=True):
            assert special == (token in ("[CLS]", "[SEP]"))
            assert place == (0, 0) or text[slice(*place)] == token
        assert len(one) == len(one.tokens)
    assert bare[0].token_ids == tokenizer(prompt + TEXTS[0], add_special_tokens=False)["input_ids"]


async def test_a_text_that_is_refused_has_its_error_in_its_place(artifact):
    async with (
        serving(artifact, FakeEngine(artifact.manifest.config)) as plain,
        AsyncClient("http://localhost", transport=httpx.ASGITransport(plain.app)) as client,
    ):
        found = await client.tokenize(["a", "", "b"], on_error="return")
    assert [len(one) for one in found if not isinstance(one, Refused)] == [3, 3]
    assert found[1].index == 1


@pytest.mark.parametrize(
    "pieces", [[], [[]], [[{"id": 1, "text": "b", "special": False, "start": 5, "stop": 9}]] * 2]
)
def test_another_reply_than_of_these_texts(kind, pieces):
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps(pieces))

    if pieces == [[]]:
        assert asked(kind, "tokenize", answer, "a")[0].tokens == []
    else:
        with pytest.raises(InvalidReply):
            asked(kind, "tokenize", answer, "a")
