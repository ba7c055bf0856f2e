"""Parsing of replies; a body in another format raises one of `NOT_OURS`.

Notation: B texts of a request, T tokens of all of them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from headscope.inputs import Item, Picture
from headscope.reply import Reply
from headscope.results import Encoding, Label, Rank, Span, SparseVector, Target
from headscope.service_results import Difference, Info, ServedModel, Verification

NOT_OURS = (ValueError, KeyError, TypeError, IndexError, AttributeError, SafetensorError)
"""Exceptions for a body in another format; JSON's and Unicode's errors are ValueErrors."""
OF_PICTURES = {"grid", "size", "crop", "tower"}
"""Lists of a reply's metadata about pictures, with null for a text."""
RAGGED = {
    "sparse_indices": "sparse_cu_seqlens",
    "sparse_values": "sparse_cu_seqlens",
    "multivector": "multivector_cu_seqlens",
}
"""Tensors of /encode with several rows for each text → tensors with the bounds of these rows."""
Tensors = dict[str, NDArray[Any]]
T = TypeVar("T", bound=Label | Difference | Verification | Info | ServedModel)


def read_encodings(content: bytes, texts: Sequence[Item]) -> list[Encoding]:
    """Parse the binary reply of /encode: one encoding per text."""
    tensors, metadata = binary(content)
    pooled = tensors.get("pooled")
    if pooled is not None and pooled.shape[-2] != len(texts):
        raise ValueError(f"{pooled.shape[-2]} pooled vectors of {len(texts)} texts")
    ranges = {name: tensors[name] for name in ("vector_ranges",) if name in tensors}
    layers = json.loads(metadata.get("layers", "[]"))
    encodings = []
    for i, (rows, text_fields) in enumerate(tokenized(tensors, metadata, texts)):
        own: Tensors = {**ranges}
        if "embeddings" in tensors:
            own["embeddings"] = tensors["embeddings"][..., rows, :]
        if pooled is not None:
            own["pooled"] = pooled[..., i, :]
        for name in RAGGED.keys() & tensors.keys():
            start, end = tensors[RAGGED[name]][i : i + 2]
            own[name] = tensors[name][start:end]
        spans = None
        if "spans" in tensors:
            start, end = tensors["span_cu_seqlens"][i : i + 2]
            own["span_vectors"] = tensors["span_vectors"][..., start:end, :]
            spans = [(first, last) for first, last in tensors["spans"][start:end].tolist()]
        windows = int(tensors["windows"][i]) if "windows" in tensors else None
        encodings.append(
            Encoding(**text_fields, tensors=own, layers=layers, spans=spans, windows=windows)
        )
    return encodings


def read_attention(content: bytes, texts: Sequence[Item]) -> list[Reply]:
    """Parse the binary reply of /attention: one reply per text."""
    tensors, metadata = binary(content)
    lists = {name: json.loads(metadata[name]) for name in ("layers", "heads")}
    texts_and_tensors = zip(
        tokenized(tensors, metadata, texts), tensors_of(tensors, len(texts)), strict=True
    )
    return [
        Reply(**text_fields, **lists, tensors=own) for (_, text_fields), own in texts_and_tensors
    ]


def read_aimed_attention(content: bytes, pairs: Sequence[tuple[Item, str]]) -> list[Reply]:
    """Parse the binary reply of /attention for texts with targets."""
    tensors, metadata = binary(content)
    lists = {name: json.loads(metadata[name]) for name in ("decoder_layers", "decoder_heads")}
    targets = targets_of(tensors, metadata, [target for _, target in pairs])
    replies_and_targets = zip(
        read_attention(content, [text for text, _ in pairs]), targets, strict=True
    )
    replies = []
    for reply, (rows, target) in replies_and_targets:
        if "target_logprobs" in tensors:
            reply.tensors["target_logprobs"] = tensors["target_logprobs"][rows]
        replies.append(replace(reply, target=target, **lists))
    return replies


def tensors_of(tensors: Tensors, count: int) -> list[Tensors]:
    """Return the tensors of each text of /attention, by their names without its index."""
    parts: list[Tensors] = [{} for _ in range(count)]
    for name, tensor in tensors.items():
        kind, _, suffix = name.partition(".")
        number, _, part = suffix.partition(".")
        if number:
            parts[int(number)][f"{kind}.{part}" if part else kind] = tensor
    for shift in {"pooled_shift", "target_logprob_shift"} & tensors.keys():
        for i, own in enumerate(parts):
            own[shift] = tensors[shift][i]
    return parts


def targets_of(
    tensors: Tensors, metadata: Mapping[str, str], texts: Sequence[str]
) -> list[tuple[slice, Target]]:
    """Return the rows of each target among all targets' rows, and its tokens."""
    lists = [json.loads(metadata[f"target_{name}"]) for name in ("tokens", "offsets")]
    rows = [slice(*pair) for pair in itertools.pairwise(tensors["target_cu_seqlens"].tolist())]
    targets = zip(texts, rows, *lists, tensors["target_truncated"], strict=True)
    return [
        (
            row,
            Target(
                text,
                tokens,
                tensors["target_token_ids"][row].tolist(),
                [(start, end) for start, end in offsets],
                bool(cut),
            ),
        )
        for text, row, tokens, offsets, cut in targets
    ]


