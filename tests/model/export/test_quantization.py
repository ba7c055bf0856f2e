"""Ranges, scales, 8-bit weights and rounding, against numpy and transformers' own numbers."""

from __future__ import annotations

import copy
import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoTokenizer, BertModel

from model.artifact.manifest import DECODER_HEADS, TOKENIZER, Artifact, recorded_tolerances
from model.artifact.mapped import mapped_tensors
from model.artifact.vectors import TextVectors
from model.checkpoint import load_checkpoint
from model.config.precision import WeightBits
from model.encoder.encoder import Encoder
from model.export.calibration import TEXTS, calibration_batches
from model.export.quantization import Int8Linear, median_errors, observe, quantize
from model.export.tensors import reference_tensors, with_rounding
from model.export.verify import verify
from model.numerics.batch import Batch, pack
from model.numerics.comparison import Kind, Tolerance, tolerances_of
from model.packing import PackedBatch
from model.runtimes.pytorch import load_modules
from tests.model.checkpoints import edit_weights
from tests.model.runtimes.test_onnx import batch_of, rows_of

MAPS = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "feed_forward.expand": "intermediate.dense",
    "feed_forward.contract": "output.dense",
}
"""Linear maps of a layer, by our names and by transformers'."""
SMOOTHED = [
    ["attention.query", "attention.key", "attention.value"],
    ["feed_forward.expand"],
]
CALIBRATION = [batch_of([9, 4, 1], seed=1), batch_of([40], seed=2), batch_of([7] * 5, seed=3)]


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint: Path) -> Encoder:
    return load_checkpoint(tiny_checkpoint)


@pytest.fixture(scope="module")
def quantized(encoder: Encoder) -> Encoder:
    return quantize(encoder, CALIBRATION).encoder


def transformers_of(folder: Path) -> BertModel:
    return BertModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, add_pooling_layer=False
    ).eval()


def run(reference: BertModel, batch: Batch) -> np.ndarray:
    """Return the last hidden state of every text, computed alone, end to end."""
    with torch.inference_mode():
        states = [
            reference(
                torch.from_numpy(batch.input_ids[None, rows]),
                token_type_ids=torch.from_numpy(batch.token_type_ids[None, rows]),
            ).last_hidden_state[0]
            for rows in rows_of(batch)
        ]
    return torch.cat(states).numpy()


def inputs_of_every_map(folder: Path, batches: list[Batch]) -> dict[str, np.ndarray]:
    """Return each linear map's input in transformers' model, `[all tokens, d]`, by our name."""
    reference = transformers_of(folder)
    seen: dict[str, list[np.ndarray]] = {}
    for number, layer in enumerate(reference.encoder.layer):
        for ours, theirs in MAPS.items():
            rows = seen.setdefault(f"layers.{number}.{ours}", [])
            layer.get_submodule(theirs).register_forward_pre_hook(
                lambda _, inputs, rows=rows: rows.append(inputs[0][0].numpy())
            )
    for batch in batches:
        run(reference, batch)
    return {name: np.concatenate(rows) for name, rows in seen.items()}


def int8_maps(encoder: Encoder) -> dict[str, Int8Linear]:
    return {name: m for name, m in encoder.named_modules() if isinstance(m, Int8Linear)}


def smoothing_of(module: Int8Linear) -> np.ndarray:
    return np.ones(1) if module.divisor is None else 1 / module.divisor.double().numpy()


def test_ranges_are_those_that_transformers_sees(encoder: Encoder, tiny_checkpoint: Path) -> None:
    ranges = observe(encoder, CALIBRATION)
    expected = inputs_of_every_map(tiny_checkpoint, CALIBRATION)
    found = {name: ranges[m] for name, m in encoder.named_modules() if m in ranges}
    assert found.keys() == expected.keys()
    assert len(ranges) == 2 * 6
    for name, x in expected.items():
        np.testing.assert_allclose(found[name][0], x.min(axis=0), atol=1e-5)
        np.testing.assert_allclose(found[name][1], x.max(axis=0), atol=1e-5)
    assert not any(m._forward_pre_hooks for m in encoder.modules())


