"""bf16 and int8 on OpenVINO: numbers, shapes, batches, threads, and errors."""

from __future__ import annotations

import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.artifact.manifest import Artifact, load_artifact, record_file, write_manifest
from model.errors import ModelError
from model.numerics.batch import coarser, pack
from model.runtimes import openvino as runtime_openvino
from model.runtimes.capabilities import capability
from model.runtimes.contract import Heads, Resources
from model.runtimes.onnx import OnnxRuntime
from model.runtimes.openvino import OpenVinoRuntime, rounded
from model.runtimes.registry import load_runtime
from tests.model.refusals import refused
from tests.model.runtimes.test_onnx import batch_of, rows_of

pytestmark = pytest.mark.slow

LENGTHS = [9, 4, 1, 17, 40]


@pytest.fixture(scope="module", params=["bf16", "int8"])
def artifact(request: pytest.FixtureRequest) -> Artifact:
    found: Artifact = request.getfixturevalue(f"tiny_{request.param}")
    return found


@pytest.fixture(scope="module")
def runtime(artifact: Artifact) -> OpenVinoRuntime:
    found = load_runtime(artifact, Resources(threads=2))
    assert isinstance(found, OpenVinoRuntime)
    return found


@pytest.fixture(scope="module")
def exact(tiny_artifact: Artifact) -> OnnxRuntime:
    return OnnxRuntime(tiny_artifact)


def test_an_answer_outlives_the_next_call(runtime: OpenVinoRuntime) -> None:
    one, other = batch_of([9, 4], seed=1), batch_of([9, 4], seed=2)
    (state,) = runtime.hidden_states(one, [2])
    weights = capability(runtime, Heads).attention(state[:9], state[:9], 1, [0])
    kept = state.copy(), weights.copy()
    (again,) = runtime.hidden_states(other, [2])
    capability(runtime, Heads).attention(again[:9], again[:9], 1, [0])
    assert np.array_equal(state, kept[0])
    assert np.array_equal(weights, kept[1])


def test_only_requested_hidden_states_are_copied(
    runtime: OpenVinoRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph has three outputs."""
    peaks: list[int] = []
    real = runtime_openvino._Compiled.run

    def run(*arguments: Any) -> Any:
        tracemalloc.start()
        try:
            return real(*arguments)
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    batch = batch_of([40] * 100)
    runtime.hidden_states(batch, [2])  # the first call of a shape allocates more
    monkeypatch.setattr(runtime_openvino._Compiled, "run", run)
    (state,) = runtime.hidden_states(batch, [2])
    assert peaks[0] < 1.5 * state.nbytes


def test_a_text_is_the_same_in_any_company(runtime: OpenVinoRuntime) -> None:
    """Bit for bit, although batches have grids of other sizes."""
    chance, rng = random.Random(0), np.random.default_rng(0)
    lengths = [chance.randint(1, 40) for _ in range(60)]
    texts = [(rng.integers(0, 60, n), np.zeros(n, np.int64)) for n in lengths]
    alone = [runtime.hidden_states(pack([text]), range(3)) for text in texts]
    compared = 0
    for _ in range(4):
        order = chance.sample(range(60), 60)
        while order:
            chosen = [order.pop() for _ in range(min(chance.randint(2, 9), len(order)))]
            batch = pack([texts[i] for i in chosen])
            states = runtime.hidden_states(batch, range(3))
            for i, rows in zip(chosen, rows_of(batch), strict=True):
                for state, expected in zip(states, alone[i], strict=True):
                    assert np.array_equal(state[rows], expected), lengths[i]
                compared += 1
    assert compared == 240


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
@example([1])
@example([17, 1, 3])
@example([40] * 33)
def test_rounded_keeps_every_texts_results(exact: OnnxRuntime, lengths: list[int]) -> None:
    batch = batch_of(lengths)
    larger = rounded(batch)
    assert len(larger.input_ids) == coarser(sum(lengths))
    assert larger.padded_index.shape == (coarser(len(lengths)), coarser(max(lengths), 16))
    assert {array.dtype for array in larger.inputs} == {np.dtype(np.int64)}
    found, expected = (exact.hidden_states(each, [1, 2]) for each in (larger, batch))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one[: sum(lengths)], other, atol=2e-6)


def test_openvino_sees_coarse_shapes_only(
    runtime: OpenVinoRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would compile a kernel for every shape."""
    seen: list[int] = []
    real = runtime_openvino._Compiled.run

    def run(self: Any, names: list[str], feed: dict[str, np.ndarray], rows: int) -> Any:
        seen.extend(size for array in feed.values() for size in array.shape)
        return real(self, names, feed, rows)

    monkeypatch.setattr(runtime_openvino._Compiled, "run", run)
    for lengths in ([17], [17, 1, 3], [33, 1], [1] * 19):
        (state,) = runtime.hidden_states(batch_of(lengths), [2])
        assert state.shape == (sum(lengths), 12)
    assert {32, 22, 48, 36, 20} <= set(seen)
    assert all(coarser(size) == size for size in seen)


def test_the_manifest_chooses_the_runtime(artifact: Artifact) -> None:
    for device in ("cpu", "auto"):
        runtime = load_runtime(artifact, Resources(device))  # type: ignore[arg-type]
        assert isinstance(runtime, OpenVinoRuntime)
        assert runtime.provider == "OpenVINO CPU"
        assert runtime.config == artifact.manifest.config


@pytest.mark.parametrize("kept", [0, 0.5, 0.99], ids=["empty", "half", "nearly all"])
@pytest.mark.parametrize("name", ["encoder.onnx", "attention.onnx"])
def test_a_graph_that_cannot_be_loaded_is_named(
    tiny_int8: Artifact, tmp_path: Path, name: str, kept: float
) -> None:
    for file in tiny_int8.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(kept * len(content))])
    files = tiny_int8.manifest.files | {name: record_file(tmp_path / name)}
    write_manifest(tmp_path, tiny_int8.manifest.model_copy(update={"files": files}))
    refused(ModelError, f"OpenVINO cannot load {name}: ", load_runtime, load_artifact(tmp_path))


def test_without_openvino_it_is_one_line(
    artifact: Artifact, tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delitem(sys.modules, "model.runtimes.openvino")
    refused(ModelError, "for OpenVINO, which cannot be imported", load_runtime, artifact)
    assert isinstance(load_runtime(tiny_artifact), OnnxRuntime)  # this runtime does not need it
