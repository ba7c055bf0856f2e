"""Reading of replies; a body in another format raises one of `NOT_OURS`.

JSON becomes results by the types of their fields. Of the binary form, a table of tensors says how
each is divided among the texts. Notation: T tokens of all texts.
"""

from __future__ import annotations

import functools
import itertools
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from headscope.inputs import Item, Picture
from headscope.results import Info, TokenizedText

NOT_OURS = (ValueError, KeyError, TypeError, IndexError, AttributeError, SafetensorError)
"""Exceptions for a body in another format; JSON's and Unicode's errors are ValueErrors."""
OF_PICTURES = ("grid", "size", "crop", "tower")
"""Lists of a reply's metadata about pictures, with null for a text."""
Tensors = dict[str, NDArray[Any]]
BOUNDS = {
    "token_ids": "cu_seqlens",
    "segment_ids": "cu_seqlens",
    "embeddings": "cu_seqlens",
    "sparse_indices": "sparse_cu_seqlens",
    "sparse_values": "sparse_cu_seqlens",
    "multivector": "multivector_cu_seqlens",
    "spans": "span_cu_seqlens",
    "span_vectors": "span_cu_seqlens",
    "target_token_ids": "target_cu_seqlens",
    "target_logprobs": "target_cu_seqlens",
}
"""Tensors with several rows for each text → tensors with the bounds of these rows."""


def build(kind: Any, value: Any) -> Any:
    """Return a reply's JSON as a value of an annotated type.

    Fields of an object that the type lacks are ignored. A value that is of the type already stays
    as it is, and a missing number is NaN in an array. Other JSON raises one of `NOT_OURS`.
    """
    if get_origin(kind) is not None:
        return _build_generic(get_origin(kind), get_args(kind), value)
    if kind is Any or isinstance(value, kind):
        return value
    if kind is float and type(value) is int:
        return float(value)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise TypeError(f"{value!r} is not of type {kind}")
    hints, needed = _hints(kind)
    given = {name: hint for name, hint in hints.items() if name in needed or name in value}
    return kind(**{name: build(hint, value[name]) for name, hint in given.items()})


def _build_generic(origin: Any, parts: Sequence[Any], value: Any) -> Any:
    """Return JSON as a value of a type with type arguments `parts`."""
    if origin is Literal:
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else build(_choice(parts, value), value)
    if origin is np.ndarray:
        return np.array(value, *get_args(parts[1]))
    if origin in (dict, Mapping):
        return {key: build(parts[1], own) for key, own in value.items()}
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is not a list")
    one_kind = origin is list or parts[-1] is ...
    kinds = itertools.repeat(parts[0], len(value)) if one_kind else parts
    return origin(build(kind, own) for kind, own in zip(kinds, value, strict=True))


@functools.cache
def _hints(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of a dataclass's fields by name, and the names without a default."""
    hints, own = get_type_hints(kind), fields(kind)
    needed = [f.name for f in own if f.default is MISSING and f.default_factory is MISSING]
    return {f.name: hints[f.name] for f in own}, frozenset(needed)


def _choice(kinds: Sequence[Any], value: Any) -> Any:
    """Return the type of a union: the only one beside None, or the first whose fields are given."""
    kinds = [kind for kind in kinds if kind is not type(None)]
    return next((kind for kind in kinds[:-1] if _hints(kind)[1] <= value.keys()), kinds[-1])


def each(results: Any, inputs: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Return pairs of a result and its input; raise a ValueError if their numbers differ."""
    if not isinstance(results, list) or len(results) != len(inputs):
        raise ValueError(f"not a result for each of {len(inputs)} inputs")
    return zip(results, inputs, strict=True)


def names_of(item: Item) -> tuple[str, ...]:
    """Return the texts of an input; for a picture its name."""
    if isinstance(item, str | Picture):
        return (item if isinstance(item, str) else item.name,)
    return tuple(itertools.chain.from_iterable(map(names_of, item)))


def tokenized(
    kind: type[TokenizedText], reply: Any, result: Any, item: Item, **more: object
) -> Any:
    """Return a result that is a `TokenizedText`, from JSON."""
    segments = {"segment_ids": [0] * len(result["tokens"])}
    own = {"model": reply["model"], "backend": reply["backend"], "texts": names_of(item)}
    return build(kind, segments | result | own | more)


def binary(content: bytes) -> tuple[Tensors, Mapping[str, str]]:
    """Return the tensors of a safetensors file, and its `__metadata__`."""
    size = int.from_bytes(content[:8], "little")
    return load(content), json.loads(content[8 : 8 + size])["__metadata__"]


def divided(tensors: Tensors, count: int) -> list[Tensors]:
    """Return the tensors of each text, by their names without its index."""
    parts: list[Tensors] = [{} for _ in range(count)]
    for name, tensor in tensors.items():
        kind, _, suffix = name.partition(".")
        number, _, part = suffix.partition(".")
        axis = max(0, tensor.ndim - 2)  # before it are layers
        if number:
            parts[int(number)][f"{kind}.{part}" if part else kind] = tensor
            continue
        if name in BOUNDS:
            bounds = itertools.pairwise(tensors[BOUNDS[name]].tolist())
            before = (slice(None),) * axis
            rows = [tensor[(*before, slice(start, end))] for start, end in bounds]
        elif name == "vector_ranges":
            rows = [tensor] * count
        elif name.endswith("cu_seqlens"):
            continue
        else:  # a row for each text
            rows = list(np.moveaxis(tensor, axis, 0))
        for own, row in zip(parts, rows, strict=True):
            own[name] = row
    return parts


def texts_of(
    reply: tuple[Tensors, Mapping[str, str]], items: Sequence[Item]
) -> Iterator[dict[str, Any]]:
    """Yield the fields of each text's `TokenizedText` and its `tensors`, from the binary form."""
    tensors, metadata = reply
    names = "tokens", "offsets", *(name for name in OF_PICTURES if name in metadata)
    lists = [json.loads(metadata[name]) for name in names]
    parts = divided(tensors, len(items))
    for item, own, *values in zip(items, parts, *lists, strict=True):
        text: dict[str, Any] = dict(zip(names, values, strict=True))
        text |= {name: own.pop(name).tolist() for name in ("token_ids", "segment_ids")}
        if not len(text["tokens"]) == len(text["offsets"]) == len(text["token_ids"]):
            raise ValueError("a text has another number of tokens than of offsets or rows")
        text["offsets"] = [(start, end) for start, end in text["offsets"]]
        for name in OF_PICTURES:
            if isinstance(value := text.get(name), list):
                text[name] = tuple(value)
        yield {
            **text,
            "model": metadata["model"],
            "backend": metadata["backend"],
            "texts": names_of(item),
            "truncated": bool(own.pop("truncated")),
            "tensors": own,
        }


def read_info(reply: Any, _: Sequence[object] = ()) -> Info:
    """Read the information about a model."""
    info: Info = build(Info, reply | {"fields": reply})
    if min(info.max_client_batch_size, info.max_input_length, info.max_queue_tokens) < 1:
        raise ValueError("a limit is not a positive number")
    return info