def test_every_map_of_the_layers_is_replaced_in_a_copy(
    encoder: Encoder, quantized: Encoder, tiny_checkpoint: Path
) -> None:
    assert set(int8_maps(quantized)) == {f"layers.{n}.{name}" for n in (0, 1) for name in MAPS}
    assert not any(isinstance(m, nn.Linear) for m in quantized.modules())
    assert not int8_maps(encoder)
    untouched = load_checkpoint(tiny_checkpoint).state_dict()
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, untouched[name]), name
    for name, tensor in quantized.named_parameters():
        assert torch.equal(tensor, untouched[name]), name


@pytest.mark.parametrize(("weight_bits", "alpha"), [(8, 0.5), (7, 0.6)])
def test_smoothing_is_smooth_quants_formula(
    encoder: Encoder, tiny_checkpoint: Path, weight_bits: WeightBits, alpha: float
) -> None:
    """s_j = max|X_j|^α / max|W_j|^(1−α), eq. 4, one for all maps of an input; or none."""
    inputs = inputs_of_every_map(tiny_checkpoint, CALIBRATION)
    found = int8_maps(quantize(encoder, CALIBRATION, weight_bits).encoder)
    for layer in (0, 1):
        for group in [[f"layers.{layer}.{name}" for name in names] for names in SMOOTHED]:
            w = np.concatenate([encoder.get_submodule(n).weight.detach().numpy() for n in group])
            largest = np.abs(inputs[group[0]]).max(axis=0)
            expected = largest**alpha / np.abs(w).max(axis=0) ** (1 - alpha)
            for name in group:
                np.testing.assert_allclose(smoothing_of(found[name]), expected, rtol=1e-4)
        for name in ("attention.output", "feed_forward.contract"):
            assert found[f"layers.{layer}.{name}"].divisor is None


@pytest.mark.parametrize(("weight_bits", "largest"), [(8, 127), (7, 63)])
def test_smoothing_leaves_the_product_and_weights_lie_within_half_a_step(
    encoder: Encoder, weight_bits: WeightBits, largest: int
) -> None:
    """x Wᵀ = (x / s)(s W)ᵀ, and the integer weight represents s W."""
    rng = np.random.default_rng(0)
    for name, module in int8_maps(quantize(encoder, CALIBRATION, weight_bits).encoder).items():
        w = encoder.get_submodule(name).weight.detach().double().numpy()
        s, step = smoothing_of(module), module.weight_scale.double().numpy()
        x = rng.standard_normal((5, w.shape[1]))
        np.testing.assert_allclose((x / s) @ (w * s).T, x @ w.T, atol=1e-9)
        q = module.weight.numpy()
        assert q.dtype == np.int8
        assert (np.abs(q.T * step[:, None] - w * s) <= step[:, None] * (0.5 + 1e-4)).all()
        assert np.abs(q).max(axis=0).tolist() == [largest] * len(w)
        np.testing.assert_allclose(step, np.abs(w * s).max(axis=1) / largest, rtol=1e-5)
        assert torch.equal(module.bias, encoder.get_submodule(name).bias)


def test_an_inputs_255_steps_span_its_range_and_zero(
    quantized: Encoder, tiny_checkpoint: Path
) -> None:
    inputs = inputs_of_every_map(tiny_checkpoint, CALIBRATION)
    for name, module in int8_maps(quantized).items():
        x, scale, zero = inputs[name] / smoothing_of(module), module.scale.item(), module.zero
        low, high = min(0.0, x.min()), max(0.0, x.max())
        assert zero.dtype == torch.uint8
        assert scale == pytest.approx((high - low) / 255, rel=1e-4)
        assert zero.item() == pytest.approx(-low / scale, abs=0.5 + 1e-3)
        assert (0 - zero.item()) * scale == pytest.approx(low, abs=scale * 0.51)
        assert (255 - zero.item()) * scale == pytest.approx(high, abs=scale * 0.51)


@pytest.mark.parametrize("bias", [-60.0, 60.0], ids=["all below zero", "all above"])
def test_an_input_on_one_side_of_zero_keeps_its_zero_point_in_bounds(
    encoder: Encoder, bias: float
) -> None:
    """The 255 steps span zero too, so the zero point is one of them."""
    shifted = copy.deepcopy(encoder)
    with torch.no_grad():
        shifted.embeddings.layer_norm.bias.fill_(bias)
    query = int8_maps(quantize(shifted, CALIBRATION).encoder)["layers.0.attention.query"]
    assert query.zero.item() == (255 if bias < 0 else 0)


