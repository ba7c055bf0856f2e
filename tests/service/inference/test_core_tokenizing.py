"""Where an input is tokenised: only one short text may hold up the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.inference.core import INLINE_CHARACTERS
from service.inference.tokenizer import TextTokenizer
from tests.service.harness import serving

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("inputs", "on_the_loop"),
    [
        ("short", True),
        ([["a short", "pair"]], True),
        ("a " * (INLINE_CHARACTERS // 2), True),
        ("a " * (INLINE_CHARACTERS // 2) + "b", False),
        ([["a " * (INLINE_CHARACTERS // 2), "b"]], False),
        (["", ""], False),
        ([""] * 512, False),
    ],
)
async def test_only_one_short_text_is_tokenised_on_the_event_loop(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, inputs: Any, on_the_loop: bool
) -> None:
    threads = []
    tokenize = TextTokenizer.tokenize

    def note(self: TextTokenizer, *arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return tokenize(self, *arguments)

    monkeypatch.setattr(TextTokenizer, "tokenize", note)
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        reply = await client.post("/encode", json={"inputs": inputs, "truncate": True})
    assert reply.status_code == 200
    assert [thread == threading.get_ident() for thread in threads] == [on_the_loop]
