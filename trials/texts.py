"""Texts of every Unicode shape through /encode, against transformers on the same checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from testing.blocking import Session
from trials.gates import Gate, Scale, at_least, exactly

SEED, LEAST, MOST, SHOWN = 6, 8, 16, 3
"""Seed, minimum and maximum texts of a request, and number of shown failures."""
ODD = [
    *("", " ", "\0", "\x00\x01\x1b\x7f", "\u200b", "\u200d", "\ufeff", "\u00ad", "\ufffd"),
    *("\u202e", "\u2066right\u2069", "abc\u202edef\u202c", "אבג", "العربية"),
    *("👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷🇩🇪", "e\u0301", "A\u030a", "a" + "\u0301" * 50, "ﬁ", "Ⅷ", "½"),
    *("[SEP]", "[CLS]", "[PAD]", "[MASK]", "[UNK]", "##ing", "[sep]"),
    *("注意力", "日本語", "한국어", "ǅ", "İ", "ß", "\U0010ffff", "\ue000", "\uffff"),
    *("\t", "\r\n", "\u2028", "\u3000", "\x85", "don't", "...", "١٢٣"),
]


def texts() -> st.SearchStrategy[str]:
    """Return a strategy of any characters except surrogates, of odd pieces, and of long words."""
    anywhere = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    control = st.text(st.characters(categories=["Cc", "Cf", "Mn", "Co", "Cn"]), max_size=12)
    pieces = st.lists(st.sampled_from(ODD) | anywhere, max_size=6).map("".join)
    words = st.lists(st.sampled_from(ODD), max_size=8).map(" ".join)
    long = st.builds(
        lambda piece, times: (piece or "x") * times, st.sampled_from(ODD), st.integers(1, 120)
    )
    return st.one_of(anywhere, control, pieces, words, long)


@dataclass
class Compared:
    """Number of compared texts, and descriptions of the wrong ones."""

    texts: int = 0
    wrong: list[str] = field(default_factory=list)


class Reference:
    """Fast tokenizer of a checkpoint in transformers."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)

    def expected(self, text: str, most: int) -> dict[str, Any]:
        """Return the fields of a result that describe a text's tokens."""
        encoded = self._tokenizer(
            text, truncation=True, max_length=most, return_offsets_mapping=True
        )
        return {
            "tokens": self._tokenizer.convert_ids_to_tokens(encoded["input_ids"]),
            "token_ids": encoded["input_ids"],
            "offsets": [list(pair) for pair in encoded["offset_mapping"]],
        }


def compare(
    asked: Sequence[str], reply: dict[str, Any], reference: Reference, most: int
) -> list[str]:
    """Return descriptions of a reply's errors."""
    if len(reply["results"]) != len(asked):
        return [f"{len(reply['results'])} results of {len(asked)} texts"]
    return [
        f"{name} of {ascii(text)[:80]}"
        for text, result in zip(asked, reply["results"], strict=True)
        for name in _wrong(result, reference.expected(text, most))
    ]


def _wrong(result: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    wrong = [name for name, value in expected.items() if result[name] != value]
    pooled = np.array(result["pooled"], np.float64)
    finite = bool(np.isfinite(pooled).all()) and math.isclose((pooled**2).sum(), 1, rel_tol=1e-3)
    return wrong if finite else [*wrong, "pooled"]


def trial(port: int, checkpoint: Path, most: int, scale: Scale) -> list[Gate]:
    """Send random texts to a server whose limit is `most` tokens."""
    count, compared = scale.of(20_000, 120), Compared()
    reference = Reference(checkpoint)
    chosen = settings(
        max_examples=count // LEAST,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with Session(port) as session:

        @seed(SEED)
        @chosen
        @given(st.lists(texts(), min_size=LEAST, max_size=MOST))
        def send(asked: list[str]) -> None:
            body = {"inputs": asked, "outputs": ["pooled"], "normalize": True, "truncate": True}
            reply = session.ask("/encode", body)
            compared.texts += len(asked)
            if reply.status == 200:
                compared.wrong += compare(asked, reply.json(), reference, most)
            else:
                compared.wrong.append(f"{reply.status}: {reply.body[:200]!r}")

        send()
    return judge(compared, count)


def judge(compared: Compared, count: int) -> list[Gate]:
    """Return the gates of the compared texts."""
    return [
        at_least("texts of every Unicode shape", count, compared.texts),
        exactly("… unlike transformers, or not finite", 0, len(compared.wrong)),
        *(Gate("… said", "nothing", wrong, False) for wrong in compared.wrong[:SHOWN]),
    ]
