"""Every engine gives equal results for equal tasks, in any batch."""

from __future__ import annotations

import concurrent.futures
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.special import softmax

from model.artifact.decomposition import DecompositionStep
from model.artifact.manifest import Artifact
from model.checkpoint import load_checkpoint
from model.config.encoder import EncoderConfig
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.runtimes.contract import HostRuntime
from model.runtimes.pytorch import PyTorchRuntime
from model.tasks.checkpoint import load_task_head
from model.tasks.head import scores_of_text
from service.engines.contract import (
    DecomposeTask,
    Engine,
    Floats,
    MapsTask,
    Output,
    Pooling,
    Task,
    TextTask,
)
from service.engines.onnx import OnnxEngine
from service.engines.process import TorchEngine
from service.engines.runtime import RuntimeEngine, head_mask
from service.errors import EngineFailed
from service.scheduler.outputs import check_outputs, requested
from tests.model.runtimes.test_onnx_device import Device
from tests.model.task_checkpoints import write_sparse_checkpoint, write_task_checkpoint
from tests.service.harness import CONFIG, assert_same, text

ASKED: list[dict[str, Any]] = [
    {"hidden_layers": (0,)},
    {"hidden_layers": (2, 0, 1)},
    {"pooling": Pooling(2, "mean")},
    {"pooling": Pooling(0, "max")},
    {"pooling": Pooling(1, "cls")},
    {"pooling": Pooling(2, "last")},
    {"pooling": Pooling(2, "mean", first_token=3)},
    {"layer": 0, "heads": (0, 1)},
    {"layer": 1, "heads": (1,)},
    {"layer": 1, "heads": (1, 0)},
    {"hidden_layers": (1,), "pooling": Pooling(0, "mean")},
    {"hidden_layers": (2, 1), "pooling": Pooling(2, "cls"), "ablated": ((0, 1), (1, 0))},
    {"hidden_layers": (2,), "ablated": ((1, 1),)},
]
HIDDEN_SIZE = 128


def tasks(lengths: list[int]) -> list[Task]:
    """Return tasks of texts with two segments and of maps, with different requests."""
    found: list[Task] = []
    for number, length in enumerate(lengths):
        asked, rng = ASKED[number % len(ASKED)], np.random.default_rng(number)
        if "layer" in asked:
            hidden = rng.standard_normal((length, HIDDEN_SIZE), np.float32)
            found.append(MapsTask(hidden, hidden, **asked))
        else:
            ids = rng.integers(999, 30522, length)
            segments = (np.arange(length) >= length // 2).astype(np.int64)
            found.append(TextTask(ids, segments, **asked))
    return found


MIXED = tasks([5, 9, 4, 12, 3, 7, 6, 40, 4, 511, 8, 7, 9, 1, 2, 6, 3, 5, 4, 8, 6, 1, 1])


def assert_close(found: Output, wanted: Output, atol: float) -> None:
    assert len(found.hidden) == len(wanted.hidden)
    pairs = [
        *zip(found.hidden, wanted.hidden, strict=True),
        (found.pooled, wanted.pooled),
        (found.maps, wanted.maps),
    ]
    for one, other in pairs:
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, other, atol=atol, rtol=0, strict=True)


