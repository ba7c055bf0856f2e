"""Tokens of texts, and warnings about texts."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import httpx
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headscope import Client, InvalidReply, Refused, TextWarning, Warnings
from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from tests.clients.python.fake import INFO, asked, client_of
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
        client_of(plain) as client,
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
        client_of(plain) as client,
    ):
        found = await client.tokenize(["a", "", "b"], on_error="return")
    assert [len(one) for one in found if not isinstance(one, Refused)] == [3, 3]
    assert found[1].index == 1


def service(**headers):
    """Return a service whose every reply has these headers."""
    sent = {f"x-{name.replace('_', '-')}": value for name, value in headers.items()}
    return lambda request: httpx.Response(200, headers=sent, json=INFO)


def test_replies_are_counted_and_each_kind_is_warned_of_once():
    transport = httpx.MockTransport(service(truncated="2", prompt_missing="1"))
    with Client("http://there", transport=transport) as client:
        with pytest.warns(TextWarning) as reported:
            client.info()
        assert sorted(str(one.message).split(";")[0] for one in reported) == [
            "1 text was computed without a prompt, though the model names prompts",
            "2 texts were cut to the most tokens",
        ]
        with warnings.catch_warnings(action="error"):
            client.info()
        assert client.warnings == Warnings(truncated=4, prompt_missing=2, unknown_tokens=0)


def test_both_clients_warn_and_only_of_headers(kind):
    with pytest.warns(TextWarning, match="1 text was computed with more than a tenth"):
        asked(kind, "info", service(unknown_tokens="1"))
    with warnings.catch_warnings(action="error"):
        asked(kind, "info", service())
    with pytest.raises(InvalidReply):
        asked(kind, "info", service(truncated="some"))