def test_a_relus_output_starts_at_zero(make_checkpoint: Callable[..., Path]) -> None:
    encoder = load_checkpoint(make_checkpoint(hidden_act="relu"))
    for name, module in int8_maps(quantize(encoder, CALIBRATION).encoder).items():
        assert (module.zero.item() == 0) == name.endswith("contract")


def test_dead_features_divide_nothing_by_zero(encoder: Encoder) -> None:
    dead = copy.deepcopy(encoder)
    first = dead.layers[0]
    with torch.no_grad():
        for parameter in dead.embeddings.layer_norm.parameters():
            parameter[3] = 0  # a feature that is always zero
        for linear in (first.attention.query, first.attention.key, first.attention.value):
            linear.weight[:, 5] = 0  # a feature that no weight reads
        first.attention.query.weight[2] = 0  # an output that reads nothing
        first.attention.value.weight.zero_()
        first.attention.value.bias.zero_()  # an input of zeros only
    found = quantize(dead, CALIBRATION).encoder
    for name, module in int8_maps(found).items():
        assert all(buffer.isfinite().all() for buffer in module.buffers()), name
        assert module.scale > 0
        assert (module.weight_scale > 0).all()
    assert int8_maps(found)["layers.0.attention.output"].zero.item() == 0
    assert found.layers[0].attention.query.weight[:, 2].count_nonzero() == 0


def test_a_map_that_eight_bits_would_lose_stays_in_floating_point(encoder: Encoder) -> None:
    """A single token's feature is so large that a step of the input's scale exceeds all others."""
    massive = copy.deepcopy(encoder)
    feed_forward = massive.layers[1].feed_forward
    seen: list[Tensor] = []
    feed_forward.expand.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        massive(PackedBatch.of(CALIBRATION[0]))
        token = seen[0].flatten(0, -2)[0]
        others = torch.cat([batch.flatten(0, -2) for batch in seen])[1:]
        direction = token - others.mean(dim=0)
        feed_forward.expand.weight[3] = 500 * direction / direction.square().sum()
        feed_forward.expand.bias[3] = -500 * (others @ direction).max() / direction.square().sum()
    found = quantize(massive, CALIBRATION)
    assert found.kept == ("layers.1.feed_forward.contract",)
    assert "layers.1.feed_forward.contract" not in int8_maps(found.encoder)
    assert quantize(encoder, CALIBRATION).kept == ()


def test_errors_of_maps_are_those_of_torchs_fake_quantization(encoder: Encoder) -> None:
    quantized = quantize(encoder, CALIBRATION).encoder
    layer, twin = encoder.layers[0], quantized.layers[0]
    new = {layer.attention.output: twin.attention.output}
    found = median_errors(encoder, CALIBRATION, new)
    module, errors = twin.attention.output, []
    inputs: list[Tensor] = []
    hook = layer.attention.output.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    with torch.no_grad():
        for batch in CALIBRATION:
            encoder(PackedBatch.of(batch))
        hook.remove()
        for x in inputs:
            rounded = torch.fake_quantize_per_tensor_affine(
                x, module.scale.item(), int(module.zero), 0, 255
            )
            weight = module.weight.float() * module.weight_scale
            exact = x @ layer.attention.output.weight.T
            errors.append((rounded @ weight - exact).norm(dim=-1) / exact.norm(dim=-1))
    assert list(found) == [layer.attention.output]
    assert found[layer.attention.output] == pytest.approx(torch.cat(errors).median().item())


LINES = TEXTS.read_text(encoding="utf-8").splitlines()


def tokenizer_of(artifact: Artifact) -> Tokenizer:
    return Tokenizer.from_file(str(artifact.path(TOKENIZER)))


@pytest.mark.parametrize("max_length", [8, 40])
def test_every_line_and_all_in_one_are_tokenized_as_transformers_does(
    tiny_artifact: Artifact, tiny_checkpoint: Path, max_length: int
) -> None:
    batches = list(calibration_batches(tokenizer_of(tiny_artifact), max_length))
    found = [
        batch.input_ids[start:end].tolist()
        for batch in batches
        for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)
    ]
    reference = AutoTokenizer.from_pretrained(tiny_checkpoint)
    texts = [*LINES, " ".join(LINES)]
    assert found == reference(texts, truncation=True, max_length=max_length)["input_ids"]
    assert len(found[-1]) == max_length  # texts reach the last position
    assert {len(batch.padded_index) for batch in batches[:-1]} == {16}


