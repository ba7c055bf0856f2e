"""The bodies of replies → results. What is not as it should be raises one of `NOT_OURS`.

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

from headscope.inputs import Text
from headscope.reply import Reply
from headscope.results import Encoding, Label, Rank, Span, SparseVector, Target
from headscope.service_results import Difference, Info, ServedModel, Verification

NOT_OURS = (ValueError, KeyError, TypeError, IndexError, AttributeError, SafetensorError)
"""Raised by a body of another form; JSON's and Unicode's errors are ValueErrors."""
OF_TOKENS = ("embeddings", "attended", "residual", "mlp")
"""Tensors of /encode with a row for each token."""
Tensors = dict[str, NDArray[Any]]
T = TypeVar("T", bound=Label | Difference | Verification | Info | ServedModel)


def read_encodings(content: bytes, texts: Sequence[Text]) -> list[Encoding]:
    """Return an encoding a text of the binary form of /encode."""
    tensors, metadata = binary(content)
    pooled = tensors.get("pooled")
    of_tokens = {name: tensors[name] for name in OF_TOKENS if name in tensors}
    if pooled is not None and pooled.shape[-2] != len(texts):
        raise ValueError(f"{pooled.shape[-2]} pooled vectors of {len(texts)} texts")
    layers = json.loads(metadata.get("layers", "[]"))
    found = []
    for i, (rows, told) in enumerate(tokenized(tensors, metadata, texts)):
        own: Tensors = {name: tensor[..., rows, :] for name, tensor in of_tokens.items()}
        own |= {} if pooled is None else {"pooled": pooled[..., i, :]}
        found.append(Encoding(**told, tensors=own, layers=layers))
    return found


def read_attention(content: bytes, texts: Sequence[Text]) -> list[Reply]:
    """The binary form of /attention, a reply a text."""
    tensors, metadata = binary(content)
    lists = {name: json.loads(metadata[name]) for name in ("layers", "heads")}
    every = zip(tokenized(tensors, metadata, texts), tensors_of(tensors, len(texts)), strict=True)
    return [Reply(**told, **lists, tensors=own) for (_, told), own in every]


def read_aimed_attention(content: bytes, pairs: Sequence[tuple[Text, str]]) -> list[Reply]:
    """The same of texts with targets."""
    tensors, metadata = binary(content)
    lists = {name: json.loads(metadata[name]) for name in ("decoder_layers", "decoder_heads")}
    targets = targets_of(tensors, metadata, [target for _, target in pairs])
    every = zip(read_attention(content, [text for text, _ in pairs]), targets, strict=True)
    found = []
    for reply, (rows, target) in every:
        if "target_logprobs" in tensors:
            reply.tensors["target_logprobs"] = tensors["target_logprobs"][rows]
        found.append(replace(reply, target=target, **lists))
    return found


def tensors_of(tensors: Tensors, count: int) -> list[Tensors]:
    """Those of each text of /attention, by their names without its number."""
    parts: list[Tensors] = [{} for _ in range(count)]
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        number, _, part = rest.partition(".")
        if number:
            parts[int(number)][f"{kind}.{part}" if part else kind] = tensor
    for shift in {"pooled_shift", "target_logprob_shift"} & tensors.keys():
        for i, own in enumerate(parts):
            own[shift] = tensors[shift][i]
    return parts


def targets_of(
    tensors: Tensors, metadata: Mapping[str, str], texts: Sequence[str]
) -> list[tuple[slice, Target]]:
    """The rows of each target among those of all targets, and its tokens."""
    lists = [json.loads(metadata[f"target_{name}"]) for name in ("tokens", "offsets")]
    rows = [slice(*pair) for pair in itertools.pairwise(tensors["target_cu_seqlens"].tolist())]
    every = zip(texts, rows, *lists, tensors["target_truncated"], strict=True)
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
        for text, row, tokens, offsets, cut in every
    ]


def binary(content: bytes) -> tuple[Tensors, Mapping[str, str]]:
    """The tensors of a safetensors file, and its `__metadata__`."""
    size = int.from_bytes(content[:8], "little")
    return load(content), json.loads(content[8 : 8 + size])["__metadata__"]


def tokenized(
    tensors: Tensors, metadata: Mapping[str, str], texts: Sequence[Text]
) -> list[tuple[slice, dict[str, Any]]]:
    """The rows of each text among T, and the fields of its `TokenizedText`."""
    lists = {name: json.loads(metadata[name]) for name in ("tokens", "offsets")}
    bounds, truncated = tensors["cu_seqlens"].tolist(), tensors["truncated"]
    rows = [slice(*pair) for pair in itertools.pairwise(bounds)]
    every = zip(texts, rows, lists["tokens"], lists["offsets"], truncated, strict=True)
    found = []
    for text, row, tokens, offsets, cut in every:
        if not len(tokens) == len(offsets) == row.stop - row.start:
            raise ValueError("a text has another number of tokens than of offsets or rows")
        told = {
            "model": metadata["model"],
            "backend": metadata["backend"],
            "texts": (text,) if isinstance(text, str) else tuple(text),
            "tokens": tokens,
            "token_ids": tensors["token_ids"][row].tolist(),
            "segment_ids": tensors["segment_ids"][row].tolist(),
            "offsets": [(start, end) for start, end in offsets],
            "truncated": bool(cut),
        }
        found.append((row, told))
    return found


def read_labels(content: bytes, texts: Sequence[Text]) -> list[tuple[Label, ...]]:
    """The labels of each text, or its labelled spans."""
    every = json.loads(content)
    check_count(every, texts)
    return [
        tuple(build(Span if "start" in one else Label, one) for one in found) for found in every
    ]


def read_ranks(content: bytes, texts: Sequence[str]) -> list[Rank]:
    """The texts by their scores, the largest first."""
    found = [(int(one["index"]), float(one["score"])) for one in json.loads(content)]
    if sorted(index for index, _ in found) != list(range(len(texts))):
        raise ValueError("not every text has one rank")
    return [Rank(index, score, texts[index]) for index, score in found]


def read_sparse(content: bytes, texts: Sequence[str]) -> list[SparseVector]:
    """A sparse vector a text."""
    every = json.loads(content)
    check_count(every, texts)
    return [
        SparseVector(
            np.array([one["index"] for one in found], np.int64),
            np.array([one["value"] for one in found], np.float32),
        )
        for found in every
    ]


def read_verification(content: bytes, texts: Sequence[Text]) -> Verification:
    """How far the engine is from PyTorch for some texts."""
    found = json.loads(content)
    if found["inputs"] != len(texts):
        raise ValueError(f"{found['inputs']} texts of {len(texts)} were compared")
    parts: dict[str, Any] = {
        name: tuple(build(Difference, one) for one in found[name])
        for name in ("hidden", "attention")
    }
    parts |= {
        name: build(Difference, found[name]) if found.get(name) else None
        for name in ("pooled", "task")
    }
    return build(Verification, found | parts)


def read_info(content: bytes, _: Sequence[Any] = ()) -> Info:
    """What the service says about a model."""
    found = json.loads(content)
    limits = ("max_client_batch_size", "max_input_length", "max_queue_tokens")
    if not all(type(found[name]) is int and found[name] > 0 for name in limits):
        raise ValueError("a limit is no positive number")
    return build(Info, found | {"fields": found})


def read_models(content: bytes, _: Sequence[Any] = ()) -> list[ServedModel]:
    """The models that are served."""
    return [build(ServedModel, one) for one in json.loads(content)["data"]]


def read_vocabulary(content: bytes, _: Sequence[Any] = ()) -> list[str | None]:
    """The tokens that indices of sparse vectors stand for."""
    found = json.loads(content)
    if type(found) is not list or not all(isinstance(token, str | None) for token in found):
        raise ValueError("not a list of tokens")
    return found


def build(kind: type[T], found: Mapping[str, Any]) -> T:
    """A result of the fields that it has in a reply; further ones of the reply are left out."""
    names = fields(kind)
    needed = {one.name for one in names if one.default is MISSING} - found.keys()
    if needed:
        raise KeyError(*needed)
    return kind(**{one.name: found[one.name] for one in names if one.name in found})


def check_count(found: Sequence[Any], texts: Sequence[Any]) -> None:
    """As many results as texts.

    Raises:
        ValueError: there are others.

    """
    if not isinstance(found, list) or len(found) != len(texts):
        raise ValueError(f"not a result for each of {len(texts)} texts")
