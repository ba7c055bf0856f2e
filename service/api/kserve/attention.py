"""Serialisation of replies with attention maps, as the maps are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from service.api.kserve.outputs import Output, head, tails, value_pieces
from service.api.wire.media import JSON, OCTETS, Part, Unwritten
from service.api.wire.safetensors import as_bytes
from service.engines.contract import Floats
from service.inference.attention.maps import LayerMaps, TextSummary


class MapsWriter:
    """`Writer` that puts the maps last: at the end of the JSON, or of the binary data after it."""

    def __init__(
        self,
        names: Mapping[str, object],
        outputs: Sequence[Output],
        maps: Output,
        *,
        keeps_back: bool,
    ) -> None:
        """Write nothing yet.

        Args:
            names: fields before the outputs.
            outputs: all other outputs; computed values are set before the first write.
            maps: output of the maps, without values.
            keeps_back: whether other outputs are large too.

        """
        self.outputs = outputs
        self.length: int | None = None
        self.json_length: int | None = None
        """Bytes of the JSON if binary data follow it; known once the reply has begun."""
        self.keeps_back = keeps_back
        self._names, self._maps = names, maps
        binary = maps.binary or any(output.binary for output in outputs)
        self.media_type = OCTETS if binary else JSON
        self._begun = False

    def dump(self, weights: Floats) -> Floats:
        """Return the weights, contiguous for binary data."""
        return np.ascontiguousarray(weights) if self._maps.binary else weights

    def start(self) -> Sequence[Part | Unwritten]:
        """Return all parts before the maps."""
        pieces = head(self._names, [*self.outputs, self._maps])
        if not self._maps.binary:
            return [pieces]
        json = [*pieces]
        bytes_after = tails(self.outputs)
        self.json_length = sum(map(len, json))
        self.length = self.json_length + sum(map(len, bytes_after)) + self._maps.nbytes
        return json + bytes_after

    def layer(self, maps: LayerMaps) -> Sequence[Part | Unwritten]:
        """Return the maps of a layer."""
        if maps.weights is None:
            return []
        if self._maps.binary:
            return [as_bytes(maps.weights)]
        separator = [b","] if self._begun else []
        self._begun = True
        return [chain(separator, value_pieces(maps.weights))]

    def text(self, summary: TextSummary) -> list[Part]:  # noqa: ARG002
        """Return no parts: `attention_shapes` marks the end of a text's maps."""
        return []

    def end(self) -> list[Part]:
        """Return the end of the JSON, if the JSON holds the maps."""
        return [] if self._maps.binary else [b"]}]}"]
