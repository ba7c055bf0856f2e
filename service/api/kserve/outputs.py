"""Output tensors of an inference, and their serialisation as JSON or as bytes after the JSON.

The protocol's tensors are rectangular, while texts differ in length. Nothing is padded, as in the
native binary format: the tokens of all texts are concatenated, with boundaries in `cu_seqlens`, and
maps are concatenated, with shapes in `attention_shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from model.numerics.task_head import VectorsName
from service.api.native.texts import text_tensors
from service.api.wire.json_pieces import as_bytes, item_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Part, Unwritten
from service.api.wire.route import CHARACTER_BYTES
from service.inference.tokenization.text import Text

INPUT = "text"
OutputName = Literal[
    "pooled",
    "embeddings",
    "sparse_indices",
    "sparse_values",
    "sparse_cu_seqlens",
    "multivector",
    "multivector_cu_seqlens",
    "attention",
    "attention_shapes",
    "cu_seqlens",
    "token_ids",
    "segment_ids",
    "tokens",
    "offsets",
    "truncated",
]
DATATYPES: Mapping[OutputName, str] = {
    "pooled": "FP32",
    "embeddings": "FP32",
    "sparse_indices": "INT32",
    "sparse_values": "FP32",
    "sparse_cu_seqlens": "INT32",
    "multivector": "FP32",
    "multivector_cu_seqlens": "INT32",
    "attention": "FP32",
    "attention_shapes": "INT32",
    "cu_seqlens": "INT32",
    "token_ids": "INT32",
    "segment_ids": "INT32",
    "tokens": "BYTES",
    "offsets": "INT32",
    "truncated": "BOOL",
}
VECTORS: tuple[OutputName, ...] = ("pooled", "embeddings")
HEAD_VECTORS: Mapping[OutputName, VectorsName] = {
    "sparse_indices": "sparse",
    "sparse_values": "sparse",
    "sparse_cu_seqlens": "sparse",
    "multivector": "multivector",
    "multivector_cu_seqlens": "multivector",
}
"""Outputs of models with a task head → the vectors of the task head that they are part of."""
ATTENTION: tuple[OutputName, ...] = ("attention", "attention_shapes")
ITEM_BYTES = {"FP32": 4, "INT32": 4, "BOOL": 1}
JSON_ITEM_BYTES = {"FP32": JSON_BYTES_PER_FLOAT, "INT32": 11, "BOOL": 6}
ITEMS = 2**9
"""Maximum values in a piece of a reply in JSON."""
ENTRY_BYTES = 256
"""Maximum bytes of a tensor's fields in a reply, beside its values."""


@dataclass(frozen=True)
class Output:
    """Tensor of a reply."""

    name: OutputName
    shape: tuple[int, ...]
    binary: bool
    values: NDArray[np.generic] | list[str] | None = None
    """Values of the tensor; None if they are written later, elsewhere."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in binary."""
        if isinstance(self.values, list):
            return sum(4 + len(value.encode()) for value in self.values)
        return int(np.prod(self.shape, dtype=np.int64)) * ITEM_BYTES[DATATYPES[self.name]]

    @property
    def size(self) -> int:
        """Predicted bytes of the tensor in the reply."""
        if self.binary:
            return ENTRY_BYTES + self.nbytes
        if isinstance(self.values, list):
            return ENTRY_BYTES + sum(3 + CHARACTER_BYTES * len(value) for value in self.values)
        datatype = DATATYPES[self.name]
        return ENTRY_BYTES + self.nbytes // ITEM_BYTES[datatype] * JSON_ITEM_BYTES[datatype]

    def entry(self) -> Unwritten:
        """Yield the output's JSON object; without values, only the text before the first value."""
        described: dict[str, object] = {
            "name": self.name,
            "datatype": DATATYPES[self.name],
            "shape": self.shape,
        }
        if self.binary:
            described["parameters"] = {"binary_data_size": self.nbytes}
            yield orjson.dumps(described)
            return
        yield orjson.dumps(described)[:-1] + b',"data":['
        if self.values is not None:
            yield from value_pieces(self.values)
            yield b"]}"

    def tail(self) -> Part:
        """Return the values as little-endian, row-major bytes; texts as length and UTF-8."""
        if isinstance(self.values, list):
            encoded = [value.encode() for value in self.values]
            return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)
        return as_bytes(np.ascontiguousarray(self.values))


def head(names: Mapping[str, object], outputs: Sequence[Output]) -> Unwritten:
    """Yield the JSON of a reply; up to the last output's values if these come later."""
    yield orjson.dumps({**names, "outputs": []}).removesuffix(b"]}")
    for index, output in enumerate(outputs):
        if index:
            yield b","
        yield from output.entry()
    if not opened(outputs):
        yield b"]}"


def opened(outputs: Sequence[Output]) -> bool:
    """Return whether the last output is in the JSON and its values come later."""
    return not outputs[-1].binary and outputs[-1].values is None


def tails(outputs: Sequence[Output]) -> list[Part]:
    """Return the binary data after the JSON, except values that come later."""
    return [output.tail() for output in outputs if output.binary and output.values is not None]


def text_values(name: OutputName, texts: Sequence[Text]) -> NDArray[np.generic] | list[str]:
    """Return the values of an output that depends on the tokens alone."""
    if name == "tokens":
        return [token for text in texts for token in text.tokens]
    if name == "offsets":
        return np.array([offset for text in texts for offset in text.offsets], np.int32)
    if name == "truncated":
        return np.array([text.truncated for text in texts])
    return text_tensors(texts)[name]


def value_pieces(values: NDArray[np.generic] | list[str]) -> Unwritten:
    """Return values as JSON, row-major, without the brackets around them."""
    if isinstance(values, list):
        return chain.from_iterable(
            (b"," if start else b"", orjson.dumps(values[start : start + ITEMS])[1:-1])
            for start in range(0, len(values), ITEMS)
        )
    return item_pieces(values.reshape(-1))