def test_the_tokenizer_is_left_without_truncation(tiny_artifact: Artifact) -> None:
    tokenizer = tokenizer_of(tiny_artifact)
    list(calibration_batches(tokenizer, 8))
    assert tokenizer.truncation is None


def test_the_texts_are_many_and_of_many_lengths() -> None:
    words = [len(line.split()) for line in LINES]
    assert len(set(LINES)) == len(LINES) >= 100
    assert min(words) >= 1
    assert min(words) <= 3
    assert max(words) >= 50


def test_no_text_is_among_those_that_quality_is_measured_on(shared_data: Path) -> None:
    with (shared_data / "stsb-en-dev.csv").open(encoding="utf-8", newline="") as file:
        measured = {text.strip().lower() for row in csv.reader(file) for text in row[:2]}
    assert not measured & {line.strip().lower() for line in LINES}


MAP_KINDS: tuple[Kind, ...] = ("attention", "decoder_attention", "cross_attention")
LARGE = 10.0
"""Factor of the tiny BART's scores, which then reach some hundreds."""


@pytest.fixture(scope="module")
def large_scores(
    exported: Callable[..., Artifact],
    encoder_decoders: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Artifact:
    """Return the tiny BART with queries as large as T5's, which are not divided by √p."""
    folder = tmp_path_factory.mktemp("large") / "bart"
    shutil.copytree(encoder_decoders("bart"), folder)
    weights = load_file(folder / "model.safetensors")
    queries = {name: each * LARGE for name, each in weights.items() if "q_proj.weight" in name}
    edit_weights(folder, **queries)
    return exported(folder, "large-scores")


def test_rounding_of_float32_is_allowed_for_and_recorded(large_scores: Artifact) -> None:
    record = large_scores.manifest.verification
    assert record.passed, record.failed
    usual = tolerances_of("fp32", *large_scores.manifest.depths)
    wider = {kind for kind in MAP_KINDS if record.tolerances[kind]["atol"] > usual[kind].atol}
    assert wider
    for kind in MAP_KINDS:
        assert record.tolerances[kind]["atol"] <= 100 * usual[kind].atol
    assert record.tolerances["pooled"]["atol"] == usual["pooled"].atol
    for kind, tolerance in recorded_tolerances(large_scores.manifest).items():
        if kind in record.tolerances:
            assert Tolerance(**record.tolerances[kind]) == tolerance


def test_a_wrong_weight_is_found_all_the_same(large_scores: Artifact, tmp_path: Path) -> None:
    folder = shutil.copytree(large_scores.folder, tmp_path / "wrong")
    heads = {name: each.copy() for name, each in mapped_tensors(folder / DECODER_HEADS).items()}
    heads["cross.query_weight.1"][2] *= 1.01  # one head
    save_file(heads, folder / DECODER_HEADS)
    found = verify(Artifact(folder, large_scores.manifest, large_scores.sha256))
    assert found.record().failed is not None
    assert "first cross-attention of layer 1, head 2" in found.record().failed


def test_bounds_are_four_times_the_distance_from_float64(bart_artifact: Artifact) -> None:
    modules, vectors = load_modules(bart_artifact), TextVectors.of(bart_artifact)
    batch = pack([([5, 6, 7], [0, 0, 0])])
    tight = {kind: Tolerance(1e-12, 0.0, 0.9) for kind in tolerances_of("fp32", 1, 2)}
    assert with_rounding(modules, [batch], vectors, tight)["hidden"].atol == pytest.approx(1e-10)
    room = {kind: Tolerance(1e-7, 0.0, 0.9) for kind in tight}
    (single,) = reference_tensors(modules, batch, vectors)
    modules.encoder.double()
    assert modules.decoder is not None
    modules.decoder.double()
    (double,) = reference_tensors(modules, batch, vectors)
    modules.encoder.float()
    modules.decoder.float()
    off = max(abs(single[key] - double[key]).max() for key in double if key.kind == "hidden")
    assert 0 < off < 1e-5
    atol = with_rounding(modules, [batch], vectors, room)["hidden"].atol
    assert 4 * off <= atol <= 8 * off
    with torch.no_grad():
        modules.encoder.embeddings.word.weight[5] = float("inf")
    broken = with_rounding(modules, [batch], vectors, room)
    assert broken["hidden"].atol in (1e-7, atol)
