"""Words that a ranking leaves out of its texts: spans of characters, and the tokens of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.errors import Unprocessable
from service.inference.ranking.scorer import QueryPass, Scorer
from service.inference.tokenization.text import Offset, Text
from service.inference.words import tokens_of

QUERY, DOCUMENTS = "query_without", "documents_without"
"""Names of the request's fields in error messages."""


@dataclass(frozen=True)
class LeftOutSpans:
    """Query and documents, with the spans that are left out of each."""

    query: str
    documents: Sequence[str]
    of_query: Sequence[Offset]
    of_documents: Sequence[Sequence[Offset]]
    """Spans of each document; empty if nothing is left out of any."""

    def unseen(self, scorer: Scorer) -> Unseen:
        """Return the tokens that are left out.

        Raises:
            Unprocessable: a span is empty, out of its text, or has no token; spans of a text do not
                ascend or overlap; or no token of the query would be left.

        """
        of_documents = [
            self._of_document(number, spans, scorer)
            for number, spans in enumerate(self.of_documents or [()] * len(self.documents))
        ]
        if not isinstance(scorer, QueryPass):
            return Unseen((), of_documents)
        query = left_out(self.query, self.of_query, scorer.query_text(0), QUERY)
        if query and scorer.leaves_no_query(query):
            raise Unprocessable(f"{QUERY}: no token of the query would be left: leave out less")
        return Unseen(query, of_documents)

    def _of_document(self, number: int, spans: Sequence[Offset], scorer: Scorer) -> tuple[int, ...]:
        """Return the left-out tokens of the text that the model reads for a document."""
        name, own = f"{DOCUMENTS}[{number}]", scorer.own_tokens(number)
        text, tokenized = self.documents[number], scorer.document(number)
        unseen = [own[token] for token in left_out(text, spans, tokenized, name)]
        if self.of_query and not isinstance(scorer, QueryPass):
            own = scorer.query_tokens(number)
            tokens = left_out(self.query, self.of_query, scorer.query_text(number), QUERY)
            unseen = [*(own[token] for token in tokens), *unseen]
        return tuple(unseen)


@dataclass(frozen=True)
class Unseen:
    """Indices of tokens that are neither attended to nor pooled."""

    query: tuple[int, ...]
    """Tokens of the query's own forward pass; empty if each document is read with the query."""
    documents: Sequence[tuple[int, ...]]
    """Tokens of the text that the model reads for each document."""


def left_out(text: str, spans: Sequence[Offset], tokenized: Text, name: str) -> tuple[int, ...]:
    """Return the indices of the tokens of spans, ascending.

    Args:
        text: the text as the caller sent it.
        spans: start and end of each span in code points.
        tokenized: tokens of the text.
        name: name of the field with the spans, for error messages.

    Raises:
        Unprocessable: a span is empty, out of the text, before the end of the span before it, or
            has no token.

    """
    before = 0
    for place, (start, end) in enumerate(spans):
        if start < before or start >= end or end > len(text):
            raise Unprocessable(
                f"{name}[{place}] is [{start}, {end}): send spans of [0, {len(text)}) that ascend, "
                "without overlaps"
            )
        before = end
    owned = tokens_of(spans, tokenized)
    for place, tokens in enumerate(owned):
        if not tokens:
            start, end = spans[place]
            raise Unprocessable(
                f"{name}[{place}] is [{start}, {end}), which has no token: send another span"
            )
    return tuple(sorted({token for tokens in owned for token in tokens}))
