"""Graph of vectors on a device: the artifact's own pooling of texts without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from model.artifact.manifest import Manifest
from model.numerics.batch import Batch, dummies
from model.numerics.pooling import TextPooling
from model.runtimes.bound import Bound
from model.runtimes.contract import Floats
from model.runtimes.cuda_graphs import CudaGraphs, Upload, graph_sizes
from model.runtimes.packed_inputs import Sizes, packed_inputs
from model.runtimes.sessions import Array


class DeviceVectors:
    """Graph of an artifact's vectors, bound to a device."""

    graphs: CudaGraphs | None = None
    """CUDA graphs of small batches, once captured."""

    def __init__(self, manifest: Manifest, session: Bound) -> None:
        self.session = session
        self._config, self._pooling = manifest.config, manifest.vectors_pooling
        self._inputs = [spec.name for spec in manifest.signature["vectors"].inputs]

    def capture(self, session: Any, upload: Upload, run_options: Callable[[int], Any]) -> None:
        """Capture CUDA graphs by a session of their own; see `CudaGraphs`."""
        text = dummies([1], 0)
        sizes = graph_sizes(self._config.max_position_embeddings)
        feeds = {each: self._feed(text, each) for each in sizes}
        self.graphs = CudaGraphs(session, feeds, self._config.hidden_size, upload, run_options)

    def encode(self, batch: Batch, poolings: Sequence[TextPooling]) -> list[Floats]:
        """Return the vector `[H]` of each pooling, which has the artifact's mode."""
        outputs = ["unit_vectors" if pooling.unit_features else "vectors" for pooling in poolings]
        sizes = self.graphs.sizes_for(batch) if self.graphs else None
        if self.graphs and sizes:
            with self.session.watch():
                vectors = self.graphs.fetch(sizes, self._feed(batch, sizes), {*outputs})
        else:
            vectors = self._fetch(batch, {*outputs})
        pairs = zip(outputs, poolings, strict=True)
        return [vectors[output][pooling.text] for output, pooling in pairs]

    def warm_up(self, lengths: Sequence[int]) -> None:
        """Compute texts of these lengths, or of the model's longest, without CUDA graphs."""
        longest = self._config.max_position_embeddings
        batch = dummies([min(n, longest) for n in lengths], self._config.pixel_features)
        self._fetch(batch, {"vectors"})

    def _fetch(self, batch: Batch, outputs: set[str]) -> dict[str, Floats]:
        feed, shape = self._feed(batch), (len(batch.padded_index), self._config.hidden_size)
        return {output: self.session.fetch(feed, output, shape) for output in outputs}

    def _feed(self, batch: Batch, sizes: Sizes | None = None) -> dict[str, Array]:
        last = self._pooling == "last"
        return packed_inputs(batch, self._config, self._inputs, last=last, sizes=sizes)
