"""The JSON and the binary form of a reply of /explain.

Notation: B pairs, S_a and S_b tokens of the texts of one, L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from model.config.encoder import EncoderConfig
from service.api.native.texts import Header, metadata, text_fields, text_tensors, usage
from service.api.wire.json_pieces import object_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Part, Unwritten
from service.api.wire.safetensors import safetensors_parts
from service.inference.explanation.cost import Side
from service.inference.explanation.options import ExplainOptions
from service.inference.explanation.pairs import PairExplanation
from service.inference.explanation.token_matches import PairMatches
from service.inference.tokenization.tokenizer import TokenizedText

TOKEN_BYTES = 64
"""Bytes of a token, with its id and offsets, which in the binary form are JSON as well."""
SPAN_BYTES, SPAN_TOKEN_BYTES = 48, 8
"""Bytes of a span beside its tokens, and of each of its tokens, which are always JSON."""
MATCH_BYTES = 96
"""Bytes of a match in JSON."""
PAIR_BYTES = 512
"""Bytes of a pair beside its arrays and tokens."""
REPLY_BYTES = 1024
"""Bytes of what stands once in a reply; most of it are names in the binary form."""
ERRORS = {"pairs": "completeness_error", "decomposition": "decomposition_error"}
"""The field with the error of each method's sum."""


def reply_bytes(
    options: ExplainOptions, sides: Sequence[Side], config: EncoderConfig, *, binary: bool
) -> int:
    """Return the bytes predicted of a reply.

    Args:
        options: what is wanted.
        sides: the sizes of the first and the second text of each pair, in turn.
        config: the encoder's.
        binary: whether it is safetensors.

    """
    heads = config.num_hidden_layers * config.num_attention_heads * options.heads
    each, size = 4 if binary else JSON_BYTES_PER_FLOAT, REPLY_BYTES
    for one, other in zip(sides[::2], sides[1::2], strict=True):
        tokens, spans = one.tokens + other.tokens, one.spans + other.spans
        numbers = one.tokens * other.tokens * (options.pairs + options.decomposition)
        numbers += spans * options.occlusion + heads
        size += each * numbers + TOKEN_BYTES * tokens + PAIR_BYTES
        if options.spans != "tokens":
            size += SPAN_BYTES * spans + SPAN_TOKEN_BYTES * tokens
    return size


def matches_bytes(texts: Sequence[TokenizedText]) -> int:
    """Bytes predicted of a reply with matches."""
    tokens = sum(len(text.input_ids) for text in texts)
    return 2 * TOKEN_BYTES * tokens + PAIR_BYTES * len(texts) // 2


def explain_json(
    header: Header, texts: Sequence[TokenizedText], found: Sequence[PairExplanation]
) -> Sequence[Part | Unwritten]:
    """The JSON reply, whose numbers are computed; what was not asked for is absent."""
    return [_pair_pieces(header, texts, [_fields(one) for one in found])]


def matches_json(
    header: Header, texts: Sequence[TokenizedText], found: Sequence[PairMatches]
) -> Sequence[Part | Unwritten]:
    """The JSON reply of a sparse encoder or a late-interaction model."""
    return [_pair_pieces(header, texts, [one.fields() for one in found])]


def _pair_pieces(
    header: Header, texts: Sequence[TokenizedText], found: Sequence[dict[str, Any]]
) -> Unwritten:
    """Each pair's fields beside its texts."""
    yield orjson.dumps({**header.names, "results": []}).removesuffix(b"]}")
    for number, fields in enumerate(found):
        sides = [_text(text) for text in texts[2 * number : 2 * number + 2]]
        result = {"similarity": fields.pop("similarity"), "texts": sides, **fields}
        if number:
            yield b","
        yield from object_pieces(result)
    yield b'],"usage":' + orjson.dumps(pair_usage(texts)) + b"}"


def explain_safetensors(
    header: Header, texts: Sequence[TokenizedText], found: Sequence[PairExplanation]
) -> Sequence[Part | Unwritten]:
    """The binary reply: `similarity` `[B]`, and `pairs.{i}`, `occlusion.{i}.a`, … of each pair.

    What each head is worth is one tensor, `heads` `[B, L, N]`.
    """
    tensors: dict[str, NDArray[Any]] = {
        "similarity": np.array([one.similarity for one in found], np.float32)
    }
    for name in found[0].wanted:
        computed = np.array([one.computed[name] for one in found], np.int32)
        tensors[f"computed.{name}"] = computed
    if found[0].wanted:
        tensors["partial"] = np.array([one.partial for one in found], np.uint8)
    for number, one in enumerate(found):
        for name, matrix in one.shares.items():
            tensors[f"{name}.{number}"] = np.ascontiguousarray(matrix)
        for side, losses in zip("ab", one.occlusion or (), strict=False):
            tensors[f"occlusion.{number}.{side}"] = losses
    heads = [one.heads for one in found if one.heads is not None]
    if heads:
        tensors["heads"] = np.stack(heads)
    for name in found[0].shares:
        errors = [one.error(one.shares[name]) for one in found]
        tensors[ERRORS[name]] = np.array(errors, np.float32)
    for name in found[0].agreement():
        values = [one.agreement()[name] for one in found]
        known = [np.nan if value is None else value for value in values]
        tensors[f"agreement.{name}"] = np.array(known, np.float32)
    lists = metadata(header, texts)
    if (spans := [_spans(one) for one in found]) and spans[0]:
        lists["spans"] = orjson.dumps(spans).decode()
    lists["usage"] = orjson.dumps(pair_usage(texts)).decode()
    return safetensors_parts(tensors | text_tensors(texts), lists)


def pair_usage(texts: Sequence[TokenizedText]) -> dict[str, int]:
    """The cost of a request, in pairs and in tokens of their texts."""
    return usage(texts) | {"inputs": len(texts) // 2}


def _text(text: TokenizedText) -> dict[str, Any]:
    fields = text_fields(text)
    del fields["segment_ids"]  # all in one segment
    return fields


def _fields(one: PairExplanation) -> dict[str, Any]:
    fields: dict[str, Any] = {"similarity": one.similarity}
    for name, matrix in one.shares.items():
        computed = one.computed.get(name, 1)
        fields[name] = np.ascontiguousarray(matrix) if computed else None
        fields[ERRORS[name]] = one.error(matrix)
    if one.occlusion is not None:
        if spans := _spans(one):
            fields["spans"] = spans
        fields["occlusion"] = list(one.occlusion)
        if one.shares:
            fields["agreement"] = one.agreement()
    if one.heads is not None:
        fields["heads"] = one.heads
    if one.wanted:
        fields["partial"] = one.partial
        fields["computed"] = one.computed
    return fields


def _spans(one: PairExplanation) -> list[list[dict[str, Any]]] | None:
    """Return the spans of both texts; None where each is a token, or nothing is occluded."""
    if one.occlusion is None or one.span_kind == "tokens":
        return None
    return [[asdict(span) for span in spans] for spans in one.spans]
