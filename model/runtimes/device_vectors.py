"""Graph of vectors on a device: the artifact's own pooling of texts end to end, without padding.

A batch is rounded up to few sizes by dummy texts. A small batch is one launch of a CUDA graph, in
place of one per operator.

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

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from model.artifact.manifest import Manifest
from model.config.encoder import EncoderConfig
from model.errors import ModelError
from model.numerics.batch import Batch, Ids, coarser, dummies
from model.numerics.pooling import TextPooling
from model.runtimes.bound import Bound
from model.runtimes.contract import Array, Floats

ALIGNED = 8
"""Alignment of row lengths, for the fastest half-precision kernels."""
MOST_ROTATED = 65_535
"""Maximum tokens of a batch with rotary positions, whose kernel has a row of blocks per token."""


class Sizes(NamedTuple):
    """Sizes of all inputs, to which dummy texts fill a batch up."""

    tokens: int
    """T."""
    columns: int
    """S."""
    texts: int
    """B, also the number of vectors."""

    def hold(self, batch: Batch) -> bool:
        """Return whether a batch of texts can be filled up to these sizes."""
        texts, longest = batch.padded_index.shape
        missing = self.tokens - len(batch.input_ids)
        texts += -(-missing // self.columns)
        return missing >= 0 and longest <= self.columns and texts <= self.texts


def dummy_lengths(batch: Batch, sizes: Sizes | None = None) -> list[int]:
    """Return the lengths of dummy texts after a batch, for these sizes or eight T an octave.

    A device's allocator can then use the memory of earlier batches again. Pictures all have one
    length, and their pixels would be copied: they get no dummies.
    """
    if batch.pixels is not None:
        return []
    tokens, (texts, longest) = len(batch.input_ids), batch.padded_index.shape
    total = coarser(tokens, ALIGNED)
    if sizes:
        total, longest = sizes.tokens, sizes.columns
    missing = total - tokens
    lengths = [min(longest, missing - first) for first in range(0, missing, longest)]
    empty = sizes.texts - texts - len(lengths) if sizes else 0
    return lengths + [0] * empty


def packed_inputs(
    batch: Batch,
    config: EncoderConfig,
    names: Sequence[str],
    *,
    last: bool,
    sizes: Sizes | None = None,
) -> dict[str, Array]:
    """Return the graph's inputs with these names; see `vectors_signature`.

    The batch has no masked tokens. `last` pools a text's last token, in place of its first. `sizes`
    hold the batch; the next larger T when None.
    """
    added, texts = dummy_lengths(batch, sizes), len(batch.padded_index)
    lengths = np.concatenate([np.diff(batch.cu_seqlens), np.array(added, np.int64)])
    ends = np.concatenate([[0], np.cumsum(lengths)])
    if "position_ids" in names and ends[-1] > MOST_ROTATED:
        raise ModelError(
            f"a batch of {ends[-1]} tokens is too large for rotary positions on a "
            f"GPU: set --max-batch-tokens to at most {MOST_ROTATED // 2}"
        )
    ids, types = (np.pad(own, (0, sum(added))) for own in (batch.input_ids, batch.token_type_ids))
    columns = np.arange(sizes.columns if sizes else coarser(int(lengths.max()), ALIGNED))
    real = columns < lengths[:, None]
    rows = (ends[1:] - 1 if last else ends[:-1])[:texts]
    arrays: dict[str, Ids] = {
        "input_ids": ids,
        "token_type_ids": types,
        "position_ids": np.broadcast_to(columns, real.shape)[real],
        "columns": np.minimum(columns, config.max_position_embeddings - 1),
        "token_offset": np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).reshape(
            real.shape
        ),
        "cu_seqlens": ends,
        "pooled_rows": np.pad(rows, (0, sizes.texts - texts if sizes else 0)),
    }
    if "embedding_rows" in names:
        arrays["embedding_rows"] = _embedding_rows(arrays, config)
    return {
        name: batch.pixels
        if name == "pixels" and batch.pixels is not None
        else arrays[name].astype(np.int64 if name == "position_ids" else np.int32)
        for name in names
    }


def _embedding_rows(arrays: Mapping[str, Ids], config: EncoderConfig) -> Ids:
    """Return each token's row in the common table of segments and positions, `[T]`.

    Positions after a padding id count as in `model.encoder.embeddings`.
    """
    ids, ends = arrays["input_ids"], arrays["cu_seqlens"]
    segments = arrays["token_type_ids"] if config.segments else np.zeros_like(ids)
    match config.embeddings.positions:
        case "none":
            return segments
        case "table":
            count, positions = config.max_position_embeddings, arrays["position_ids"]
        case "table_after_padding":
            padding = config.pad_token_id
            count = config.max_position_embeddings + padding + 1
            real = (ids != padding).astype(np.int64)
            before = np.concatenate([[0], np.cumsum(real)])
            starts = np.repeat(before[ends[:-1]], np.diff(ends))
            positions = (before[1:] - starts) * real + padding
    return segments * count + positions


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
