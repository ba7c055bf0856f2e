"""An explanation as HTML and as a table: what each token is worth, by each method of the reply.

Notation: S tokens of a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headscope.display import LONG, Shaded, box, lines, shaded, start_of, table
from headscope.heat_map import HeatMap
from headscope.results import TokenizedText
from headscope.tables import frame

if TYPE_CHECKING:
    from pandas import DataFrame

    from headscope.explanation import Explanation, Method

Values = tuple[NDArray[np.float32], NDArray[np.float32]]
"""A number a token, `[S]`, of both texts."""
MEANINGS = {
    "pairs": "share of the similarity",
    "decomposition": "share of the similarity, by input tokens",
    "occlusion": "loss of similarity without the token, or its word or sentence",
    "matches": "matched similarity",
}
MAX_PAIRS = 5


def token_values(found: Explanation) -> dict[str, Values]:
    """Return what each token is worth, by the methods of a reply."""
    values: dict[str, Values] = {}
    for name, matrix in (("pairs", found.pairs), ("decomposition", found.decomposition)):
        if matrix is not None:
            values[name] = matrix.sum(axis=1), matrix.sum(axis=0)
    if found.occlusion is not None:
        values["occlusion"] = losses_of_tokens(found, found.occlusion)
    if found.matches is not None:
        one, other = (np.zeros(len(text.tokens), np.float32) for text in found.texts)
        for match in found.matches:
            one[match.query] += match.score
            other[match.document] += match.score
        values["matches"] = one, other
    return values


def losses_of_tokens(found: Explanation, losses: Values) -> Values:
    """Return the loss without each token's span; NaN where it has none, or it is not computed."""
    if found.spans is None:
        return losses
    one, other = (np.full(len(text.tokens), np.nan, np.float32) for text in found.texts)
    for own, spans, of_spans in zip((one, other), found.spans, losses, strict=True):
        for span, loss in zip(spans, of_spans, strict=True):
            own[list(span.tokens)] = loss
    return one, other


def explanation_html(found: Explanation) -> str:
    """Return both texts with shaded words, the largest pairs of words, and the map of heads."""
    title = f"similarity {found.similarity:.3f} · {found.model} ({found.backend})"
    cut = [f"text {side} is truncated" for side, text in enumerate(found.texts) if text.truncated]
    return box([lines([title, *cut]), texts_table(found), pairs_table(found), heads_map(found)])


def texts_table(found: Explanation) -> str:
    """Return a row a method with both texts, whose tokens are shaded by what they are worth."""
    rows = []
    for name, values in token_values(found).items():
        largest = scale(values, found.texts)
        texts = zip(found.texts, values, strict=True)
        shades = [shaded(pieces(text, own, largest)) for text, own in texts]
        rows.append([f"{name}<br><small>{MEANINGS[name]}</small>", *shades])
    plain = ["", *(escape(start_of(text.texts[0], LONG)) for text in found.texts)]
    return table(("", "text 0", "text 1"), rows or [plain])


def heads_map(found: Explanation) -> str:
    """Return the map of what each head is worth; nothing where it was not asked for."""
    if found.heads is None:
        return ""
    layers, heads = (range(size) for size in found.heads.shape)
    return HeatMap(
        "loss of similarity without a head",
        tuple(f"layer {layer}" for layer in layers),
        found.heads,
        tuple(f"head {head}" for head in heads),
    ).html()


def scale(values: Values, texts: Sequence[TokenizedText]) -> float:
    """Return the largest value of a token of either text; special tokens are not shown."""
    own = [
        abs(float(value))
        for each, text in zip(values, texts, strict=True)
        for value, (start, end) in zip(each, text.offsets, strict=True)
        if start < end and not np.isnan(value)
    ]
    return max(own, default=0) or 1


def pieces(text: TokenizedText, values: NDArray[np.float32], largest: float) -> Iterator[Shaded]:
    """Yield a text's characters by token, with their shades; what lies between has none."""
    (whole,) = text.texts
    at = 0
    for token, value, (start, end) in zip(text.tokens, values, text.offsets, strict=True):
        if start < end and end > at:
            yield whole[at:start], None, ""
            known = not np.isnan(value)
            shade, says = (float(value) / largest, f"{value:.3f}") if known else (None, "–")
            yield whole[max(start, at) : end], shade, f"{token}: {says}"
            at = end
    yield start_of(whole[at:], LONG), None, ""


def pairs_table(found: Explanation) -> str:
    """Return the pairs of words with the largest shares as a table; nothing without shares."""
    if found.pairs is None and found.decomposition is None:
        return ""
    method: Method = "decomposition" if found.pairs is None else "pairs"
    best = found.top_pairs(MAX_PAIRS, method)
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


def explanation_frame(found: Explanation) -> DataFrame:
    """Return a row a token of both texts, with a column for each method of the reply.

    Raises:
        ImportError: pandas is not installed.

    """
    columns: Mapping[str, list[Any]] = {
        "text": [side for side, text in enumerate(found.texts) for _ in text.tokens],
        "token": [token for text in found.texts for token in text.tokens],
        "word": [word for text in found.texts for word in words_of_tokens(text)],
        "start": [start for text in found.texts for start, _ in text.offsets],
        "end": [end for text in found.texts for _, end in text.offsets],
    }
    values = {name: np.concatenate(both) for name, both in token_values(found).items()}
    return frame({**columns, **values})


def words_of_tokens(text: TokenizedText) -> list[str]:
    """Return the word that each token is of, `[S]`."""
    words = [""] * len(text.tokens)
    for word in text.words:
        for token in word.tokens:
            words[token] = word.text
    return words
