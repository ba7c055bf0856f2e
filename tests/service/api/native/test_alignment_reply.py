"""A reply has at most the predicted bytes, and its documented fields."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from service.api.native.alignment_reply import AlignmentReply
from service.api.native.replies import AlignReply
from service.inference.alignment.pairs import Pair, PreparedPairs
from service.inference.alignment.word_alignments import WordAlignment
from service.inference.alignment.words import AlignedText, aligned_text
from service.inference.encoding import PreparedTexts
from service.inference.timings import Timings
from service.inference.tokenization.tokenized import TokenizedText, places_of


def characters(text: str) -> tuple[AlignedText, TokenizedText]:
    """Return a text with one token for each character."""
    ids, offsets = np.ones(len(text), np.int64), [(i, i + 1) for i in range(len(text))]
    found = TokenizedText(
        [*text], ids, 0 * ids, places_of(offsets), False, 0, [0] * len(text), ids < 0
    )
    return aligned_text(text, found, "punctuation"), found


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize(("source", "target"), [("\x01\t\x02" * 40, "東" * 200), ("a b", "")])
def test_a_reply_fits_its_bytes_and_its_documentation(source, target, matrix):
    (one, first), (other, second) = characters(source), characters(target)
    engine: Any = SimpleNamespace(engine=SimpleNamespace(name="fake"))
    caller: Any = None
    texts = PreparedTexts([first, second], caller, engine, Timings(0, 0.0, 0.0))
    prepared = PreparedPairs(texts, [Pair(one, other)] * 2, [(False, True)] * 2)
    chance = np.random.default_rng(0)
    scores = chance.uniform(-1, 1, (len(one.words), len(other.words))).astype(np.float32)
    links = np.argwhere(scores > -1)
    found = WordAlignment(links, scores[*links.T], scores)
    reply = AlignmentReply("a model", prepared, "softmax", matrix)
    content = b"".join(reply.pieces([found] * 2))
    assert len(content) <= reply.most_bytes < 4 * len(content) + 2000
    reported = AlignReply.model_validate(orjson.loads(content)).model_dump(exclude_none=True)
    assert reported == orjson.loads(content)
    (result, again) = reported["results"]
    assert result == again
    assert ("matrix" in result) == matrix
    assert result["truncated"] == {"source": False, "target": True}
    assert reported["usage"] == {"inputs": 2, "tokens": len(source) + len(target)}
