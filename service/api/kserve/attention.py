"""The form of a reply with maps, which are written as they are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from service.api.kserve.outputs import Output, head, json_values, tails
from service.api.wire.media import JSON, OCTETS, Part
from service.api.wire.safetensors import as_bytes
from service.inference.attention.maps import LayerMaps, TextSummary


class MapsWriter:
    """A `Writer` whose maps come last: at the end of the JSON, or of the bytes after it."""

    def __init__(
        self, names: Mapping[str, Any], outputs: Sequence[Output], maps: Output, *, keeps_back: bool
    ) -> None:
        """Write nothing yet.

        Args:
            names: what stands before the outputs.
            outputs: all others; values that are computed are set before anything is written.
            maps: the maps, whose values come later.
            keeps_back: whether other outputs are large, too.

        """
        self.outputs = outputs
        self.length: int | None = None
        self.json_length: int | None = None
        """Bytes of the JSON, where others follow; known once the reply has begun."""
        self.keeps_back = keeps_back
        self._names, self._maps = names, maps
        binary = maps.binary or any(output.binary for output in outputs)
        self.media_type = OCTETS if binary else JSON
        self._begun = False

    def dump(self, array: Any) -> Part:
        """An array as it will be sent."""
        return as_bytes(np.ascontiguousarray(array)) if self._maps.binary else json_values(array)

    def start(self) -> list[Part]:
        """All that stands before the maps."""
        json = head(self._names, [*self.outputs, self._maps])
        if not self._maps.binary:
            return json
        bytes_after = tails(self.outputs)
        self.json_length = sum(map(len, json))
        self.length = self.json_length + sum(map(len, bytes_after)) + self._maps.nbytes
        return json + bytes_after

    def layer(self, maps: LayerMaps) -> list[Part]:
        """A layer's maps."""
        parts: list[Part] = [b","] if self._begun and not self._maps.binary else []
        self._begun = True
        return [*parts, maps.weights] if maps.weights is not None else parts

    def text(self, summary: TextSummary) -> list[Part]:  # noqa: ARG002
        """Nothing: `attention_shapes` tells where a text's maps end."""
        return []

    def end(self) -> list[Part]:
        """The end of the JSON, if the maps are in it."""
        return [] if self._maps.binary else [b"]}]}"]
