"""Target texts of a request, and their fields in a reply.

Notation: B texts, T tokens of all targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from service.api.native.texts import Header, metadata, text_fields, text_tensors, usage
from service.inference.attention.selection import Lengths
from service.inference.tokenization.tokenized import TokenizedText


def _targets(value: Any) -> list[str] | None:
    """Validate a text or list of texts as a list, up to its first invalid item."""
    if value is None or isinstance(value, str):
        return value if value is None else [value]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("targets", "a text, or a list of texts, is needed")
    for index, text in enumerate(value):
        if not isinstance(text, str):
            raise PydanticCustomError("targets", "targets[{index}] is no text", {"index": index})
    return list(value)


Targets = Annotated[
    list[str] | None,
    PlainValidator(_targets),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {"type": "null"},
            ]
        }
    ),
]


@dataclass(frozen=True)
class TextsWithTargets:
    """Texts of a request, with their targets for an encoder–decoder."""

    texts: Sequence[TokenizedText]
    targets: Sequence[TokenizedText] = ()
    """Target of each text; empty without targets."""

    @property
    def lengths(self) -> list[Lengths]:
        """Number of tokens of each text and its target."""
        sources = [len(text.input_ids) for text in self.texts]
        targets = [len(text.input_ids) for text in self.targets] or [0] * len(sources)
        return [Lengths(*pair) for pair in zip(sources, targets, strict=True)]

    @property
    def usage(self) -> dict[str, int]:
        """Number of inputs, and of tokens of texts and targets."""
        return usage(self.texts) | {"tokens": sum(map(sum, self.lengths))}

    def fields(self, index: int) -> dict[str, Any]:
        """Return the JSON fields of a text and its target."""
        fields = text_fields(self.texts[index])
        if self.targets:
            target = self.targets[index]
            fields |= {
                "target_tokens": target.tokens,
                "target_token_ids": target.input_ids,
                "target_offsets": target.offsets,
                "target_truncated": target.truncated,
            }
        return fields

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the tensors of all texts and targets in the binary format."""
        tensors = text_tensors(self.texts)
        if self.targets:
            bounds = np.cumsum([0, *(own.target for own in self.lengths)])
            ids = np.concatenate([target.input_ids for target in self.targets])
            tensors |= {
                "target_cu_seqlens": bounds.astype(np.int32),
                "target_token_ids": ids.astype(np.int32),
                "target_truncated": np.array(
                    [target.truncated for target in self.targets], np.uint8
                ),
            }
        return tensors

    def metadata(self, header: Header) -> Mapping[str, str]:
        """Return the `__metadata__` of the binary format."""
        of_texts = metadata(header, self.texts)
        if not self.targets:
            return of_texts
        lists = {
            "target_tokens": [target.tokens for target in self.targets],
            "target_offsets": [target.offsets for target in self.targets],
            "usage": self.usage,
        }
        return of_texts | {name: orjson.dumps(value).decode() for name, value in lists.items()}
