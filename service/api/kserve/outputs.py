"""Output tensors of an inference, and their serialisation as JSON or as bytes after the JSON.

The protocol's tensors are rectangular, while texts differ in length. Nothing is padded, as in the
native binary format: the tokens of all texts are concatenated, with boundaries in `cu_seqlens`, and
maps are concatenated, with shapes in `attention_shapes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from service.api.native.texts import text_tensors
from service.api.wire.json_pieces import as_bytes, item_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Part, Unwritten
from service.api.wire.route import CHARACTER_BYTES
from service.inference.outputs.declared import NAMED, OUTPUTS
from service.inference.outputs.field import VECTOR, Field
from service.inference.outputs.output import Output as DeclaredOutput
from service.inference.tokenization.text import Text

INPUT = "text"
TEXTS = "str"
"""Dtype of texts, which have no dtype in numpy."""
OUTPUT_OF: Mapping[str, type[DeclaredOutput]] = {
    field.tensor: output for output in (OUTPUTS[name] for name in NAMED) for field in output.fields
}
"""Tensor of vectors → output of /encode that it is part of."""
_VECTORS = [field for name in NAMED for field in OUTPUTS[name].fields]
ATTENTION = (
    Field("attention", "float32"),
    Field("attention_shapes", "int32", ("n", "4"), ragged=True),
)
_OF_TEXTS = (
    Field("cu_seqlens", "int32"),
    Field("token_ids", "int32"),
    Field("segment_ids", "int32"),
    Field("tokens", TEXTS),
    Field("offsets", "int32", ("S", "2"), ragged=True),
    Field("truncated", "bool"),
)
TENSORS: Mapping[str, Field] = {
    field.tensor: field
    for field in (
        *sorted(_VECTORS, key=lambda field: field.ragged or bool(field.bounds_of)),
        *ATTENTION,
        *_OF_TEXTS,
    )
}
"""Tensors by name: vectors, one a text first; maps; and facts of texts."""
LAYERED = [name for name, field in TENSORS.items() if field.layered]
"""Tensors of a hidden state that a request chooses."""
if TYPE_CHECKING:
    TensorName = str
else:
    TensorName = Literal[tuple(TENSORS)]
DATATYPES = {VECTOR: "FP32", "float32": "FP32", "int32": "INT32", TEXTS: "BYTES", "bool": "BOOL"}
"""Dtype of a field → datatype of the protocol."""
ITEM_BYTES = {"FP32": (4, JSON_BYTES_PER_FLOAT), "INT32": (4, 11), "BOOL": (1, 6)}
"""Datatype → bytes of a value in binary, and its predicted bytes in JSON."""
ITEMS = 2**9
"""Maximum values in a piece of a reply in JSON."""
ENTRY_BYTES = 256
"""Maximum bytes of a tensor's fields in a reply, beside its values."""


@dataclass(frozen=True)
class Output:
    """Tensor of a reply."""

    name: str
    shape: tuple[int, ...]
    binary: bool
    values: NDArray[np.generic] | list[str] | None = None
    """Values of the tensor; None if they are written later, elsewhere."""

    @property
    def datatype(self) -> str:
        """Datatype of the protocol."""
        return DATATYPES[TENSORS[self.name].dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in binary."""
        if isinstance(self.values, list):
            return sum(4 + len(value.encode()) for value in self.values)
        return math.prod(self.shape) * ITEM_BYTES[self.datatype][0]

    @property
    def size(self) -> int:
        """Predicted bytes of the tensor in the reply."""
        if self.binary:
            return ENTRY_BYTES + self.nbytes
        if isinstance(self.values, list):
            return ENTRY_BYTES + sum(3 + CHARACTER_BYTES * len(value) for value in self.values)
        return ENTRY_BYTES + math.prod(self.shape) * ITEM_BYTES[self.datatype][1]

    def entry(self) -> Unwritten:
        """Yield the output's JSON object; without values, only the text before the first value."""
        described: dict[str, object] = {
            "name": self.name,
            "datatype": self.datatype,
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
    if outputs[-1].binary or outputs[-1].values is not None:
        yield b"]}"


def tails(outputs: Sequence[Output]) -> list[Part]:
    """Return the binary data after the JSON, except values that come later."""
    return [output.tail() for output in outputs if output.binary and output.values is not None]


def text_values(name: str, texts: Sequence[Text]) -> NDArray[np.generic] | list[str]:
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
