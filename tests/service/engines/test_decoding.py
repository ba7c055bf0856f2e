"""Targets through an engine equal transformers', in any batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.config.decoder import DecoderConfig
from model.numerics.comparison import Key
from model.runtimes.registry import load_runtime
from service.engines.contract import Engine, Output, Pooling, Target, TargetOutput, TextTask
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.engines.runtime import RuntimeEngine
from service.engines.whole_texts import target_tensors, whole_maps, whole_task, whole_tensors
from service.errors import EngineFailed
from service.scheduler.outputs import check_outputs, requested
from tests.model.encoder_decoders import PAIRS, assert_equal, pairs, transformers_says
from tests.service.harness import CONFIG, text

MADE = {
    "onnx": lambda artifact: OnnxEngine(artifact, threads=2),
    "torch": lambda artifact: RuntimeEngine("torch", load_runtime(artifact, name="pytorch"), 1),
}


@pytest.fixture(scope="module", params=MADE)
def engine(request: pytest.FixtureRequest, bart_artifact: Artifact) -> Engine:
    make: Callable[[Artifact], Engine] = MADE[request.param]
    return make(bart_artifact)


def tasks(**asked: object) -> list[TextTask]:
    """Return the tasks of pairs, each with requests about its target."""
    found = []
    for ids, labels in pairs(PAIRS):
        target = Target(labels, **asked)  # type: ignore[arg-type]
        found.append(TextTask(ids, np.zeros_like(ids), (0, 1), target=target))
    return found


def answered(engine: Engine, asked: list[TextTask]) -> list[Output]:
    outputs = engine.run(asked)
    check_outputs(asked, outputs, engine.hidden_size)
    return outputs


def of_target(output: Output) -> TargetOutput:
    assert output.target is not None
    return output.target


def test_everything_is_transformers(
    engine: Engine, bart_artifact: Artifact, encoder_decoders: Callable[[str], Path]
) -> None:
    """The batch also holds texts without a target."""
    manifest = bart_artifact.manifest
    whole = [
        whole_task(manifest, ids, np.zeros_like(ids), None, labels) for ids, labels in pairs(PAIRS)
    ]
    plain = [replace(task, target=None, pooling=Pooling(1, "mean")) for task in whole]
    outputs = answered(engine, [each for both in zip(plain, whole, strict=True) for each in both])
    assert all(output.target is None for output in outputs[::2])
    for pair, output in zip(pairs(PAIRS), outputs[1::2], strict=True):
        of_decoder = [task for task in whole_maps(output, manifest, 0) if task.kind != "encoder"]
        maps = [requested(each.maps) for each in engine.run(of_decoder)]
        found = target_tensors(of_target(output), maps)
        assert_equal(found, transformers_says(encoder_decoders("bart"), *pair))


def test_each_target_has_what_it_asks_for_and_in_its_order(engine: Engine) -> None:
    whole = [
        of_target(each)
        for each in answered(
            engine, tasks(hidden_layers=(0, 1, 2), cross_layers=(0, 1), logprobs=True)
        )
    ]
    selections: list[dict[str, object]] = [
        {"hidden_layers": (2, 0)},
        {},
        {"cross_layers": (1, 0), "logprobs": True},
        {"logprobs": True, "hidden_layers": (2,)},
    ]
    mixed = [tasks(**asked)[n] for n, asked in enumerate(selections)]
    found = [of_target(each) for each in answered(engine, mixed)]
    expected = [
        TargetOutput([whole[0].hidden[2], whole[0].hidden[0]]),
        TargetOutput(),
        TargetOutput([], whole[2].cross[::-1], whole[2].logprobs),
        TargetOutput([whole[3].hidden[2]], [], whole[3].logprobs),
    ]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        if ours.logprobs is not None and theirs.logprobs is not None:
            np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=2e-5)
        for one, other in zip(
            [*ours.hidden, *ours.cross], [*theirs.hidden, *theirs.cross], strict=True
        ):
            np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("kind", ["ablated", "cross_ablated"])
def test_ablation_is_of_its_own_target_and_from_its_layer_on(engine: Engine, kind: str) -> None:
    asked = {"hidden_layers": (0, 1, 2), "cross_layers": (0, 1)}
    plain = tasks(**asked)[0]
    ablated = tasks(**asked, **{kind: ((1, 2),)})[0]
    together = [of_target(each) for each in answered(engine, [plain, ablated, plain])]
    alone = of_target(answered(engine, [ablated])[0])
    for found, expected in zip(together[1].hidden, alone.hidden, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)
    for layer in (0, 1):
        np.testing.assert_allclose(together[1].hidden[layer], together[0].hidden[layer], atol=2e-5)
    assert np.abs(together[1].hidden[2] - together[0].hidden[2]).max() > 1e-3
    np.testing.assert_allclose(together[2].hidden[2], together[0].hidden[2], atol=2e-5)
    # queries of cross-attention come after self-attention and before cross-attention
    apart = np.abs(together[1].cross[1] - together[0].cross[1]).max()
    assert (apart > 1e-3) == (kind == "ablated")


def test_an_ablated_head_of_the_encoder_reaches_the_decoder(engine: Engine) -> None:
    plain = tasks(hidden_layers=(0, 2))[0]
    both = answered(engine, [plain, replace(plain, ablated=((0, 1),))])
    states = [of_target(each).hidden for each in both]
    np.testing.assert_allclose(states[0][0], states[1][0], atol=1e-6)
    assert np.abs(states[0][1] - states[1][1]).max() > 1e-3


def test_an_encoder_alone_has_no_targets(onnx_engine: OnnxEngine) -> None:
    asked = text(4, target=Target(np.zeros(2, np.int64)), hidden_layers=(0,))
    with pytest.raises(EngineFailed, match="ModelError"):
        onnx_engine.run([asked])


def test_a_whole_text_has_every_tensor() -> None:
    engine, decoder = FakeEngine(CONFIG), DecoderConfig(layers=CONFIG, start_token_id=0)
    manifest: Any = SimpleNamespace(config=CONFIG, decoder=decoder, task=None)
    ids, h = np.arange(5), CONFIG.hidden_size
    (output,) = engine.run([whole_task(manifest, ids, ids, None, np.arange(3))])
    tasks = whole_maps(output, manifest, segment=1)
    assert [(each.kind, each.layer, each.segment) for each in tasks] == [
        *(("encoder", 0, 1), ("encoder", 1, 1)),
        *(("decoder", 0, 0), ("decoder", 1, 0), ("cross", 0, 0), ("cross", 1, 0)),
    ]
    maps = engine.run(tasks)
    found = whole_tensors(output, maps, manifest, lambda states: states[0])
    shapes = {key: tensor.shape for key, tensor in found.items()}
    assert shapes == {
        **{Key("hidden", layer): (5, h) for layer in range(3)},
        **{Key("attention", layer, head): (5, 5) for layer in (0, 1) for head in (0, 1)},
        Key("pooled"): (h,),
        **{Key("decoder_hidden", layer): (3, h) for layer in range(3)},
        **{Key("cross_queries", layer): (3, h) for layer in (0, 1)},
        **{Key("decoder_attention", layer, head): (3, 3) for layer in (0, 1) for head in (0, 1)},
        **{Key("cross_attention", layer, head): (3, 5) for layer in (0, 1) for head in (0, 1)},
        Key("logprobs"): (3,),
    }
    cross = requested(engine.expected(tasks[5]).maps)
    np.testing.assert_array_equal(found[Key("cross_attention", 1, 1)], cross[1])
    with pytest.raises(ValueError, match="not computed whole"):
        whole_tensors(output, maps[:-1], manifest, lambda states: states[0])