@pytest.fixture(params=["onnx", pytest.param("torch", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(f"{request.param}_engine")
    return found


def test_both_engines_agree(onnx_engine: OnnxEngine, torch_engine: TorchEngine) -> None:
    for found, wanted in zip(onnx_engine.run(MIXED), torch_engine.run(MIXED), strict=True):
        assert_close(found, wanted, atol=2e-5)


def test_states_come_in_the_order_of_the_request(engine: Engine) -> None:
    everything, some = text(9, hidden_layers=(0, 1, 2)), text(9, hidden_layers=(2, 0))
    whole, part = engine.run([everything, some])
    for found, wanted in zip(part.hidden, [whole.hidden[2], whole.hidden[0]], strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_states_for_maps_come_in_the_order_of_layers(engine: Engine) -> None:
    asked = text(9, hidden_layers=(1,), map_layers=(2, 0)), text(5, hidden_layers=(0, 2))
    first, second = engine.run(asked)
    (every,) = engine.run([text(9, hidden_layers=(0, 1, 2))])
    check_outputs(asked, [first, second], engine.hidden_size)
    assert (len(first.hidden), len(second.hidden), second.map_states) == (1, 2, [])
    for found, layer in ((first.hidden[0], 1), *zip(first.map_states, (2, 0), strict=True)):
        np.testing.assert_allclose(found, every.hidden[layer], atol=1e-5)


def test_states_for_maps_stay_on_a_device(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    device = Device(artifact)
    engine, heads = RuntimeEngine("onnx", device.runtime, 1), (0, 1)
    asked = [text(9, pooling=None, map_layers=(0, 1)), text(5, pooling=None, map_layers=(1,))]
    outputs = engine.run(asked)
    check_outputs(asked, outputs, engine.hidden_size)
    states = outputs[0].map_states
    tasks = [MapsTask(state, state, layer, heads) for layer, state in enumerate(states)]
    found = engine.run(tasks)
    assert not device.bindings("device_pooling")
    assert device.copied == 2  # maps alone
    (expected,) = onnx_engine.run([text(9, map_layers=(0, 1))])
    for layer, (maps, state) in enumerate(zip(found, expected.map_states, strict=True)):
        asked_of = MapsTask(state, state, layer, heads)
        assert_close(maps, onnx_engine.run([asked_of])[0], atol=1e-5)
    for state in engine.compute(asked)[0].map_states:
        assert isinstance(state, np.ndarray)
    with pytest.raises(EngineFailed, match="wrong shape"):
        check_outputs([text(8, map_layers=(0, 1))], outputs[:1], engine.hidden_size)
    of_values = [
        one.run([MapsTask(state, state, 1, heads, values=True)])[0].value_products
        for one, state in ((engine, states[1]), (onnx_engine, expected.map_states[1]))
    ]
    np.testing.assert_allclose(*of_values, rtol=1e-4)


@pytest.mark.parametrize("layer", [0, 1])
def test_heads_come_in_the_order_of_the_request(engine: Engine, layer: int) -> None:
    """The softmax of their scores are the maps: they are BERT's, of dot products."""
    hidden = engine.run([text(9, 1, hidden_layers=(layer,))])[0].hidden[0]
    orders = (0, 1), (1, 0), (1,)
    outputs = engine.run(
        [MapsTask(hidden, hidden, layer, heads, values=True, scores=True) for heads in orders]
    )
    maps, products, compared = (
        [requested(getattr(output, name)) for output in outputs]
        for name in ("maps", "value_products", "head_scores")
    )
    assert maps[0].shape == (2, 9, 9)
    for scores, weights in zip(compared, maps, strict=True):
        np.testing.assert_allclose(softmax(scores.scores, axis=-1), weights, atol=1e-5)
        expected = scores.queries @ scores.keys.transpose(0, 2, 1)
        expected /= scores.queries.shape[-1] ** 0.5
        np.testing.assert_allclose(scores.scores, expected, atol=1e-5)
    atol = 1e-6 * np.abs(products[0]).max()
    for n, part in ((1, np.s_[::-1]), (2, np.s_[1:])):
        np.testing.assert_allclose(maps[n], maps[0][part], atol=1e-6, strict=True)
        of_pairs = products[0][:, part, part]
        np.testing.assert_allclose(products[n], of_pairs, atol=atol, strict=True)
        of_heads = compared[0].queries[part]
        np.testing.assert_allclose(compared[n].queries, of_heads, atol=1e-6, strict=True)
    (alone,) = engine.run([MapsTask(hidden, hidden, layer, (0,))])
    assert (alone.value_products, alone.head_scores) == (None, None)


def test_both_kinds_share_a_batch(engine: Engine) -> None:
    texts = [text(6, seed, hidden_layers=(1,)) for seed in range(3)]
    hidden = [engine.run([task])[0].hidden[0] for task in texts]
    maps = [MapsTask(states, states, 1, (seed % 2,)) for seed, states in enumerate(hidden)]
    mixed = [task for pair in zip(maps, texts, strict=True) for task in pair]
    outputs = engine.run(mixed)
    for task, output in zip(mixed, outputs, strict=True):
        assert_close(output, engine.run([task])[0], atol=1e-5)
        assert (output.maps is None) == isinstance(task, TextTask)
    with pytest.raises(AssertionError):
        assert_close(outputs[0], outputs[2], atol=1e-5)


def test_a_decomposition_shares_a_batch_with_others(engine: Engine, artifact: Artifact) -> None:
    rng = np.random.default_rng(1)
    states = rng.standard_normal((6, HIDDEN_SIZE), np.float32)
    step = DecompositionStep(np.stack([states, states], axis=1), -1)
    task, other = DecomposeTask(step, 3), text(6, 1, hidden_layers=(1,))
    found, beside, maps = engine.run([task, other, MapsTask(states, states, 0, (1,))])
    assert_close(beside, engine.run([other])[0], atol=1e-5)
    assert maps.maps is not None
    assert found.decomposed is not None
    assert found.decomposed.values is not None
    weights = load_file(artifact.path("weights.safetensors"))
    prefix = "layers.0.attention.value"
    expected = states @ weights[f"{prefix}.weight"].T + weights[f"{prefix}.bias"]
    for part in (0, 1):
        values = found.decomposed.values[:, :, part].swapaxes(0, 1).reshape(6, HIDDEN_SIZE)
        np.testing.assert_allclose(values, expected, atol=1e-5)


def test_ablation_is_of_its_own_text_alone(engine: Engine) -> None:
    ablations: list[tuple[tuple[int, int], ...]] = [
        (),
        ((0, 0),),
        ((0, 1),),
        ((1, 0),),
        ((1, 1), (0, 0)),
        ((0, 0), (0, 1), (1, 0), (1, 1)),
    ]
    states = [
        engine.run([text(9, hidden_layers=(0, 1, 2), ablated=ablated)])[0].hidden
        for ablated in ablations
    ]
    together = engine.run([text(9, hidden_layers=(0, 1, 2), ablated=one) for one in ablations])
    for ablated, alone, output in zip(ablations, states, together, strict=True):
        for layer, (found, wanted) in enumerate(zip(output.hidden, alone, strict=True)):
            np.testing.assert_allclose(found, wanted, atol=1e-5)
            untouched = all(layer <= of_layer for of_layer, _ in ablated)
            apart = np.abs(wanted - states[0][layer]).max()
            assert (apart == 0) if untouched else (apart > 1e-3)
    assert head_mask([(), ()], CONFIG) is None


def test_company_does_not_matter(engine: Engine) -> None:
    together = engine.run(MIXED)
    shuffled = list(enumerate(MIXED))
    random.Random(0).shuffle(shuffled)
    reordered = engine.run([task for _, task in shuffled])
    for (index, task), output in zip(shuffled, reordered, strict=True):
        (alone,) = engine.run([task])
        assert_close(together[index], alone, atol=1e-5)
        assert_close(output, alone, atol=1e-5)
        if alone.maps is not None:
            np.testing.assert_allclose(alone.maps.sum(axis=-1), 1, atol=1e-4)


def test_pooling_is_over_the_texts_own_tokens(engine: Engine) -> None:
    long = text(60, 1)
    for mode, first in [("mean", 0), ("max", 0), ("last", 0), ("cls", 0), ("mean", 4)]:
        asked = TextTask(
            text(7).input_ids,
            text(7).segment_ids,
            hidden_layers=(2,),
            pooling=Pooling(2, mode, first),  # type: ignore[arg-type]
        )
        output = engine.run([long, asked])[1]
        states = output.hidden[0][first:]
        wanted = {
            "mean": states.mean(axis=0),
            "max": states.max(axis=0),
            "last": states[-1],
            "cls": states[0],
        }
        assert output.pooled is not None
        np.testing.assert_allclose(output.pooled, wanted[mode], atol=1e-6)


def test_a_batch_that_fails_leaves_the_next_one_right(engine: Engine) -> None:
    impossible = TextTask(np.array([10**6]), np.zeros(1, np.int64), hidden_layers=(0,))
    (before,) = engine.run([MIXED[0]])
    with pytest.raises(EngineFailed, match="failed") as failed:
        engine.run([MIXED[0], impossible])
    assert "1000000" not in str(failed.value)
    (after,) = engine.run([MIXED[0]])
    assert_same(after, before)


def test_threads_get_their_own_answers(engine: Engine) -> None:
    alone = [engine.run([task])[0] for task in MIXED]

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(4):
            chosen = chance.sample(
                [index for index, task in enumerate(MIXED) if task.tokens < 50], 3
            )
            outputs = engine.run([MIXED[index] for index in chosen])
            for index, output in zip(chosen, outputs, strict=True):
                assert_close(output, alone[index], atol=1e-5)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


class Keeping(HostRuntime):
    """Runtime that counts the releases of its memory."""

    provider = "none"
    released = 0

    def __init__(self, config: EncoderConfig) -> None:
        self.config = config

    def hidden_states(self, *_: object) -> list[Floats]:
        raise NotImplementedError

    def release_memory(self) -> None:
        self.released += 1


def test_memory_is_released_unless_the_device_is_lost(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Keeping(artifact.manifest.config)
    engine = RuntimeEngine("onnx", runtime, 1)
    engine.release_memory()
    monkeypatch.setattr(Keeping, "alive", False)
    engine.release_memory()
    assert runtime.released == 1


IDS = [np.random.default_rng(n).integers(5, 60, n) for n in (3, 9, 1, 30, 5)]


def ranking(folder: Path) -> Path:
    return write_task_checkpoint(folder, family="ModernBert", num_labels=2)


def tagging(folder: Path) -> Path:
    return write_task_checkpoint(folder, "ForTokenClassification")


@pytest.mark.parametrize("write", [ranking, tagging, write_sparse_checkpoint])
def test_scores_stand_beside_all_that_can_be_asked(tmp_path: Path, write: object) -> None:
    assert callable(write)
    folder = write(tmp_path / "checkpoint")
    encoder = load_checkpoint(folder)
    head = load_task_head(folder, encoder)
    assert head is not None
    shapes = [head.config.shape(len(ids)) for ids in IDS]
    texts = [
        TextTask(IDS[0], IDS[0] * 0, scores=shapes[0]),
        TextTask(IDS[1], IDS[1] * 0, (1, 2), Pooling(2, "max")),
        TextTask(IDS[2], IDS[2] * 0, (0,), Pooling(1, "mean"), scores=shapes[2]),
        TextTask(IDS[3], IDS[3] * 0, scores=shapes[3]),
        TextTask(IDS[4], IDS[4] * 0, (2,)),
    ]
    states = np.zeros((2, 12), np.float32)
    tasks = [*texts[:2], MapsTask(states, states, 0, (1,)), *texts[2:]]
    engine = RuntimeEngine("torch", PyTorchRuntime(encoder, head), concurrency=1)
    outputs = engine.run(tasks)
    check_outputs(tasks, outputs, engine.hidden_size)
    for task, output in zip(texts, [*outputs[:2], *outputs[3:]], strict=True):
        batch = PackedBatch.of(pack([(task.input_ids, task.segment_ids)]))
        with torch.inference_mode():
            hidden = encoder(batch).hidden_states
        for layer, found in zip(task.hidden_layers, output.hidden, strict=True):
            np.testing.assert_allclose(found, hidden[layer].numpy(), atol=1e-5)
        if task.pooling and task.pooling.mode == "max":
            largest = hidden[2].amax(dim=0).numpy()
            np.testing.assert_allclose(output.pooled, largest, atol=1e-5)
        assert (output.scores is None) == (not task.scores)
        if output.scores is not None:
            expected = scores_of_text(head, hidden[-1])
            np.testing.assert_allclose(output.scores, expected, atol=1e-4)


def test_an_encoder_alone_leaves_scores_out(onnx_engine: OnnxEngine) -> None:
    task = TextTask(IDS[0], IDS[0] * 0, (0,), scores=(3,))
    with pytest.raises(EngineFailed, match="left out"):
        check_outputs([task], onnx_engine.run([task]), onnx_engine.hidden_size)
