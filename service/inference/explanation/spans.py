"""The spans of a text that are occluded as a whole: its tokens, words or sentences.

Words are those of `alignment.words`. A sentence ends behind `.`, `!`, `?` or `…` with the closing
quotes and brackets that follow, where white space comes next; behind `。`, `！`, `？` or `｡` also
without; and at the end of a line. It goes on behind `.` and `…` before a small letter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from service.inference.alignment.words import split_words, tokens_of
from service.inference.tokenization.excerpt import Offset
from service.inference.tokenization.tokenizer import TokenizedText

SpanKind = Literal["tokens", "words", "sentences"]
_SENTENCE_END = re.compile(r"""[.!?…]+["'”’»)\]]*(?=\s)|[。！？｡]+[」』”’）]*|[\n\r\u2028\u2029]""")
_NEXT_CHARACTER = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text, and the tokens that hold a character of it."""

    start: int
    """Code points of the text before it."""
    end: int
    tokens: tuple[int, ...]
    """Indices of its tokens, ascending; at least one."""


def spans_of(kind: SpanKind, text: str, tokenized: TokenizedText) -> list[Span]:
    """Split a text into spans.

    Args:
        kind: `tokens` are all tokens, also special ones and those of a prompt.
        text: the text as the caller sent it.
        tokenized: the tokens of the text; words and sentences without a token are left out.

    """
    if kind == "tokens":
        offsets = enumerate(tokenized.offsets)
        return [Span(start, end, (token,)) for token, (start, end) in offsets]
    parts = split_words(text) if kind == "words" else split_sentences(text)
    held = zip(parts, tokens_of(parts, tokenized), strict=True)
    return [Span(start, end, tuple(tokens)) for (start, end), tokens in held if tokens]


def split_sentences(text: str) -> list[Offset]:
    """Return the code points where each sentence begins and ends, without white space around it."""
    sentences: list[Offset] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        following = _NEXT_CHARACTER.search(text, match.end())
        if match[0][0] in ".…" and following and following[0].islower():
            continue
        start = _add(sentences, text, start, match.end())
    _add(sentences, text, start, len(text))
    return sentences


def _add(sentences: list[Offset], text: str, start: int, end: int) -> int:
    """Add what is left of a sentence without white space around it; return its end."""
    part = text[start:end]
    if part.strip():
        begins = start + len(part) - len(part.lstrip())
        sentences.append((begins, start + len(part.rstrip())))
    return end
