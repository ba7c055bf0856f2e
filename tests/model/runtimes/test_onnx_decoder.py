"""Decoders on ONNX Runtime, on host and device, against transformers and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from model.artifact.manifest import GRAPHS, Artifact
from model.export.tensors import runtime_targets, shifted
from model.numerics.batch import pack
from model.numerics.comparison import TargetTensors
from model.runtimes.bound import Place
from model.runtimes.capabilities import Decoder, capability
from model.runtimes.contract import Decoding, Heads, Runtime
from model.runtimes.host_graphs import DECODER_GRAPHS, GraphDecoder
from model.runtimes.onnx import OnnxRuntime
from model.runtimes.onnx_device import BoundRuntime
from model.runtimes.registry import load_runtime
from tests.model.encoder_decoders import PAIRS, assert_equal, pairs, transformers_says

Made = list[tuple[list[np.ndarray], TargetTensors]]


def on_device(artifact: Artifact) -> BoundRuntime:
    """Load the runtime with the device code, on a CPU."""
    sessions: dict[Any, Any] = {
        name: onnxruntime.InferenceSession(
            artifact.path(GRAPHS[name]), providers=["CPUExecutionProvider"]
        )
        for name in (*BoundRuntime.GRAPHS, *DECODER_GRAPHS)
    }
    upload = onnxruntime.OrtValue.ortvalue_from_numpy
    return BoundRuntime(artifact, sessions, upload, Place("cpu"))


RUNTIMES: dict[str, Callable[[Artifact], Runtime]] = {
    "host": lambda artifact: OnnxRuntime(artifact, threads=2),
    "device": on_device,
    "pytorch": lambda artifact: load_runtime(artifact, name="pytorch"),
}


def decoder_of(runtime: Runtime) -> Decoder:
    return capability(runtime, Decoder)


def made(runtime: Runtime, lengths: list[tuple[int, int]]) -> Made:
    """Return each text's hidden states and its target's tensors, all in one pass of each."""
    texts = pairs(lengths)
    source = pack([(ids, np.zeros_like(ids)) for ids, _ in texts])
    last = runtime.config.num_hidden_layers
    asked = [(text, layer) for text in range(len(texts)) for layer in range(last + 1)]
    states = [np.asarray(state) for state in runtime.encode(source, asked, [])[0]]
    own = [states[n * (last + 1) : (n + 1) * (last + 1)] for n in range(len(texts))]
    labels = [labels for _, labels in texts]
    found = runtime_targets(decoder_of(runtime), source, [each[-1] for each in own], labels)
    return list(zip(own, found, strict=True))


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_tensor_is_transformers(translator: tuple[Path, Artifact], name: str) -> None:
    """The batch mixes lengths; transformers computes each pair alone."""
    checkpoint, artifact = translator
    runtime = RUNTIMES[name](artifact)
    heads = range(runtime.config.num_attention_heads)
    for pair, (states, target) in zip(pairs(PAIRS), made(runtime, PAIRS), strict=True):
        expected = transformers_says(checkpoint, *pair)
        for found, theirs in zip(states, expected.encoded, strict=True):
            atol = 1e-4 * max(1, np.abs(theirs).max())
            np.testing.assert_allclose(found, theirs, atol=atol, rtol=0)
        for layer, theirs in enumerate(expected.encoder_maps):
            found = capability(runtime, Heads).attention(states[layer], states[layer], layer, heads)
            np.testing.assert_allclose(found, theirs, atol=1e-5, rtol=0)
        assert_equal(target, expected)


@pytest.mark.slow
@pytest.mark.nightly
def test_half_precision_is_within_its_tolerance(
    exported: Callable[..., Artifact], encoder_decoders: Callable[[str], Path]
) -> None:
    checkpoint = encoder_decoders("bart")
    runtime = load_runtime(exported(checkpoint, "bart", "fp16"))
    for pair, (_, target) in zip(pairs(PAIRS), made(runtime, PAIRS), strict=True):
        expected = transformers_says(checkpoint, *pair)
        np.testing.assert_allclose(target.cross_maps, expected.cross_maps, atol=0.02)
        np.testing.assert_allclose(target.maps, expected.maps, atol=0.02)
        np.testing.assert_allclose(target.logprobs, expected.logprobs, atol=0.05, rtol=0.01)
        np.testing.assert_allclose(target.hidden, np.stack(expected.hidden), atol=0.05)
        assert target.hidden.dtype == np.float32
        assert np.abs(target.hidden - np.stack(expected.hidden)).max() > 1e-5


def decoding(runtime: Runtime, **asked: Any) -> Decoding:
    """Return a decoding of the pairs, over random states."""
    texts, config = pairs(PAIRS), runtime.config
    source = pack([(ids, np.zeros_like(ids)) for ids, _ in texts])
    shape = (len(source.input_ids), config.hidden_size)
    encoded = np.random.default_rng(0).standard_normal(shape, np.float32)
    return Decoding(
        source,
        encoded,
        shifted([labels for _, labels in texts], decoder_of(runtime).config),
        **asked,
    )


def test_masks_multiply_what_heads_give(bart_artifact: Artifact) -> None:
    """As in PyTorch; masking one kind of heads changes everything that follows."""
    runtimes = [make(bart_artifact) for make in RUNTIMES.values()]
    masks = np.random.default_rng(1).random((2, len(PAIRS), 2, 3), np.float32)
    asked = {"states": [(2, 2), (0, 1), (3, 0)], "cross": [(1, 1), (2, 0)]}
    plain = decoder_of(runtimes[0]).decode(decoding(runtimes[0], **asked))
    for own, cross in ((masks[0], None), (None, masks[1]), (masks[0], masks[1])):
        answers = []
        for runtime in runtimes:
            given = decoding(runtime, **asked, head_mask=own, cross_head_mask=cross)
            answers.append(decoder_of(runtime).decode(given))
        for states, queries in answers:
            assert [each.shape for each in states] == [(12, 24), (4, 24), (6, 24)]
            assert [each.shape for each in queries] == [(1, 24), (12, 24)]
            for found, expected in zip(
                [*states, *queries], [*answers[0][0], *answers[0][1]], strict=True
            ):
                np.testing.assert_allclose(found, expected, atol=2e-5)
        assert np.abs(answers[0][0][0] - plain[0][0]).max() > 1e-2
        np.testing.assert_array_equal(answers[0][0][2], plain[0][2])


def test_a_warm_up_computes_the_fullest_batch_of_targets(
    bart_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, seen = on_device(bart_artifact), []
    decode = GraphDecoder.decode

    def follow(self: GraphDecoder, asked: Decoding) -> Any:
        seen.append((asked.source.padded_index.shape, asked.target.padded_index.shape))
        return decode(self, asked)

    monkeypatch.setattr(GraphDecoder, "decode", follow)
    runtime.warm_up(100, 12)
    runtime.warm_up(10, 48)
    assert seen == [((4, 12), (4, 12)), ((1, 48), (1, 48))]


def test_nothing_is_computed_of_what_nobody_asks_for(bart_artifact: Artifact) -> None:
    runtime = OnnxRuntime(bart_artifact)
    assert decoder_of(runtime).decode(decoding(runtime)) == ([], [])


def test_rows_are_scored_some_at_a_time(
    bart_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).standard_normal((11, 24), np.float32)
    labels = np.arange(11) * 5
    whole = decoder_of(OnnxRuntime(bart_artifact)).logprobs(rows, labels)
    for module in ("host_graphs", "pytorch"):
        monkeypatch.setattr(f"model.runtimes.{module}.LOGITS", 4 * 60)
    for make in RUNTIMES.values():
        np.testing.assert_allclose(
            decoder_of(make(bart_artifact)).logprobs(rows, labels), whole, atol=1e-5
        )


def test_every_session_releases_its_arena(bart_artifact: Artifact) -> None:
    runtime = OnnxRuntime(bart_artifact, threads=2)
    source = pack([(np.arange(5), np.zeros(5, np.int64))])
    before = runtime.hidden_states(source, [1])
    runtime.release_memory()
    assert np.array_equal(runtime.hidden_states(source, [1]), before)
