"""Runtimes, their conformance to the contract, and capabilities that artifacts declare."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from model.artifact.manifest import Artifact, Manifest, RuntimeName
from model.artifact.signature import MapKind
from model.checkpoint import load_checkpoint
from model.config.precision import Precision
from model.encoder.encoder import LayerStack
from model.errors import ArtifactError, ModelError
from model.export.serving import serving_copy
from model.export.static_embedding import export_static
from model.export.verify import verify
from model.families.registry import parse_config
from model.numerics.batch import pack
from model.numerics.comparison import TOLERANCES, difference
from model.numerics.pooling import TextPooling, l2_normalize
from model.packing import PackedBatch
from model.runtimes import capabilities
from model.runtimes.capabilities import (
    Decoder,
    Decomposition,
    TaskHead,
    capability,
    declared,
    find,
    lacking,
    lacking_weights,
)
from model.runtimes.contract import Floats, Heads, Runtime, every_head
from model.runtimes.onnx_device import BoundRuntime, sets_of
from model.runtimes.pytorch import PyTorchRuntime, with_merged_layers
from model.runtimes.registry import RUNTIMES, load_runtime
from tests.model.checkpoints import TINY
from tests.model.families.parity import texts_of
from tests.model.jina_v3 import Reference, write_published
from tests.model.runtimes.test_onnx import LENGTHS, batch_of, rows_of, transformers_says
from tests.model.static_checkpoints import write_static

N, H = 3, 12


def test_every_runtime_is_registered() -> None:
    assert set(RUNTIMES) == set(get_args(RuntimeName))


def test_the_registry_imports_no_runtime() -> None:
    program = (
        "import sys, model.runtimes.registry\n"
        "print({'torch', 'onnx', 'onnxruntime', 'openvino'}.intersection(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "set()\n"


@pytest.fixture
def precision(request: pytest.FixtureRequest, runtime: Runtime) -> Precision:
    """Return the precision of the runtime's artifact."""
    names: dict[str, Precision] = {"fp16": "fp16", "bf16": "bf16", "int8": "int8"}
    return names.get(request.node.callspec.params["runtime"], "fp32")


def maps_of_torch(checkpoint: Path, layer: int, queries: Floats, keys: Floats) -> Floats:
    """Return the weights of torch's own module for a layer's projections, `[N, T, S]`."""
    stored = load_file(checkpoint / "model.safetensors")
    prefix = f"encoder.layer.{layer}.attention.self"
    reference = torch.nn.MultiheadAttention(H, N, batch_first=True)
    with torch.no_grad():
        for index, role in enumerate(("query", "key")):
            rows = slice(index * H, (index + 1) * H)
            reference.in_proj_weight[rows] = stored[f"{prefix}.{role}.weight"]
            reference.in_proj_bias[rows] = stored[f"{prefix}.{role}.bias"]
        states = (torch.from_numpy(array)[None] for array in (queries, keys, keys))
        _, weights = reference(*states, average_attn_weights=False)
    found: Floats = weights[0].numpy()
    return found


@pytest.mark.parametrize(("t", "s"), [(4, 7), (7, 4), (1, 6), (6, 1), (5, 5)])
@pytest.mark.parametrize("heads", [[0, 1, 2], [2], [1, 0]], ids=str)
def test_maps_of_queries_over_other_keys_equal_torchs(
    runtime: Runtime, tiny_checkpoint: Path, heads: list[int], t: int, s: int
) -> None:
    rng = np.random.default_rng(t)
    queries, keys = (rng.standard_normal((n, H), np.float32) for n in (t, s))
    expected = maps_of_torch(tiny_checkpoint, 1, queries, keys)
    found = capability(runtime, Heads).attention(queries, keys, 1, heads)
    assert found.shape == (len(heads), t, s)
    atol = 0.02 if isinstance(runtime, BoundRuntime) else 1e-5  # half precision
    np.testing.assert_allclose(found, expected[heads], atol=atol)


def test_every_tensor_is_within_tolerance_of_transformers(
    runtime: Runtime, precision: Precision, tiny_checkpoint: Path
) -> None:
    """Of texts in one batch, in the order asked for; maps of any heads."""
    tolerances, batch = TOLERANCES[precision], batch_of([9, 4, 1, 17, 40])
    states = runtime.hidden_states(batch, [2, 0, 1])
    asked = [TextPooling(text, 2, "mean") for text in range(5)]
    kept, pooled = runtime.encode(batch, [(1, 2), (0, 0)], asked)
    expected = transformers_says(tiny_checkpoint, batch)
    for rows, (hidden, maps), vector in zip(rows_of(batch), expected, pooled, strict=True):
        for layer, state in zip((2, 0, 1), states, strict=True):
            assert state.dtype == np.float32
            result = difference(hidden[layer], state[rows], tolerances["hidden"])
            assert result.passed
            assert result.min_cosine > 0.98  # as close as eight bits allow here
        units = [l2_normalize(x) for x in (hidden[2].mean(axis=0), vector)]
        assert difference(*units, tolerances["pooled"]).passed
        for layer, entering in ((0, states[1][rows]), (1, states[2][rows])):
            for heads in ([0, 1, 2], [2], [2, 0]):
                found = capability(runtime, Heads).attention(entering, entering, layer, heads)
                assert difference(maps[layer][heads], found, tolerances["attention"]).passed
                np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-5)
    for own, (text, layer) in zip(kept, ((1, 2), (0, 0)), strict=True):
        assert difference(expected[text][0][layer], np.asarray(own), tolerances["hidden"]).passed


