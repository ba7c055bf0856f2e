"""Device code on the CPU provider: numbers, bound and copied tensors, lost devices."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.nn import functional

from model.artifact.manifest import GRAPHS, Artifact
from model.artifact.vectors import TextVectors
from model.checkpoint import load_checkpoint
from model.config.precision import Precision
from model.encoder.encoder import EncoderOutput
from model.errors import DeviceLostError
from model.export.emulation import emulated
from model.export.samples import samples_of
from model.numerics.batch import pack
from model.numerics.comparison import TOLERANCES, Key, difference, keyed
from model.numerics.pooling import (
    POOLINGS,
    PoolingModes,
    PoolingName,
    TextPooling,
    l2_normalize,
    modes_of,
    pool,
)
from model.packing import PackedBatch
from model.runtimes import onnx_device
from model.runtimes.bound import Place
from model.runtimes.capabilities import capability
from model.runtimes.contract import Heads, Resources, Runtime
from model.runtimes.onnx import OnnxRuntime
from model.runtimes.onnx_device import BoundRuntime
from model.runtimes.registry import load_runtime, session_of
from tests import sts
from tests.model.runtimes.test_onnx import batch_of, rows_of, transformers_says

LENGTHS = [9, 4, 1, 17, 40]


class Binding:
    """Binding on the CPU that records where each tensor is bound."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.real = session.io_binding()
        self.host_inputs: dict[str, tuple[int, ...]] = {}
        self.device_inputs: dict[str, tuple[int, ...]] = {}
        self.outputs: dict[str, tuple[str, int]] = {}

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        assert array.flags.c_contiguous
        self.host_inputs[name] = array.shape
        self.real.bind_cpu_input(name, array)

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.device_inputs[name] = tuple(value.shape())
        self.real.bind_ortvalue_input(name, value)

    def bind_output(self, name: str, kind: str, index: int, *buffer: Any) -> None:
        self.outputs[name] = (kind, index)
        self.real.bind_output(name, "cpu", 0, *buffer)

    def get_outputs(self) -> list[Any]:
        return self.real.get_outputs()


class Session:
    """Session that reports CUDA, records bindings, and can be made to fail."""

    def __init__(self, artifact: Artifact, name: str) -> None:
        path = str(artifact.path(GRAPHS[name]))  # type: ignore[index]
        graph = emulated(Path(path)) if name == "vectors" else Path(path).read_bytes()
        self._real = session_of(graph, artifact.folder)
        self.bindings: list[Binding] = []
        self.error: Exception | None = None

    def get_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def io_binding(self) -> Binding:
        self.bindings.append(Binding(self._real))
        return self.bindings[-1]

    def run_with_iobinding(self, binding: Binding) -> None:
        if self.error:
            raise self.error
        self._real.run_with_iobinding(binding.real)


class Device:
    """Runtime on device 1 of a machine without one, with its fake sessions."""

    def __init__(self, artifact: Artifact) -> None:
        self.sessions = {name: Session(artifact, name) for name in BoundRuntime.GRAPHS}
        self.uploaded: list[tuple[str, tuple[int, ...], str, int]] = []
        self.runtime = BoundRuntime(artifact, self.sessions, self._upload, Place("cuda", 1))

    def _upload(self, array: np.ndarray, kind: str, index: int) -> Any:
        self.uploaded.append((array.dtype.name, array.shape, kind, index))
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu", 0)

    def bindings(self, name: str) -> list[Binding]:
        return self.sessions[name].bindings  # type: ignore[index]

    @property
    def copied(self) -> int:
        """Return the outputs that were copied to the host."""
        return sum(
            place == ("cpu", 0)
            for session in self.sessions.values()
            for binding in session.bindings
            for place in binding.outputs.values()
        )


def attention(runtime: Runtime, *asked: Any) -> np.ndarray:
    return capability(runtime, Heads).attention(*asked)


