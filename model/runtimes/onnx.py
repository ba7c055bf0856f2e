"""Graphs of an artifact on ONNX Runtime."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np

from model.artifact.manifest import (
    GRAPHS,
    Artifact,
    Manifest,
)
from model.artifact.signature import GraphName, hidden_state_name
from model.errors import ModelError, ProviderError
from model.numerics.batch import Batch
from model.runtimes import cuda
from model.runtimes.bound import HostMemory, Place, cuda_register
from model.runtimes.contract import (
    Calls,
    Device,
    Floats,
    HostRuntime,
    Resources,
    Runtime,
    every_head,
)
from model.runtimes.cuda import UNFUSED, selected_kernels
from model.runtimes.host_graphs import HeadGraphs, graphs_of_parts, session_parts
from model.runtimes.onnx_device import BoundRuntime

try:
    import onnxruntime
    from onnxruntime import InferenceSession  # missing if files of another wheel remain
except ImportError as error:
    raise ModelError(
        f"ONNX Runtime cannot be imported ({error}): pip install onnxruntime, or "
        "onnxruntime-gpu for an NVIDIA GPU, in an environment that has neither"
    ) from None

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_CUDA_LIBRARY = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
CUDA_LEAST_VERSION = (1, 28)
"""Least version on a GPU: earlier ones sum a norm's variance in half precision."""
_CUDNN = "libcudnn.so.9"
_HOST = Place("cpu")
_SAMPLE_LENGTHS = (128, 16)
"""Tokens of the texts for which the attention kernels are reported."""
_log = logging.getLogger("headscope")
_FATAL, _WARNING = 4, 2
"""Severities of ONNX Runtime's log."""


def load(artifact: Artifact, resources: Resources) -> Runtime:
    """Load the graphs: float32 on the CPU in host memory, all others bound to a device.

    Half precision uses the device code on a CPU too, where it is slow, so that both share code.
    """
    chosen = choose(resources.device, resources.device_id)
    if chosen == "cpu" and artifact.manifest.precision == "fp32":
        return OnnxRuntime(artifact, resources.threads)
    manifest = artifact.manifest
    place = Place(chosen, resources.device_id if chosen == "cuda" else 0)
    if resources.cuda_graphs:
        _check_cuda_graphs(manifest)

    def load_graph(name: GraphName, *, cuda_graphs: bool = False) -> InferenceSession:
        limits = resources.threads, resources.device_memory_bytes
        return _session(artifact.path(GRAPHS[name]), place, *limits, cuda_graphs=cuda_graphs)

    graphs = (*BoundRuntime.GRAPHS, *graphs_of_parts(manifest))
    sessions = {name: load_graph(name) for name in graphs}
    if chosen == "cuda":
        _check_cudnn()
    upload = onnxruntime.OrtValue.ortvalue_from_numpy
    locked = _page_locked() if chosen == "cuda" else None
    runtime = BoundRuntime(artifact, sessions, upload, place, locked)
    if chosen == "cuda" and "vectors" in manifest.signature:
        runtime.attention_kernels = selected_kernels(  # by a session of its own
            lambda: runtime.use_vectors(load_graph("vectors")).warm_up(_SAMPLE_LENGTHS)
        )
        if UNFUSED in runtime.attention_kernels:
            _log.warning("this GPU has no fused attention for the model: it is slow")
        vectors = runtime.use_vectors(load_graph("vectors"))
        if resources.cuda_graphs:
            session = load_graph("vectors", cuda_graphs=True)
            own_device = place.kind, place.index
            vectors.capture(session, lambda array: upload(array, *own_device), _graph_options)
    return runtime


class OnnxRuntime(HostRuntime):
    """ONNX Runtime on the CPU, in float32; see `Runtime`.

    A short batch uses all cores if no other call is in flight.
    """

    spare_calls = 1

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        """Load the graphs; the encoder and the decoder twice if there are several threads.

        Two threads in one call are slower than two calls of one thread each. So the session shared
        by all batches has one thread; the other has all, for single short batches.
        """
        self.config = artifact.manifest.config
        self._inputs = [spec.name for spec in artifact.manifest.signature["encoder"].inputs]
        names = ("attention", *graphs_of_parts(artifact.manifest))
        paths = {name: artifact.path(GRAPHS[name]) for name in ("encoder", *names)}
        with ThreadPoolExecutor(2) as loading:  # each loads on one core
            encoder = loading.submit(_session, paths["encoder"])
            lone = encoder
            if threads > 1:
                lone = loading.submit(_session, paths["encoder"], threads=threads)
            sessions = {name: _session(paths[name]) for name in names}
        self._encoder, self._lone = encoder.result(), lone.result()
        self.provider: str = self._encoder.get_providers()[0]
        self._sessions = {self._encoder, self._lone, *sessions.values()}
        wide = None
        if "decoder" in sessions and threads > 1:
            self._sessions.add(wide := _session(paths["decoder"], threads=threads))
        self._calls = Calls()
        heads = HeadGraphs(artifact, attention=sessions["attention"])
        self.parts = session_parts(artifact, heads, sessions, self._calls, lone=wide)

    def release_memory(self) -> None:
        """Release the free regions of each session's arena.

        Outputs are arrays in the arena, which grows while replies wait to be sent.
        """
        for session in self._sessions:
            release_arena(session)

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Return `[T, H]` per layer."""
        outputs = [hidden_state_name(layer) for layer in layers]
        mask = every_head(batch, self.config) if head_mask is None else head_mask
        feed = dict(zip(self._inputs, (*batch.inputs, mask), strict=True))
        with self._calls.call(batch) as alone:
            return (self._lone if alone else self._encoder).run(outputs, feed)


def host_session(graph: Path) -> InferenceSession:
    """Load a graph for large, rare calls on the CPU: one thread each, memory freed at once."""
    return _session(graph, arena=False)


def session_of(graph: bytes, folder: Path) -> InferenceSession:
    """Load a graph from memory, whose large weights are in files of a folder, on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    location = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(location, str(folder))
    return onnxruntime.InferenceSession(graph, options, providers=[_PROVIDERS["cpu"]])


