"""Graph of vectors on a device: the artifact's own pooling of texts without padding."""

from __future__ import annotations

from collections.abc import Sequence

from model.artifact.manifest import Manifest
from model.numerics.batch import Batch, dummies
from model.numerics.pooling import TextPooling
from model.runtimes.bound import Bound
from model.runtimes.contract import Floats
from model.runtimes.packed_inputs import packed_inputs


class DeviceVectors:
    """Graph of an artifact's vectors, bound to a device."""

    def __init__(self, manifest: Manifest, session: Bound) -> None:
        self.session = session
        self._config, self._pooling = manifest.config, manifest.vectors_pooling
        self._inputs = [spec.name for spec in manifest.signature["vectors"].inputs]

    def encode(self, batch: Batch, poolings: Sequence[TextPooling]) -> list[Floats]:
        """Return the vector `[H]` of each pooling, which has the artifact's mode."""
        feed = packed_inputs(batch, self._config, self._inputs, last=self._pooling == "last")
        shape = len(batch.padded_index), self._config.hidden_size
        vectors = {
            units: self.session.fetch(feed, "unit_vectors" if units else "vectors", shape)
            for units in {pooling.unit_features for pooling in poolings}
        }
        return [vectors[pooling.unit_features][pooling.text] for pooling in poolings]

    def warm_up(self, lengths: Sequence[int]) -> None:
        """Compute texts of these lengths, or of the model's longest."""
        longest = self._config.max_position_embeddings
        batch = dummies([min(n, longest) for n in lengths], self._config.pixel_features)
        self.encode(batch, [TextPooling(0, self._config.num_hidden_layers, "mean")])