@pytest.fixture(scope="module", params=["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def artifact(request: pytest.FixtureRequest) -> Artifact:
    names = {"fp32": "tiny_artifact", "fp16": "tiny_fp16"}
    found: Artifact = request.getfixturevalue(names[request.param])
    return found


@pytest.fixture
def device(artifact: Artifact) -> Device:
    return Device(artifact)


@pytest.fixture(scope="module")
def runtime(artifact: Artifact) -> BoundRuntime:
    return Device(artifact).runtime


def test_every_tensor_is_within_tolerance_of_transformers(
    artifact: Artifact, runtime: BoundRuntime, tiny_checkpoint: Path
) -> None:
    tolerances = TOLERANCES[artifact.manifest.precision]
    batch = batch_of(LENGTHS)
    asked = [(text, layer) for text in range(len(LENGTHS)) for layer in range(3)]
    states, _ = runtime.encode(batch, asked, [])
    found = iter(states)
    for hidden, maps in transformers_says(tiny_checkpoint, batch):
        own = [next(found) for _ in hidden]
        copies = [np.asarray(state) for state in own]
        for ours, theirs in zip(copies, hidden, strict=True):
            assert ours.dtype == np.float32
            assert difference(theirs, ours, tolerances["hidden"]).passed
        for layer, theirs in enumerate(maps):
            every = attention(runtime, own[layer], own[layer], layer, range(3))
            for heads, state in itertools.product(([0, 1, 2], [2], [2, 0]), (own, copies)):
                ours = attention(runtime, state[layer], state[layer], layer, heads)
                assert ours.dtype == np.float32
                assert difference(theirs[heads], ours, tolerances["attention"]).passed
                np.testing.assert_allclose(ours.sum(axis=-1), 1, atol=1e-5)
                np.testing.assert_allclose(ours, every[heads], atol=1e-6)


def test_queries_and_keys_may_be_different_states(tiny_artifact: Artifact) -> None:
    device, batch = Device(tiny_artifact).runtime, batch_of([5, 9])
    states, _ = device.encode(batch, [(0, 1), (1, 1)], [])
    for queries, keys in itertools.permutations(states):
        ours = attention(device, queries, keys, 1, [2, 1])
        theirs = attention(OnnxRuntime(tiny_artifact), queries, keys, 1, [2, 1])
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


MODES: tuple[PoolingModes, ...] = (
    *POOLINGS,
    "mean_sqrt_len_tokens",
    "weightedmean",
    ("max", "mean_sqrt_len_tokens", "weightedmean", "cls"),
)


def sentence_transformers_says(hidden: np.ndarray, asked: TextPooling) -> np.ndarray:
    names = ["lasttoken" if mode == "last" else mode for mode in modes_of(asked.mode)]
    theirs = Pooling(hidden.shape[1], names, include_prompt=False)
    tokens = torch.from_numpy(hidden)[None]
    mask = torch.ones(tokens.shape[:2], dtype=torch.int64)
    features = {"token_embeddings": tokens, "attention_mask": mask}
    features["prompt_length"] = asked.first_token
    return theirs(features)["sentence_embedding"][0].numpy()


def test_pooling_by_attention_runs_on_the_host(
    siglip_checkpoint: Path, exported: Callable[..., Artifact]
) -> None:
    vision = exported(siglip_checkpoint, "siglip").vision
    assert vision is not None
    runtime, batch = Device(vision).runtime, next(samples_of(vision).similarity())
    pool = runtime.pool = TextVectors.of(vision).pool
    states, vectors = runtime.encode(
        batch, [(1, 2)], [TextPooling(0, 2, "mean"), TextPooling(1, 2, "attention")]
    )
    assert vectors[0].shape == vectors[1].shape
    state = np.asarray(states[0])
    np.testing.assert_allclose(vectors[1], pool(state, "attention", 0, ()), atol=1e-6)


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("first_token", [0, 1, 3])
def test_pooled_vectors_equal_sentence_transformers(
    runtime: BoundRuntime, layer: int, first_token: int
) -> None:
    """Every mode of every text in one call, in any order, some of them normalised."""
    batch = batch_of(LENGTHS)
    asked = [
        TextPooling(text, layer, mode, min(first_token, LENGTHS[text] - 1), unit)
        for mode, text, unit in itertools.product(MODES, (3, 0, 2, 4, 1), (0, 12, 5, 1))
    ]
    texts = range(len(LENGTHS))
    hidden, vectors = runtime.encode(batch, [(text, layer) for text in texts], asked)
    for one, vector in zip(asked, vectors, strict=True):
        expected = sentence_transformers_says(np.asarray(hidden[one.text]), one)
        if n := one.unit_features:
            expected = functional.normalize(torch.from_numpy(expected[:n]), dim=0).numpy()
        np.testing.assert_allclose(vector[: n or None], expected, atol=2e-6, rtol=0)


def test_both_ways_give_the_same(tiny_artifact: Artifact) -> None:
    """Host and device get the same request, with mixed layers and texts."""
    host, device = OnnxRuntime(tiny_artifact), Device(tiny_artifact).runtime
    batch = batch_of(LENGTHS)
    hidden = [(4, 2), (0, 0), (4, 1), (1, 2), (4, 2)]
    poolings = [
        TextPooling(0, 2, "mean", 2, 12),
        TextPooling(3, 1, "max"),
        TextPooling(0, 1, "last", 0, 4),
        TextPooling(2, 0, "cls"),
        TextPooling(4, 1, ("weightedmean", "mean_sqrt_len_tokens"), 2),
    ]
    mask = np.random.default_rng(0).random((5, 2, 3), np.float32)
    for head_mask in (None, mask):
        ours = device.encode(batch, hidden, poolings, head_mask)
        theirs = host.encode(batch, hidden, poolings, head_mask)
        for found, expected in zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True):
            assert found.shape == expected.shape
        for found, expected in zip(ours[0], theirs[0], strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
        for one, found, expected in zip(poolings, ours[1], theirs[1], strict=True):
            n = one.unit_features or None
            np.testing.assert_allclose(found[:n], expected[:n], atol=1e-5)
        for found, expected in zip(
            device.hidden_states(batch, [2, 0, 2], head_mask),
            host.hidden_states(batch, [2, 0, 2], head_mask),
            strict=True,
        ):
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_every_heads_parameters_are_brought_to_the_device_once(
    device: Device, artifact: Artifact
) -> None:
    dtype = {"fp32": "float32", "fp16": "float16"}[artifact.manifest.precision]
    of_layer = [(dtype, shape, "cuda", 1) for shape in ((3, 4, 12), (3, 4)) * 2]
    assert device.uploaded == of_layer * 2
    state = np.zeros((5, 12), np.float32)
    for layer, heads in ((0, [0, 1, 2]), (1, [2]), (1, [1, 0])):
        attention(device.runtime, state, state, layer, heads)
    assert len(device.uploaded) == 8
    tokens = (5, 12) if artifact.manifest.precision == "fp32" else (1, 5, 12)
    states = {"hidden_state": tokens, "query_rows": (5,), "key_rows": (5,)}
    for binding, n in zip(device.bindings("device_attention"), (3, 1, 2), strict=True):
        parameters = {
            f"{role}_{kind}": (n, *shape)
            for role in ("query", "key")
            for kind, shape in (("weight", (4, 12)), ("bias", (4,)))
        }
        assert binding.device_inputs == (parameters if n == 3 else {})
        assert binding.host_inputs == (states if n == 3 else states | parameters)
        assert binding.outputs == {"attention": ("cpu", 0)}


def test_pooling_alone_copies_one_small_array(device: Device) -> None:
    batch = batch_of(LENGTHS)
    poolings = [TextPooling(text, 2, "mean", 0, 12) for text in range(5)]
    device.runtime.encode(batch, [], poolings)
    (encoder,), (pooling,) = device.bindings("encoder"), device.bindings("device_pooling")
    assert encoder.outputs == {"hidden_state.2": ("cuda", 1)}
    assert set(encoder.host_inputs) == {*encoder_inputs(device)}
    assert pooling.device_inputs == {"hidden_state": (*tokens_of(encoder, LENGTHS), 12)}
    assert pooling.host_inputs["columns"] == (40,)
    assert {pooling.host_inputs[name] for name in pooling.host_inputs if name != "columns"} == {
        (5,)
    }
    assert pooling.outputs == {"vectors": ("cpu", 0)}
    assert device.copied == 1


def grid_of(encoder: Binding) -> tuple[int, ...]:
    return encoder.host_inputs.get("padded_index") or encoder.host_inputs["attention_mask"]


def tokens_of(encoder: Binding, lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the ids of these texts: packed, or a whole grid in half precision."""
    packed = "packed_index" in encoder.host_inputs
    return (sum(lengths),) if packed else grid_of(encoder)


def encoder_inputs(device: Device) -> Iterator[str]:
    return (item.name for item in device.sessions["encoder"]._real.get_inputs())


@pytest.mark.parametrize(("mode", "columns"), [("cls", 1), ("last", 1), ("mean", 9), ("max", 9)])
def test_only_the_rows_that_are_pooled_are_read(
    device: Device, mode: PoolingName, columns: int
) -> None:
    poolings = [TextPooling(0, 1, mode), TextPooling(1, 1, mode)]
    device.runtime.encode(batch_of(LENGTHS), [], poolings)
    (pooling,) = device.bindings("device_pooling")
    assert pooling.host_inputs["columns"] == (columns,)


def test_only_hidden_states_that_are_asked_for_leave_the_device(device: Device) -> None:
    hidden = [(1, 2), (0, 0), (2, 2)]
    kept, _ = device.runtime.encode(batch_of(LENGTHS), hidden, [TextPooling(4, 2, "mean")])
    states = [np.asarray(state) for state in kept]
    (encoder,) = device.bindings("encoder")
    assert encoder.outputs == {"hidden_state.0": ("cuda", 1), "hidden_state.2": ("cuda", 1)}
    rows = [binding.host_inputs["first_row"] for binding in device.bindings("device_pooling")]
    assert rows == [(1,), (4 + 1,), (9,)]  # the pooling; texts 1 and 2; text 0
    assert [state.shape for state in states] == [(4, 12), (9, 12), (1, 12)]
    assert [state.shape for state in kept] == [(4, 12), (9, 12), (1, 12)]
    assert device.copied == 3


def test_states_stay_on_the_device_for_maps(device: Device) -> None:
    batch = batch_of(LENGTHS)
    hidden = [(3, 0), (1, 0), (3, 1)]
    states, _ = device.runtime.encode(batch, hidden, [])
    for state, (_, layer) in zip(states, hidden, strict=True):
        attention(device.runtime, state, state, layer, range(3))
    assert not device.bindings("device_pooling")
    assert device.copied == 3
    (encoder,) = device.bindings("encoder")
    for binding, length in zip(device.bindings("device_attention"), (17, 4, 17), strict=True):
        assert binding.host_inputs == {"query_rows": (length,), "key_rows": (length,)}
        assert binding.device_inputs["hidden_state"] == (*tokens_of(encoder, LENGTHS), 12)


def test_states_are_kept_for_as_long_as_a_request_needs_them(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, batch = device.runtime, batch_of([8, 8])
    first, _ = runtime.encode(batch, [(0, 1), (1, 1)], [])
    (layer,) = runtime._kept
    monkeypatch.setattr(onnx_device, "MOST_KEPT_BYTES", 2 * layer.size_bytes)
    second, _ = runtime.encode(batch, [(0, 0), (1, 2)], [])
    assert [isinstance(state, np.ndarray) for state in (*first, *second)] == [False] * 3 + [True]
    del first, layer
    third, _ = runtime.encode(batch, [(1, 2)], [])
    assert not isinstance(third[0], np.ndarray)
    np.testing.assert_array_equal(third[0], second[1])


def test_a_kept_state_leaves_its_process_as_an_array(runtime: BoundRuntime) -> None:
    (state,), _ = runtime.encode(batch_of([5, 3]), [(1, 2)], [])
    found = pickle.loads(pickle.dumps(state))
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, state)


@pytest.mark.parametrize(("lengths", "columns"), [([1], 8), ([8, 3], 8), ([9], 16), ([40], 40)])
def test_the_grid_is_aligned(device: Device, lengths: list[int], columns: int) -> None:
    device.runtime.hidden_states(batch_of(lengths), [2])
    (encoder,) = device.bindings("encoder")
    assert grid_of(encoder) == (len(lengths), columns)
    assert encoder.host_inputs["input_ids"] == tokens_of(encoder, lengths)


def test_a_warm_up_computes_the_fullest_batch_of_every_length(device: Device) -> None:
    device.runtime.warm_up(100, 37)
    grids = [grid_of(binding) for binding in device.bindings("encoder")]
    assert grids == [(2, 40), (3, 32), (4, 24), (6, 16), (12, 8)]
    lengths = [[37] * 2, [32] * 3, [24] * 4, [16] * 6, [8] * 12]
    for binding, of_texts in zip(device.bindings("encoder"), lengths, strict=True):
        assert binding.host_inputs["input_ids"] == tokens_of(binding, of_texts)
    maps = [binding.host_inputs["query_rows"] for binding in device.bindings("device_attention")]
    assert maps == [(37,), (32,), (24,), (16,), (8,)]


@pytest.mark.parametrize("batch_tokens", [1, 10])
def test_a_warm_up_of_small_batches_still_has_a_text_each(
    device: Device, batch_tokens: int
) -> None:
    device.runtime.warm_up(batch_tokens, 16)
    grids = [grid_of(binding) for binding in device.bindings("encoder")]
    assert grids == [(1, 16), (1, 8)]


STICKY = RuntimeError("CUDA failure 700: an illegal memory access was encountered ; GPU=1")
MEMORY = RuntimeError("CUDA failure 2: out of memory ; GPU=1")


def ask(runtime: BoundRuntime, name: str) -> None:
    """Return a call that runs the graph with this name."""
    if name == "device_attention":
        states = np.zeros((2, 12), np.float32)
        attention(runtime, states, states, 0, [0])
    else:
        runtime.encode(batch_of([3]), [], [TextPooling(0, 2, "mean")])


@pytest.mark.parametrize("name", BoundRuntime.GRAPHS)
def test_a_lost_device_is_noticed_and_stays_lost(device: Device, name: str) -> None:
    session = device.sessions[name]  # type: ignore[index]
    assert device.runtime.alive
    session.error = STICKY
    with pytest.raises(DeviceLostError) as caught:
        ask(device.runtime, name)
    assert caught.value.__cause__ is STICKY
    assert "illegal" not in str(caught.value)
    assert not device.runtime.alive
    session.error = None
    runs = len(session.bindings)
    for graph in BoundRuntime.GRAPHS:
        with pytest.raises(DeviceLostError):
            ask(device.runtime, graph)
    with pytest.raises(DeviceLostError):
        device.runtime.hidden_states(batch_of([3]), [2])
    assert len(session.bindings) == runs
    assert not device.runtime.alive


@pytest.mark.parametrize("name", BoundRuntime.GRAPHS)
def test_memory_that_ran_out_is_not_for_ever(device: Device, name: str) -> None:
    device.sessions[name].error = MEMORY  # type: ignore[index]
    with pytest.raises(RuntimeError, match="out of memory"):
        ask(device.runtime, name)
    assert device.runtime.alive
    device.sessions[name].error = None  # type: ignore[index]
    ask(device.runtime, name)


@pytest.mark.gpu
def test_cuda_is_within_tolerance_of_the_cpu(artifact: Artifact) -> None:
    if not torch.cuda.is_available() and not Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has no GPU")
    on_gpu, on_cpu = load_runtime(artifact, Resources("cuda")), load_runtime(artifact)
    assert on_gpu.provider == "CUDAExecutionProvider"
    tolerances = TOLERANCES[artifact.manifest.precision]
    batch = batch_of(LENGTHS)
    on_gpu.warm_up(64, 40)
    found, expected = (one.hidden_states(batch, range(3)) for one in (on_gpu, on_cpu))
    for ours, theirs in zip(found, expected, strict=True):
        assert difference(theirs, ours, tolerances["hidden"]).passed
    for rows in rows_of(batch):
        maps = [
            attention(one, expected[1][rows], expected[1][rows], 1, [2, 0])
            for one in (on_cpu, on_gpu)
        ]
        assert difference(*maps, tolerances["attention"]).passed


@pytest.mark.slow
def test_the_tolerances_hold_where_every_step_is_rounded(minilm_checkpoint: Path) -> None:
    """A CPU computes half-precision graphs partly in float32; PyTorch here rounds every tensor."""
    encoder = load_checkpoint(minilm_checkpoint)
    half = load_checkpoint(minilm_checkpoint).half()
    ids = torch.randint(1000, 30000, (4, 128), generator=torch.Generator().manual_seed(0))
    batch = pack(
        [(row[:n].numpy(), np.zeros(n)) for row, n in zip(ids, (128, 64, 9, 2), strict=True)]
    )
    with torch.inference_mode():
        exact, found = (
            one(PackedBatch.of(batch), output_attentions=True) for one in (encoder, half)
        )
    for row, rows in enumerate(rows_of(batch)):
        expected, rounded = (tensors_of(output, row, rows) for output in (exact, found))
        for key, reference in expected.items():
            assert difference(reference, rounded[key], TOLERANCES["fp16"][key.kind]).passed, key


def tensors_of(output: EncoderOutput, text: int, rows: slice) -> dict[Key, np.ndarray]:
    hidden = [state[rows].float().numpy() for state in output.hidden_states]
    s = rows.stop - rows.start
    maps = [weights[text, :, :s, :s].float().numpy() for weights in output.attentions]
    return keyed(hidden, np.stack(maps), lambda state: l2_normalize(pool(state, "mean")))


@pytest.mark.slow
@pytest.mark.nightly
def test_a_real_model_passes_with_room_to_spare(minilm: Callable[[Precision], Artifact]) -> None:
    record = minilm("fp16").manifest.verification
    assert record.passed
    assert record.min_cosine == dict.fromkeys(("hidden", "attention", "values", "pooled"), 1.0)
    assert record.max_abs_diff_below["pooled"] <= 1e-3


@pytest.mark.slow
@pytest.mark.nightly
def test_vectors_of_sentences_hardly_change(
    sts_vectors: Callable[[Precision], np.ndarray], sts_pairs: list[sts.Pair]
) -> None:
    """The least cosine is 0.999999, and Spearman's correlation 0.001 more."""
    half, exact = sts_vectors("fp16"), sts_vectors("fp32")
    assert (half * exact).sum(axis=1).min() >= 0.99999
    assert sts.spearman(half, sts_pairs) == pytest.approx(sts.spearman(exact, sts_pairs), abs=0.02)