def binary(content: bytes) -> tuple[Tensors, Mapping[str, str]]:
    """Return the tensors of a safetensors file, and its `__metadata__`."""
    size = int.from_bytes(content[:8], "little")
    return load(content), json.loads(content[8 : 8 + size])["__metadata__"]


def tokenized(
    tensors: Tensors, metadata: Mapping[str, str], texts: Sequence[Item]
) -> list[tuple[slice, dict[str, Any]]]:
    """Return the rows of each text among T, and the fields of its `TokenizedText`."""
    lists = {name: json.loads(metadata[name]) for name in ("tokens", "offsets")}
    bounds, truncated = tensors["cu_seqlens"].tolist(), tensors["truncated"]
    rows = [slice(*pair) for pair in itertools.pairwise(bounds)]
    views = {name: json.loads(metadata[name]) for name in OF_PICTURES & metadata.keys()}
    parts = zip(texts, rows, lists["tokens"], lists["offsets"], truncated, strict=True)
    rows_and_fields = []
    for index, (text, row, tokens, offsets, cut) in enumerate(parts):
        if not len(tokens) == len(offsets) == row.stop - row.start:
            raise ValueError("a text has another number of tokens than of offsets or rows")
        text_fields = {
            "model": metadata["model"],
            "backend": metadata["backend"],
            "texts": texts_of(text),
            "tokens": tokens,
            "token_ids": tensors["token_ids"][row].tolist(),
            "segment_ids": tensors["segment_ids"][row].tolist(),
            "offsets": [(start, end) for start, end in offsets],
            "truncated": bool(cut),
        }
        for name, values in views.items():
            value = values[index]
            text_fields[name] = tuple(value) if isinstance(value, list) else value
        rows_and_fields.append((row, text_fields))
    return rows_and_fields


def texts_of(entry: Item) -> tuple[str, ...]:
    """Return the texts of an input; for a picture its name."""
    if isinstance(entry, Picture):
        return (entry.name,)
    return (entry,) if isinstance(entry, str) else tuple(entry)


def read_labels(content: bytes, texts: Sequence[Item]) -> list[tuple[Label, ...]]:
    """Parse the labels of each text, or its labelled spans."""
    results = json.loads(content)
    check_count(results, texts)
    return [
        tuple(build(Span if "start" in label else Label, label) for label in labels)
        for labels in results
    ]


def read_ranks(content: bytes, texts: Sequence[str]) -> list[Rank]:
    """Parse the ranks of texts, the largest score first."""
    ranks = [(int(rank["index"]), float(rank["score"])) for rank in json.loads(content)]
    if sorted(index for index, _ in ranks) != list(range(len(texts))):
        raise ValueError("not every text has one rank")
    return [Rank(index, score, texts[index]) for index, score in ranks]


def read_sparse(content: bytes, texts: Sequence[str]) -> list[SparseVector]:
    """Parse one sparse vector per text."""
    results = json.loads(content)
    check_count(results, texts)
    return [
        SparseVector(
            np.array([weight["index"] for weight in weights], np.int64),
            np.array([weight["value"] for weight in weights], np.float32),
        )
        for weights in results
    ]


def read_verification(content: bytes, texts: Sequence[Item]) -> Verification:
    """Parse the differences of the engine from PyTorch for some texts."""
    reply = json.loads(content)
    if reply["inputs"] != len(texts):
        raise ValueError(f"{reply['inputs']} texts of {len(texts)} were compared")
    parts: dict[str, Any] = {
        name: tuple(build(Difference, difference) for difference in reply[name])
        for name in ("hidden", "attention")
    }
    parts |= {
        name: build(Difference, reply[name]) if reply.get(name) else None
        for name in ("pooled", "task")
    }
    return build(Verification, reply | parts)


def read_info(content: bytes, _: Sequence[object] = ()) -> Info:
    """Parse the information about a model."""
    reply = json.loads(content)
    limits = ("max_client_batch_size", "max_input_length", "max_queue_tokens")
    if not all(type(reply[name]) is int and reply[name] > 0 for name in limits):
        raise ValueError("a limit is not a positive number")
    return build(Info, reply | {"fields": reply})


def read_models(content: bytes, _: Sequence[object] = ()) -> list[ServedModel]:
    """Parse the list of served models."""
    return [build(ServedModel, model) for model in json.loads(content)["data"]]


def read_vocabulary(content: bytes, _: Sequence[object] = ()) -> list[str | None]:
    """Parse the tokens that indices of sparse vectors stand for."""
    tokens = json.loads(content)
    if type(tokens) is not list or not all(isinstance(token, str | None) for token in tokens):
        raise ValueError("not a list of tokens")
    return tokens


def build(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a result from a reply's fields; additional fields of the reply are ignored."""
    names = fields(kind)
    needed = {name.name for name in names if name.default is MISSING} - values.keys()
    if needed:
        raise KeyError(*needed)
    return kind(**{name.name: values[name.name] for name in names if name.name in values})


def check_count(results: Sequence[object], texts: Sequence[object]) -> None:
    """Raise an error unless every text has one result.

    Raises:
        ValueError: the numbers differ, or the results are not a list.

    """
    if not isinstance(results, list) or len(results) != len(texts):
        raise ValueError(f"not a result for each of {len(texts)} texts")