def choose(device: Device, device_id: int = 0) -> Literal["cpu", "cuda"]:
    """Return where to run: "auto" selects CUDA if this package and the driver find a device."""
    if device == "cpu":
        return "cpu"
    packaged = _PROVIDERS["cuda"] in onnxruntime.get_available_providers()
    if device == "auto" and not (packaged and cuda.device_count()):
        return "cpu"
    if not packaged:
        raise ProviderError(
            "device cuda: this onnxruntime package is for CPUs only, onnxruntime-gpu is needed: "
            "pip uninstall onnxruntime, then pip install onnxruntime-gpu"
        )
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < CUDA_LEAST_VERSION:
        least = ".".join(map(str, CUDA_LEAST_VERSION))
        raise ProviderError(
            f"device cuda: onnxruntime-gpu {onnxruntime.__version__} sums variances in half "
            f"precision; install {least} or later"
        )
    cuda.check(device_id, onnxruntime.cuda_version)
    return "cuda"


def _check_cuda_graphs(manifest: Manifest) -> None:
    """Raise an error if CUDA graphs compute nothing of a model."""
    if "vectors" not in manifest.signature:
        raise ProviderError("--cuda-graphs needs an fp16 export with vectors.onnx, see docs/gpu.md")
    if manifest.images:
        raise ProviderError("--cuda-graphs is for texts, and this model encodes pictures")


def _graph_options(number: int) -> onnxruntime.RunOptions:
    """Return the options of a run that captures or replays the CUDA graph of this number."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(number))
    return options


@functools.cache
def _page_locked() -> HostMemory:
    """Return the process's page-locked memory, which outlives models: CUDA keeps its addresses."""
    return HostMemory(cuda_register(onnxruntime.cuda_version))


def _check_cudnn() -> None:
    """Raise an error without cuDNN, which ONNX Runtime loads only when it first pools states."""
    with _cuda_libraries():
        missing = cuda.unloadable([_CUDNN])
    if missing:
        raise ProviderError(
            f"device cuda: cuDNN 9 is needed to pool hidden states: {missing}; "
            'pip install "onnxruntime-gpu[cuda,cudnn]"'
        )


def _session(
    graph: Path,
    place: Place = _HOST,
    threads: int = 1,
    memory_bytes: int | None = None,
    *,
    arena: bool = True,
    cuda_graphs: bool = False,
) -> InferenceSession:
    provider = _PROVIDERS[place.kind]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_mem_pattern = False  # ONNX Runtime keeps a pattern for every shape
    options.enable_cpu_mem_arena = arena
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if graph.name == GRAPHS["vectors"]:  # an operator without a kernel for CUDA is an error
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if graph.name == GRAPHS["logprobs"]:  # prepacking copies the word embedding for little gain
        options.add_session_config_entry("session.disable_prepacking", "1")
    captures = {"enable_cuda_graph": "1"} if cuda_graphs else {}
    try:
        with _cuda_libraries() if place.kind == "cuda" else contextlib.nullcontext():
            session = onnxruntime.InferenceSession(
                str(graph),
                options,
                providers=[(provider, provider_options(place, memory_bytes) | captures)],
                enable_fallback=0,  # the fallback to the CPU only prints a line
            )
    except Exception as error:  # onnxruntime's exceptions share no base class
        reason = str(error).splitlines()[0]
        raise ModelError(f"ONNX Runtime cannot load {graph.name}: {reason}") from None
    if session.get_providers()[0] != provider:
        reason = cuda.unloadable([_CUDA_LIBRARY, _CUDNN]) or "it does not say why"
        raise ProviderError(f"device cuda: ONNX Runtime cannot use it: {reason}")
    return session


def release_arena(session: InferenceSession) -> None:
    """Return the free regions of a session's arena to the system, by a run of the smallest inputs.

    ONNX Runtime releases them only at the end of a run.
    """
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    feed = {
        value.name: np.zeros(
            [size if isinstance(size, int) else 1 for size in value.shape],
            np.int64 if value.type == "tensor(int64)" else np.float32,
        )
        for value in session.get_inputs()
    }
    session.run([session.get_outputs()[0].name], feed, options)


def provider_options(place: Place, memory_bytes: int | None) -> dict[str, str]:
    """Return the options of the execution provider; none on a CPU."""
    if place.kind == "cpu":
        return {}
    options = {
        "device_id": str(place.index),
        # the default doubles the arena with each request that does not fit
        "arena_extend_strategy": "kSameAsRequested",
        # a float32 artifact guarantees float32 precision
        "use_tf32": "0",
    }
    if memory_bytes is not None:
        options["gpu_mem_limit"] = str(memory_bytes)
    return options


@contextlib.contextmanager
def _cuda_libraries() -> Iterator[None]:
    """Load CUDA's libraries from their Python packages, with the runtime's log silenced."""
    with contextlib.redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()
    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)
