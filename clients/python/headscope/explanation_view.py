"""Explanation as HTML and as a table: the value of each token, by each method of the reply.

Notation: S tokens of a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headscope.display import LONG, HeatMap, Shaded, box, frame, lines, shaded, start_of, table
from headscope.results import TokenizedText

if TYPE_CHECKING:
    from pandas import DataFrame

    from headscope.explanation import Explanation, Method

Values = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Values of the tokens of both texts, `[S]` each."""
MEANINGS = {
    "pairs": "share of the similarity",
    "decomposition": "share of the similarity, by input tokens",
    "occlusion": "loss of similarity without the token, or its word or sentence",
    "matches": "matched similarity",
}
MAX_PAIRS = 5


def token_values(explanation: Explanation) -> dict[str, Values]:
    """Return the value of each token, by method of the reply."""
    values: dict[str, Values] = {}
    for name, matrix in (
        ("pairs", explanation.pairs),
        ("decomposition", explanation.decomposition),
    ):
        if matrix is not None:
            values[name] = matrix.sum(axis=1), matrix.sum(axis=0)
    if explanation.occlusion is not None:
        values["occlusion"] = losses_of_tokens(explanation, explanation.occlusion)
    if explanation.matches is not None:
        first, second = (np.zeros(len(text.tokens), np.float32) for text in explanation.texts)
        for match in explanation.matches:
            first[match.query] += match.score
            second[match.document] += match.score
        values["matches"] = first, second
    return values


def losses_of_tokens(explanation: Explanation, losses: Values) -> Values:
    """Return the loss without each token's span; NaN if it has none or was not computed."""
    if explanation.spans is None:
        return losses
    first, second = (np.full(len(text.tokens), np.nan, np.float32) for text in explanation.texts)
    for own, spans, of_spans in zip((first, second), explanation.spans, losses, strict=True):
        for span, loss in zip(spans, of_spans, strict=True):
            own[list(span.tokens)] = loss
    return first, second


def explanation_html(explanation: Explanation) -> str:
    """Return both texts with shaded words, the largest pairs of words, and the map of heads."""
    title = f"similarity {explanation.similarity:.3f} · {explanation.model} ({explanation.backend})"
    cut = [
        f"text {side} is truncated" for side, text in enumerate(explanation.texts) if text.truncated
    ]
    return box(
        [
            lines([title, *cut]),
            texts_table(explanation),
            pairs_table(explanation),
            heads_map(explanation),
        ]
    )


def texts_table(explanation: Explanation) -> str:
    """Return a table with a row per method, and both texts with tokens shaded by their values."""
    rows = []
    for name, values in token_values(explanation).items():
        largest = scale(values, explanation.texts)
        texts = zip(explanation.texts, values, strict=True)
        shades = [shaded(pieces(text, own, largest)) for text, own in texts]
        rows.append([f"{name}<br><small>{MEANINGS[name]}</small>", *shades])
    plain = ["", *(escape(start_of(text.texts[0], LONG)) for text in explanation.texts)]
    return table(("", "text 0", "text 1"), rows or [plain])


def heads_map(explanation: Explanation) -> str:
    """Return the map of the heads' values; empty if it was not requested."""
    if explanation.heads is None:
        return ""
    layers, heads = (range(size) for size in explanation.heads.shape)
    return HeatMap(
        "loss of similarity without a head",
        tuple(f"layer {layer}" for layer in layers),
        explanation.heads,
        tuple(f"head {head}" for head in heads),
    ).html()


def scale(values: Values, texts: Sequence[TokenizedText]) -> float:
    """Return the largest value of a token of either text, without special tokens."""
    magnitudes = [
        abs(float(value))
        for own_values, text in zip(values, texts, strict=True)
        for value, (start, end) in zip(own_values, text.offsets, strict=True)
        if start < end and not np.isnan(value)
    ]
    return max(magnitudes, default=0) or 1


def pieces(text: TokenizedText, values: NDArray[np.float32], largest: float) -> Iterator[Shaded]:
    """Yield a text's characters by token, with their shades; text between tokens has no shade."""
    (whole,) = text.texts
    at = 0
    for token, value, (start, end) in zip(text.tokens, values, text.offsets, strict=True):
        if start < end and end > at:
            yield whole[at:start], None, ""
            known = not np.isnan(value)
            shade, label = (float(value) / largest, f"{value:.3f}") if known else (None, "–")
            yield whole[max(start, at) : end], shade, f"{token}: {label}"
            at = end
    yield start_of(whole[at:], LONG), None, ""


def pairs_table(explanation: Explanation) -> str:
    """Return a table of the pairs of words with the largest shares; empty without shares."""
    if explanation.pairs is None and explanation.decomposition is None:
        return ""
    method: Method = "decomposition" if explanation.pairs is None else "pairs"
    best = explanation.top_pairs(MAX_PAIRS, method)
    largest = max((abs(pair.share) for pair in best), default=0) or 1
    rows = [
        (
            escape(pair.one.text),
            escape(pair.other.text),
            shaded([(f"{pair.share:.3f}", pair.share / largest, "")]),
        )
        for pair in best
    ]
    return table(("word of text 0", "word of text 1", f"share ({method})"), rows) if rows else ""


def explanation_frame(explanation: Explanation) -> DataFrame:
    """Return a table with a row per token of both texts, and a column per method of the reply.

    Raises:
        ImportError: pandas is not installed.

    """
    columns: Mapping[str, Sequence[object]] = {
        "text": [side for side, text in enumerate(explanation.texts) for _ in text.tokens],
        "token": [token for text in explanation.texts for token in text.tokens],
        "word": [word for text in explanation.texts for word in words_of_tokens(text)],
        "start": [start for text in explanation.texts for start, _ in text.offsets],
        "end": [end for text in explanation.texts for _, end in text.offsets],
    }
    values = {name: np.concatenate(both) for name, both in token_values(explanation).items()}
    return frame({**columns, **values})


def words_of_tokens(text: TokenizedText) -> list[str]:
    """Return the word of each token, `[S]`."""
    words = [""] * len(text.tokens)
    for word in text.words:
        for token in word.tokens:
            words[token] = word.text
    return words
