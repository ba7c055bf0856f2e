"""CUDA graphs of the graph of vectors: a small batch is one launch, in place of one per operator.

ONNX Runtime captures and replays a graph for each `gpu_graph_id` of a run. What that demands was
read in its documentation and source, and seen in the CUDA calls of version 1.31: every operator is
on the GPU; shapes differ between ids only; inputs and outputs keep their addresses. The first run
of an id computes twice in the ordinary way, which allocates memory, then captures, and launches
what it captured; a later run is one launch and a wait for the stream. A graph belongs to the
thread that captured it: any other captures its own. During a capture, calls of any thread that
CUDA deems unsafe, such as cudaMalloc, fail and spoil it. A replay writes to memory of the
session's arena that was free at its capture, so no ordinary run may be in flight beside it. Flash
attention is captured like other kernels. cuBLAS may add a workspace to each graph.

* https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
* https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/core/providers/cuda/cuda_graph.cc
* https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__STREAM.html
* https://github.com/pytorch/pytorch/pull/83461

So the graphs have a session of their own, are captured when the model is loaded, and one thread
runs them all.

Notation: B texts, T tokens of all texts, S tokens of the longest, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from model.numerics.batch import Batch
from model.runtimes.contract import Floats
from model.runtimes.packed_inputs import ALIGNED, Sizes
from model.runtimes.sessions import Array

Upload = Callable[[Array], Any]
"""Function from an array to an `OrtValue` on the device."""
OUTPUTS = "vectors", "unit_vectors"
TOKENS = 64, 128, 256, 512, 1024, 2048
"""T of the graphs; beyond, computing takes longer than launching."""
CELLS_PER_TOKEN = 4
"""B · S / T: texts may have a quarter of the longest one's length on average."""
FEWEST_COLUMNS = 16


def graph_sizes(longest: int) -> list[Sizes]:
    """Return the sizes of all graphs, at most 18.

    S is T, T / 4, T / 16 or T / 64, and at most `longest`, the model's maximum tokens of a text.
    """
    most = longest - longest % ALIGNED
    sizes = {
        Sizes(tokens, columns, CELLS_PER_TOKEN * tokens // columns)
        for tokens in TOKENS
        for columns in (min(most, tokens >> shift) for shift in range(0, 8, 2))
        if columns >= FEWEST_COLUMNS
    }
    return sorted(sizes)


class _Graph(NamedTuple):
    """Binding of one captured graph, to tensors that keep their addresses."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    binding: Any
    options: Any


class CudaGraphs:
    """Captured graphs by their sizes; calls are thread-safe, and computed in turn."""

    def __init__(
        self,
        session: Any,
        feeds: Mapping[Sizes, Mapping[str, Array]],
        hidden_size: int,
        upload: Upload,
        run_options: Callable[[int], Any],
    ) -> None:
        """Capture a graph for each of the sizes, the smallest first.

        Nothing else runs the session. `feeds` are any inputs of each of the sizes; `run_options`
        gives the options of a run of the graph of a number.
        """
        self._session, self._thread = session, ThreadPoolExecutor(1, "cuda-graphs")
        self._graphs = {}
        for number, (sizes, feed) in enumerate(feeds.items()):
            shape = sizes.texts, hidden_size
            inputs = {name: upload(array) for name, array in feed.items()}
            outputs = {name: upload(np.zeros(shape, np.float32)) for name in OUTPUTS}
            binding = session.io_binding()
            for name, tensor in inputs.items():
                binding.bind_ortvalue_input(name, tensor)
            for name, tensor in outputs.items():
                binding.bind_ortvalue_output(name, tensor)
            self._graphs[sizes] = _Graph(inputs, outputs, binding, run_options(number))
            self.fetch(sizes, feed, ())

    def sizes_for(self, batch: Batch) -> Sizes | None:
        """Return the smallest sizes that hold a batch; None if it is too large."""
        return next((sizes for sizes in self._graphs if sizes.hold(batch)), None)

    def fetch(
        self, sizes: Sizes, feed: Mapping[str, Array], outputs: Collection[str]
    ) -> dict[str, Floats]:
        """Run the graph of these sizes, and copy outputs `[B, H]` to the host."""
        return self._thread.submit(self._run, self._graphs[sizes], feed, outputs).result()

    def _run(
        self, graph: _Graph, feed: Mapping[str, Array], outputs: Collection[str]
    ) -> dict[str, Floats]:
        for name, array in feed.items():
            graph.inputs[name].update_inplace(array)
        self._session.run_with_iobinding(graph.binding, graph.options)
        return {name: graph.outputs[name].numpy() for name in outputs}
