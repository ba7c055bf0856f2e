"""Graphs of an artifact on OpenVINO: bf16 and int8 on a CPU.

OpenVINO compiles a kernel for every shape, so batches are first rounded up to a coarse grid of
shapes. Surplus tokens, rows and columns are dummies, and removed from the outputs. The step of the
columns also keeps a text's numbers the same, bit for bit, in every batch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import GRAPHS, Artifact
from model.artifact.signature import GraphName, hidden_state_name
from model.errors import ModelError, ProviderError
from model.numerics.batch import Batch, coarser, widen
from model.runtimes.contract import (
    Array,
    Calls,
    Floats,
    HostRuntime,
    Resources,
    Session,
    every_head,
)
from model.runtimes.host_graphs import HeadGraphs, graphs_of_parts, session_parts

try:
    import openvino
    from openvino import opset13 as ops
except ImportError as error:
    raise ModelError(f"this artifact is for OpenVINO, which cannot be imported: {error}") from None

_INNER, _OUTPUTS = 64, 16
_ENOUGH = 0.99
"""Minimum ratio of a product to the exact one; where products saturate it is 0.506."""


@functools.cache
def core() -> openvino.Core:
    """Return OpenVINO, with its plugins loaded once."""
    return openvino.Core()


@functools.cache
def saturates() -> bool:
    """Return whether products with 8-bit weights saturate; True if the result is unclear.

    Without VNNI, AMX or the like, x86 multiplies 8-bit integers by VPMADDUBSW, which adds two
    products in 16 bits: 2 · 255 · 127 exceeds 32767, and the sum silently saturates. Weights of 7
    bits cannot reach that: 2 · 255 · 63 = 32130. A list of the processor's instructions does not
    show which of them OpenVINO uses, or that ONEDNN_MAX_CPU_ISA disables some.
    """
    exact = 255 * 127 * _INNER
    return not (_largest_product() >= _ENOUGH * exact).all()


@functools.cache
def computes_bfloat16() -> bool:
    """Return whether the processor computes products in bfloat16; if not, float32 replaces them.

    Every processor with bfloat16 products has 8-bit products that do not saturate.
    """
    return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") and not saturates()


def _largest_product() -> NDArray[np.float32]:
    """Return the product of 255s and 127s, `[1, p]`, by the kernels of int8 artifacts."""
    low, high = np.float32(0), np.float32(255)
    x = ops.parameter([1, _INNER], np.float32)
    quantized = ops.fake_quantize(x, low, high, low, high, 256)
    weight = ops.convert(ops.constant(np.full((_INNER, _OUTPUTS), 127, np.int8)), "f32")
    scale = ops.constant(np.ones((1, _OUTPUTS), np.float32))
    product = ops.matmul(quantized, ops.multiply(weight, scale), False, False)
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    compiled = core().compile_model(openvino.Model([product], [x]), "CPU", properties)
    return np.array(compiled(np.full((1, _INNER), 255, np.float32))[0])


_KERNELS_KEPT = 512
_VECTOR = 16
"""float32 numbers in the widest vector register. A softmax sums the columns of whole vectors and
the columns left over apart, so a row whose length is no multiple of it is rounded differently."""


def load(artifact: Artifact, resources: Resources) -> OpenVinoRuntime:
    """Load the graphs on the CPU."""
    return OpenVinoRuntime(artifact, resources.threads)


class OpenVinoRuntime(HostRuntime):
    """OpenVINO's CPU plugin; see `Runtime`.

    A short batch uses all cores if no other call is in flight.
    """

    provider = "OpenVINO CPU"

    def __init__(self, artifact: Artifact, threads: int) -> None:
        """Compile the graphs; the encoder twice if there are several threads.

        All batches share the graph with one single-threaded stream per caller; the other has one
        stream with all threads, for single short batches.
        """
        manifest = artifact.manifest
        if manifest.precision == "int8" and manifest.weight_bits != 7 and saturates():
            raise ProviderError(
                "this artifact's 8-bit weights give wrong sums on this processor, whose products "
                "saturate (it has no VNNI): export the model to int8 here, which gives it 7 bits"
            )
        self.config = manifest.config
        self._inputs = [spec.name for spec in manifest.signature["encoder"].inputs]
        # maps that int8 keeps in floating point run in bfloat16 as well
        floats = "bf16" if computes_bfloat16() else "f32"
        encoder = artifact.path(GRAPHS["encoder"])
        self._encoder = self._lone = self._compile(encoder, floats, threads, streams=threads)
        if threads > 1:
            self._lone = self._compile(encoder, floats, threads, streams=1)
        sessions: dict[GraphName, Session] = {
            name: self._compile(artifact.path(GRAPHS[name]), "f32", threads, streams=threads)
            for name in ("attention", *graphs_of_parts(manifest))
        }
        self._calls = Calls()
        heads = HeadGraphs(artifact, attention=sessions["attention"])
        self.parts = session_parts(artifact, heads, sessions, self._calls)

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Return `[T, H]` per layer."""
        coarse = rounded(batch)
        mask = every_head(coarse, self.config)
        if head_mask is not None:
            mask[: len(head_mask)] = head_mask
        feed: dict[str, Array] = dict(zip(self._inputs, (*coarse.inputs, mask), strict=True))
        names = [hidden_state_name(layer) for layer in layers]
        with self._calls.call(batch) as alone:
            return (self._lone if alone else self._encoder).run(names, feed, len(batch.input_ids))

    def _compile(self, graph: Path, precision: str, threads: int, *, streams: int) -> _Compiled:
        properties = {
            "INFERENCE_PRECISION_HINT": precision,
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
            "CPU_RUNTIME_CACHE_CAPACITY": _KERNELS_KEPT,
        }
        try:
            return _Compiled(core().compile_model(str(graph), "CPU", properties))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ModelError(f"OpenVINO cannot load {graph.name}: {reason}") from None


class _Compiled:
    """Compiled graph, with one inference request per calling thread."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._local = threading.local()

    def get_providers(self) -> list[str]:
        """Return the name of the provider."""
        return [OpenVinoRuntime.provider]

    def run(
        self, names: Sequence[str], feed: Mapping[str, Array], rows: int | None = None
    ) -> list[Floats]:
        """Return copies of the first rows of each named output, as the request is reused.

        `share_outputs`: the call would otherwise return a copy of every output of the graph.
        """
        request = getattr(self._local, "request", None)
        if request is None:
            request = self._local.request = self._model.create_infer_request()
        request.infer(feed, share_inputs=True, share_outputs=True)
        return [np.array(request.get_tensor(name).data[:rows]) for name in names]


def rounded(batch: Batch) -> Batch:
    """Return the texts in a grid of a coarser shape, with dummy tokens at the end."""
    tokens, (texts, longest) = len(batch.input_ids), batch.padded_index.shape
    surplus = (0, coarser(tokens) - tokens)
    wide = widen(batch, coarser(texts), coarser(longest, _VECTOR))
    return Batch(
        input_ids=np.pad(wide.input_ids, surplus),
        token_type_ids=np.pad(wide.token_type_ids, surplus),
        position_ids=np.pad(wide.position_ids, surplus),
        padded_index=wide.padded_index,
        packed_index=np.pad(wide.packed_index, surplus),
        pixels=None if wide.pixels is None else np.pad(wide.pixels, (surplus, (0, 0))),
    )
