"""CUDA graphs of small batches: their sizes, vectors and thread, on a session that counts runs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from model.artifact.manifest import GRAPHS, Artifact
from model.errors import DeviceLostError, ProviderError
from model.export.emulation import emulate, emulated
from model.numerics.batch import Batch
from model.numerics.pooling import TextPooling
from model.runtimes import onnx as onnx_runtime
from model.runtimes.bound import Place
from model.runtimes.contract import Resources
from model.runtimes.device_vectors import TOKENS, DeviceVectors, dummy_lengths, graph_sizes
from model.runtimes.onnx_device import BoundRuntime
from model.runtimes.registry import load_runtime, session_of
from tests.model.runtimes.test_onnx import batch_of
from tests.model.runtimes.test_onnx_device import Session

pytestmark = pytest.mark.slow
LONGEST = 40
LENGTHS = [
    [1],
    [16],
    [40],
    [33, 40, 2],
    [5] * 12,
    [40] * 8,
    [17, 3, 9, 1, 1, 30] * 6,
    [40] * 48,
    [40] * 51 + [8],
]
"""Lengths of batches that fit, up to the most tokens."""
TOO_LARGE = [[40] * 52, [1] * 600]


class Capturing:
    """Session that records the graph and the thread of each run."""

    def __init__(self, graph: bytes, folder: Path) -> None:
        self._real = session_of(graph, folder)
        self.io_binding = self._real.io_binding
        self.runs: list[int] = []
        self.threads: set[int] = set()
        self.error: Exception | None = None

    def run_with_iobinding(self, binding: Any, number: int) -> None:
        if self.error:
            raise self.error
        self.runs.append(number)
        self.threads.add(threading.get_ident())
        self._real.run_with_iobinding(binding)


@pytest.fixture(scope="module")
def vectors(half: Artifact) -> DeviceVectors:
    runtime = load_runtime(half)
    assert isinstance(runtime, BoundRuntime)
    assert emulate(half, runtime)
    assert runtime.vectors
    return runtime.vectors


@pytest.fixture
def session(half: Artifact, vectors: DeviceVectors) -> Capturing:
    """Return a session that has captured the graphs of the vectors."""
    session = Capturing(emulated(half.path(GRAPHS["vectors"])), half.folder)
    vectors.capture(session, on_the_cpu, lambda number: number)
    return session


class Tensor(onnxruntime.OrtValue):  # type: ignore[misc]
    """Tensor that is copied to the host, like one on a GPU."""

    def numpy(self) -> Any:
        return super().numpy().copy()


def on_the_cpu(array: np.ndarray) -> Any:
    return Tensor.ortvalue_from_numpy(array, "cpu", 0)


def vectors_of(vectors: DeviceVectors, batch: Batch) -> np.ndarray:
    """Return vectors and unit vectors."""
    texts = range(len(batch.padded_index))
    asked = [TextPooling(text, 2, "mean", unit_features=n) for n in (0, 24) for text in texts]
    return np.stack(vectors.encode(batch, asked))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_vectors_do_not_depend_on_cuda_graphs(
    vectors: DeviceVectors, session: Capturing, lengths: list[int]
) -> None:
    batch, before = batch_of(lengths), len(session.runs)
    found = vectors_of(vectors, batch)
    assert len(session.runs) == before + 1
    vectors.graphs = None
    np.testing.assert_array_equal(found, vectors_of(vectors, batch))


@pytest.mark.parametrize("lengths", TOO_LARGE, ids=["tokens", "texts"])
def test_larger_batches_and_the_warm_up_take_the_ordinary_way(
    vectors: DeviceVectors, session: Capturing, lengths: list[int]
) -> None:
    before = len(session.runs)
    vectors.warm_up([8])
    assert vectors_of(vectors, batch_of(lengths)).shape == (2 * len(lengths), 24)
    assert len(session.runs) == before


def test_each_graph_is_captured_once_and_all_run_on_one_thread(
    vectors: DeviceVectors, session: Capturing
) -> None:
    sizes = graph_sizes(LONGEST)
    assert session.runs == [*range(len(sizes))]
    batches = [batch_of(lengths, seed) for seed, lengths in enumerate(2 * LENGTHS)]
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda batch: vectors_of(vectors, batch), batches)]
    assert len(session.threads) == 1
    assert threading.get_ident() not in session.threads
    assert set(session.runs[len(sizes) :]) <= {*range(len(sizes))}
    for batch, own in zip(batches, found, strict=True):
        np.testing.assert_array_equal(own, vectors_of(vectors, batch))


def test_a_lost_device_is_lost_for_the_graphs_too(
    vectors: DeviceVectors, session: Capturing
) -> None:
    session.error = RuntimeError("CUDA failure 700: an illegal memory access was encountered")
    with pytest.raises(DeviceLostError):
        vectors_of(vectors, batch_of([3]))
    assert not vectors.session.watch.alive
    vectors.session.watch.alive = True


def test_graphs_are_few_and_the_smallest_that_holds_a_batch_is_taken() -> None:
    for longest in range(16, 9000, 8):
        sizes = graph_sizes(longest)
        assert len(sizes) <= 18
        assert {each.tokens for each in sizes} == {*TOKENS}
        assert all(each.columns <= longest for each in sizes)
    sizes = graph_sizes(512)
    taken = {
        lengths: next((tuple(each) for each in sizes if each.hold(batch_of([*lengths]))), None)
        for lengths in ((8,), (128,), (129,), (128,) * 8, (16,) * 16, (512,) * 4, (512,) * 5)
    }
    assert taken == {
        (8,): (64, 16, 16),
        (128,): (128, 128, 4),
        (129,): (256, 256, 4),
        (128,) * 8: (1024, 256, 16),
        (16,) * 16: (256, 16, 64),
        (512,) * 4: (2048, 512, 16),
        (512,) * 5: None,
    }


def test_dummy_texts_fill_a_batch_up_to_a_graphs_sizes() -> None:
    for lengths in (*LENGTHS, [39, 25, 40, 1, 20]):
        batch = batch_of(lengths)
        sizes = next(each for each in graph_sizes(LONGEST) if each.hold(batch))
        added = dummy_lengths(batch, sizes)
        assert sum(lengths) + sum(added) == sizes.tokens
        assert len(lengths) + len(added) == sizes.texts
        assert max(lengths + added) <= sizes.columns


@pytest.mark.usefixtures("as_on_cuda")
def test_a_model_is_loaded_with_graphs_in_a_session_of_their_own(
    half: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {file: name for name, file in GRAPHS.items()}
    captured: list[Capturing] = []

    def session(path: Path, *_: Any, cuda_graphs: bool = False) -> Any:
        if cuda_graphs:
            assert path.name == GRAPHS["vectors"]
            captured.append(Capturing(emulated(path), half.folder))
            return captured[0]
        return Session(half, names[path.name])

    monkeypatch.setattr(onnx_runtime, "_session", session)
    monkeypatch.setattr(onnx_runtime, "_graph_options", lambda number: number)
    runtime = load_runtime(half, Resources("cuda", cuda_graphs=True))
    assert isinstance(runtime, BoundRuntime)
    assert runtime.vectors
    before = [*captured[0].runs]
    assert before == [*range(len(graph_sizes(LONGEST)))]
    runtime.encode(batch_of([3]), [], [TextPooling(0, 2, "mean")])
    assert captured[0].runs == [*before, 0]


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("onnx", "cpu", "--cuda-graphs is for CUDA, and the device is cpu"),
        ("openvino", "auto", "OpenVINO runs on the CPU only"),
        ("pytorch", "auto", "PyTorch runs on the CPU only"),
    ],
)
def test_graphs_without_a_gpu_are_refused(
    tiny_artifact: Artifact, name: Any, device: Any, reason: str
) -> None:
    with pytest.raises(ProviderError, match=reason):
        load_runtime(tiny_artifact, Resources(device, cuda_graphs=True), name=name)


def test_graphs_are_refused_for_models_without_a_graph_of_vectors(
    tiny_artifact: Artifact, half: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_runtime, "choose", lambda *_: "cuda")
    of_pictures = half.manifest.model_copy(update={"images": object()})
    for artifact, reason in (
        (tiny_artifact, "needs an fp16 export with vectors.onnx"),
        (replace(half, manifest=of_pictures), "this model encodes pictures"),
    ):
        with pytest.raises(ProviderError, match=f"^--cuda-graphs .*{reason}"):
            load_runtime(artifact, Resources("auto", cuda_graphs=True))


def test_a_session_with_graphs_captures_one_by_its_number(
    half: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def session(*_: Any, providers: Any, **__: Any) -> Any:
        given.extend(providers)
        return SimpleNamespace(get_providers=lambda: ["CUDAExecutionProvider"])

    monkeypatch.setattr(onnx_runtime.onnxruntime, "InferenceSession", session)
    monkeypatch.setattr(onnx_runtime.onnxruntime, "preload_dlls", lambda: None)
    for cuda_graphs in (False, True):
        path = half.path(GRAPHS["vectors"])
        onnx_runtime._session(path, Place("cuda", 1), cuda_graphs=cuda_graphs)
    (_, without), (_, capturing) = given
    assert capturing == without | {"enable_cuda_graph": "1"}
    options = onnx_runtime._graph_options(3)
    assert options.get_run_config_entry("gpu_graph_id") == "3"