def test_threads_get_their_own_answers(runtime: Runtime) -> None:
    batches = [batch_of([7, 5, 3][: 1 + i % 3], seed=i) for i in range(8)]
    maps = capability(runtime, Heads)

    def answer(i: int) -> list[Floats]:
        (state,) = runtime.hidden_states(batches[i], [2])
        return [state, maps.attention(state[:7], state[:7], 1, [2, 0])]

    expected = [answer(i) for i in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for i, found in threads.map(lambda i: (i, answer(i)), [*range(8)] * 20):
            for one, other in zip(found, expected[i], strict=True):
                assert np.array_equal(one, other)


EVERY = (Heads, Heads, Decomposition, Decoder, TaskHead)
OF_ENCODERS = {Heads, Heads, Decomposition}
STATIC = (
    "this model is a static embedding, a table without layers and heads, which gives one vector a "
    "token alone, not "
)
SERVING = "this artifact was exported with --serving-only, without the float32 weights that "
WHOLE = " needs: serve an export without --serving-only"


def assert_kept(artifact: Artifact, kinds: set[type], name: RuntimeName | None = None) -> None:
    """Assert that an artifact declares these capabilities, and that its runtime has the same."""
    runtime = load_runtime(artifact, name=name)
    assert declared(artifact.manifest) == kinds
    assert {kind for kind in EVERY if find(runtime, kind)} == kinds
    for kind in EVERY:
        assert (lacking(artifact.manifest, kind) is None) == (kind in kinds)


def test_every_capability_is_listed() -> None:
    protocols = {
        value
        for value in vars(capabilities).values()
        if isinstance(value, type) and value.__module__ == capabilities.__name__
    }
    assert protocols == {*EVERY} - {Heads}


@pytest.mark.parametrize("name", ["onnx", "pytorch"])
@pytest.mark.parametrize(
    ("fixture", "further"),
    [("tiny_artifact", None), ("bart_artifact", Decoder), ("late_artifact", TaskHead)],
)
def test_a_runtime_has_what_its_artifact_declares(
    request: pytest.FixtureRequest, fixture: str, further: type | None, name: RuntimeName
) -> None:
    kinds = OF_ENCODERS | {further} if further else OF_ENCODERS
    assert_kept(request.getfixturevalue(fixture), kinds, name)


@pytest.mark.slow
def test_other_precisions_have_the_same(
    tiny_fp16: Artifact,
    tiny_bf16: Artifact,
    exported: Callable[..., Artifact],
    encoder_decoders: Callable[[str], Path],
) -> None:
    for artifact in (tiny_fp16, tiny_bf16):
        assert_kept(artifact, OF_ENCODERS)
    assert_kept(exported(encoder_decoders("bart"), "bart", "fp16"), OF_ENCODERS | {Decoder})


def test_a_serving_only_artifact_lacks_what_needs_its_weights(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    artifact = serving_copy(tiny_artifact, tmp_path / "serving")
    assert_kept(artifact, OF_ENCODERS - {Decomposition})
    manifest = artifact.manifest
    assert lacking(manifest, Decomposition) == f"{SERVING}a decomposition{WHOLE}"
    assert lacking_weights(manifest) == f"{SERVING}PyTorch{WHOLE}"
    assert lacking_weights(manifest, "a test") == f"{SERVING}a test{WHOLE}"
    assert lacking_weights(tiny_artifact.manifest) is None


def test_a_static_embedding_has_none(tmp_path: Path) -> None:
    artifact = export_static(write_static(tmp_path / "a"), tmp_path / "out", "a")
    assert_kept(artifact, set())
    manifest = artifact.manifest
    for kind, noun in (
        (Heads, "attention weights"),
        (Decomposition, "shares of input tokens"),
    ):
        assert lacking(manifest, kind) == f"{STATIC}{noun}: serve a transformer encoder"
    says = lacking_weights(manifest)
    assert says == f"{STATIC}what PyTorch computes with: serve a transformer encoder"


def test_checkpoints_without_a_part(tiny_artifact: Artifact) -> None:
    manifest: Manifest = tiny_artifact.manifest
    assert lacking(manifest, Decoder) == (
        "the artifact has no decoder: export a checkpoint that has one, such as a MarianMTModel"
    )
    assert lacking(manifest, TaskHead) == (
        "the artifact has no task head to score with: export a checkpoint that has one, such as "
        "a …ForSequenceClassification"
    )


def test_a_runtime_without_a_capability_raises(tiny_artifact: Artifact) -> None:
    with pytest.raises(ModelError, match="the artifact does not declare Decoder"):
        capability(load_runtime(tiny_artifact), Decoder)


def test_no_head_is_ablated_unless_asked_for() -> None:
    batch = pack([([1, 2], [0, 0]), ([3], [0]), ([4] * 9, [0] * 9)])
    mask = every_head(batch, parse_config(TINY | {"model_type": "bert"}))
    np.testing.assert_array_equal(mask, np.ones((3, 2, 3), np.float32), strict=True)


ENDS = np.array([0, 4, 9])


def test_each_mode_is_a_set_of_rows_of_its_text() -> None:
    poolings = [
        TextPooling(0, 1, "cls"),
        TextPooling(1, 1, "last"),
        TextPooling(1, 1, "mean", 2, 8),
        TextPooling(0, 1, "max"),
        TextPooling(1, 1, "weightedmean", 1),
    ]
    sets = sets_of(poolings, ENDS)
    assert sets["first_row"].tolist() == [0, 8, 6, 0, 5]
    assert sets["row_count"].tolist() == [1, 1, 3, 4, 4]
    assert sets["maximum"].tolist() == [0, 0, 0, 1, 0]
    assert sets["first_weight"].tolist() == [0, 0, 0, 0, 2]
    assert sets["unit_features"].tolist() == [0, 0, 8, 0, 0]


def test_without_weights_it_is_one_line(tiny_artifact: Artifact, tmp_path: Path) -> None:
    artifact = serving_copy(tiny_artifact, tmp_path / "serving")
    with pytest.raises(ArtifactError, match=r"--serving-only, without .* PyTorch") as caught:
        load_runtime(artifact, name="pytorch")
    assert "\n" not in str(caught.value)
    with pytest.raises(ArtifactError, match=r"--serving-only, without .* PyTorch"):
        verify(artifact)
    load_runtime(artifact)  # the graphs need none of it


def test_what_no_request_changes_is_computed_at_the_start(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Projections of relative positions, tables of distances, and parameters by head."""
    runtime, states = load_runtime(tiny_artifact, name="pytorch"), np.ones((2, 12), np.float32)
    monkeypatch.delattr(LayerStack, "head_parameters")
    monkeypatch.delattr("model.attention.self_attention.bucket_table")
    found = capability(runtime, Heads).attention(states, states, 1, [2, 0])
    assert found.shape == (2, 2, 2)


def test_a_head_mask_ablates_in_its_own_text(tiny_artifact: Artifact) -> None:
    runtime, batch = load_runtime(tiny_artifact, name="pytorch"), batch_of(LENGTHS)
    assert isinstance(runtime, PyTorchRuntime)
    mask = np.ones((len(LENGTHS), 2, 3), np.float32)
    mask[0, 1, 2] = 0
    (plain,) = runtime.hidden_states(batch, [2])
    (ablated,) = runtime.hidden_states(batch, [2], mask)
    first = LENGTHS[0]
    assert np.abs(plain[:first] - ablated[:first]).max() > 1e-3
    np.testing.assert_array_equal(plain[first:], ablated[first:])


@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_some_heads_are_those_of_all(bart_artifact: Artifact, kind: MapKind) -> None:
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((5, 24), np.float32)
    keys = rng.standard_normal((7, 24), np.float32) if kind == "cross" else queries
    names: tuple[RuntimeName, ...] = ("pytorch", "onnx")
    decoders = [capability(load_runtime(bart_artifact, name=name), Decoder) for name in names]
    for layer in (0, 1):
        every = decoders[1].heads[kind].attention(queries, keys, layer, [0, 1, 2])
        for decoder in decoders:
            some = decoder.heads[kind].attention(queries, keys, layer, [2, 0])
            np.testing.assert_allclose(some, every[[2, 0]], atol=1e-6)


def test_merged_layers_equal_those_with_an_adapter(tmp_path: Path) -> None:
    encoder = load_checkpoint(write_published(Reference(), tmp_path))
    merged = with_merged_layers(encoder, 2)
    assert merged.config.adapters is None
    (text,) = texts_of(encoder, (1, 1, 17))[2:]
    batch = PackedBatch.of(pack([(text, [2] * len(text))]))
    with torch.no_grad():
        states = encoder(batch).hidden_states
        for number, (entering, leaving) in enumerate(itertools.pairwise(states)):
            found = merged.layer(number)(entering, batch, None, {})
            torch.testing.assert_close(found, leaving, atol=1e-5, rtol=1e-5)
