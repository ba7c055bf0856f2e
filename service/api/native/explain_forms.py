"""Schemas of replies of /explain, and their serialisation as JSON or safetensors.

Notation: B pairs, S_a and S_b tokens of the texts of a pair, L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import orjson
from numpy.typing import NDArray

from model.config.encoder import EncoderConfig
from service.api.native.texts import TEXT, Envelope, reply, text_fields, text_tensors
from service.api.wire.json_pieces import safetensors_parts
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Part, Unwritten
from service.api.wire.schemas import any_of, named
from service.inference.explanation.explanation import PairExplanation
from service.inference.explanation.spans import Block
from service.inference.explanation.tower import ExplainOptions, Side
from service.inference.ranking.scorers import MatchedToken
from service.inference.tokenization.text import Text

TOKEN_BYTES = 64
"""Predicted bytes of a token with its id and offsets, which the binary format holds as JSON too."""
SPAN_BYTES, SPAN_TOKEN_BYTES = 64, 8
"""Predicted bytes of a span without its tokens, and of each of its tokens, in JSON."""
MATCH_BYTES = 96
"""Predicted bytes of a match in JSON."""
PAIR_BYTES = 512
"""Predicted bytes of a pair without its arrays and tokens."""
REPLY_BYTES = 1024
"""Predicted bytes of a reply without its pairs, mostly names of the binary format."""
ERRORS = {"pairs": "completeness_error", "decomposition": "decomposition_error"}
"""Method → name of the field with the error of its sum."""


def reply_bytes(
    options: ExplainOptions, sides: Sequence[Side], config: EncoderConfig, *, binary: bool
) -> int:
    """Return the predicted bytes of a reply; the texts of a pair are adjacent in `sides`."""
    heads = config.num_hidden_layers * config.num_attention_heads * options.heads
    each, size = 4 if binary else JSON_BYTES_PER_FLOAT, REPLY_BYTES
    for first, second in zip(sides[::2], sides[1::2], strict=True):
        tokens, spans = first.tokens + second.tokens, first.spans + second.spans
        numbers = first.tokens * second.tokens * (options.pairs + options.decomposition)
        numbers += spans * options.occlusion + heads
        size += each * numbers + TOKEN_BYTES * tokens + PAIR_BYTES
        if options.spans != "tokens" or first.picture or second.picture:
            size += SPAN_BYTES * spans + SPAN_TOKEN_BYTES * tokens
    return size


def matches_bytes(texts: Sequence[Text]) -> int:
    """Return the predicted bytes of a reply with matches, without the matches."""
    tokens = sum(len(text.input_ids) for text in texts)
    return 2 * TOKEN_BYTES * tokens + PAIR_BYTES * len(texts) // 2


def explain_json(envelope: Envelope, pairs: Sequence[Mapping[str, object]]) -> Unwritten:
    """Yield the JSON reply by the fields of each pair; fields not requested are absent."""

    def facts(text: Text) -> dict[str, object]:
        fields = text_fields(text)
        del fields["segment_ids"]  # all in one segment
        return fields

    texts = envelope.texts
    results = (
        {"similarity": own["similarity"], "texts": [*map(facts, texts[2 * n : 2 * n + 2])], **own}
        for n, own in enumerate(pairs)
    )
    return envelope.pieces(results)


def match_fields(
    similarity: float, matches: Sequence[MatchedToken], *, mean: bool
) -> dict[str, object]:
    """Return the fields of a pair, with |sum or mean of the products − similarity|."""
    total = sum(match.score for match in matches) / (len(matches) if mean and matches else 1)
    named = [match._asdict() for match in matches]
    return {
        "similarity": similarity,
        "matches": [{name: n for name, n in each.items() if n is not None} for each in named],
        "completeness_error": abs(total - similarity) if matches else 0.0,
    }


def explain_safetensors(envelope: Envelope, pairs: Sequence[PairExplanation]) -> list[Part]:
    """Return the binary reply: `similarity` `[B]`; `pairs.{i}`, `occlusion.{i}.a`, … of each pair.

    The losses without each head are one tensor, `heads` `[B, L, N]`.
    """
    first, tensors = pairs[0], dict[str, NDArray[np.generic]]()

    def add(name: str, values: Sequence[object], dtype: type[np.generic] = np.float32) -> None:
        tensors[name] = np.array(values, dtype)  # in which None becomes NaN

    add("similarity", [pair.similarity for pair in pairs])
    for name in first.wanted:
        add(f"computed.{name}", [pair.computed[name] for pair in pairs], np.int32)
    if first.wanted:
        add("partial", [pair.partial for pair in pairs], np.uint8)
    for number, pair in enumerate(pairs):
        shares = pair.shares.items()
        tensors |= {f"{name}.{number}": np.ascontiguousarray(matrix) for name, matrix in shares}
        for side, losses in zip("ab", pair.occlusion or (), strict=False):
            tensors[f"occlusion.{number}.{side}"] = losses
    if first.heads is not None:
        add("heads", [pair.heads for pair in pairs])
    for name in first.shares:
        add(ERRORS[name], [pair.error(pair.shares[name]) for pair in pairs])
    agreements = [pair.agreement() for pair in pairs]
    for name in agreements[0]:
        add(f"agreement.{name}", [own[name] for own in agreements])
    lists = envelope.metadata()
    if _spans(first):
        lists["spans"] = orjson.dumps([_spans(pair) for pair in pairs]).decode()
    return safetensors_parts(tensors | text_tensors(envelope.texts), lists)


def pair_fields(pair: PairExplanation) -> dict[str, object]:
    """Return the fields of a pair; fields not requested are absent."""
    fields: dict[str, object] = {"similarity": pair.similarity}
    for name, matrix in pair.shares.items():
        computed = pair.computed.get(name, 1)
        fields[name] = np.ascontiguousarray(matrix) if computed else None
        fields[ERRORS[name]] = pair.error(matrix)
    if pair.occlusion is not None:
        if spans := _spans(pair):
            fields["spans"] = spans
        fields["occlusion"] = list(pair.occlusion)
        if pair.shares:
            fields["agreement"] = pair.agreement()
    if pair.heads is not None:
        fields["heads"] = pair.heads
    if pair.wanted:
        fields |= {"partial": pair.partial, "computed": pair.computed}
    return fields


def _spans(pair: PairExplanation) -> list[list[dict[str, object]]] | None:
    """Return the spans of both texts; None without occlusion, or if spans are single tokens."""
    tokens = pair.span_kind == "tokens" and not any(
        isinstance(span, Block) for spans in pair.spans for span in spans
    )
    if pair.occlusion is None or tokens:
        return None
    return [[asdict(span) for span in spans] for spans in pair.spans]


_MATCH = named(
    "TokenMatch",
    {
        "query": (int, "Token of the first text; for sparse encoders, of its word's weight."),
        "document": (int, "Its best match in the second text, or the token with the same word."),
        "score": (float, "Summand of the similarity."),
        "token_id?": (int, "Word's id, for sparse encoders."),
    },
)
_SPAN = named(
    "ExplainSpan",
    {
        "start": (int, "Offset in code points."),
        "end": int,
        "tokens": ([int], "Indices of the span's tokens."),
    },
)
_BLOCK = named(
    "ExplainBlock",
    {
        "rows": ([int, int], "First row, and the row after the last."),
        "columns": [int, int],
        "tokens": ([int], "Indices of the tokens of the patches."),
    },
)
_TEXT = {name: form for name, form in TEXT.items() if name != "segment_ids"}
_SPANS = any_of([_SPAN], [_BLOCK])
_ERROR = (float, "|sum − similarity|.")
RESULT = named(
    "ExplainResult",
    {
        "similarity": float,
        "texts": [_TEXT, _TEXT],
        "pairs?": ([[float]], "`[S_a][S_b]`, sums to similarity."),
        "completeness_error?": _ERROR,
        "occlusion?": (
            [[float | None], [float | None]],
            "`[S_a]` and `[S_b]`, or one value for each of `spans`: loss of similarity without "
            "that token or span; null if not computed.",
        ),
        "spans?": (
            [_SPANS, _SPANS],
            "Spans of `occlusion`, unless these are the single tokens of two texts.",
        ),
        "decomposition?": (
            [[float]],
            "`[S_a][S_b]` of input tokens, sums to similarity; null if not computed.",
        ),
        "decomposition_error?": _ERROR,
        "heads?": (
            [[float | None]],
            "`[layers][heads]`: loss of similarity with that head zeroed in both texts; null if "
            "not computed.",
        ),
        "partial?": (
            bool,
            "Whether the deadline passed before occlusion, decomposition and heads were complete.",
        ),
        "computed?": (
            dict[str, int],
            "Number of computed values of `occlusion` and `heads`, and of computed decompositions "
            "(0 or 1).",
        ),
        "agreement?": (
            dict[str, float | None],
            "Spearman correlation of each method's row and column sums with occlusion.",
        ),
        "matches?": ([_MATCH], "Of a sparse encoder or a late-interaction model."),
    },
)
REPLY = reply("ExplainReply", {"results": [RESULT]})
