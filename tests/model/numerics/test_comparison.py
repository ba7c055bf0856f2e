"""Comparison of tensors, types of vectors, and bounds of similarity."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
import torch
from sentence_transformers.util import quantize_embeddings
from torch.nn import functional

from model.config.precision import Precision
from model.numerics.comparison import (
    TOLERANCES,
    Comparison,
    Difference,
    Key,
    Tolerance,
    difference,
    keyed,
    tolerances_of,
)
from model.numerics.quantization import (
    VECTOR_TYPES,
    WITH_RANGES,
    Quantization,
    VectorType,
    ranges_of,
)
from model.numerics.similarity import SIMILARITY_AT_LEAST, Similarity, bounds_line, shortfall

STRICT = dict.fromkeys(("hidden", "attention", "pooled"), Tolerance(0.1, 0.0, cosine_at_least=-1))
A, B = Key("hidden", 1), Key("attention", 0, 2)


def array(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def compared(reference: dict, candidate: dict) -> Comparison:
    comparison = Comparison()
    comparison.add(reference, candidate, STRICT)
    return comparison


def test_equal_tensors_pass() -> None:
    comparison = compared({A: array([1, 2])}, {A: array([1, 2])})
    assert comparison.passed
    assert comparison.mismatches == []
    assert comparison.differences == {A: Difference(0.0, pytest.approx(1), True)}
    assert comparison.inputs == 1


def zeros(*shape: int) -> dict[Key, np.ndarray]:
    return {A: np.zeros(shape, np.float32)}


@pytest.mark.parametrize(
    ("reference", "candidate", "mismatches"),
    [
        (zeros(1), {B: array([1])}, ["hidden 1 is missing", "attention 0.2 is unexpected"]),
        (zeros(1, 2, 3), zeros(2, 3), ["hidden 1 has 2 axes, not 3"]),
        (zeros(2, 3), zeros(3, 2), ["hidden 1 is (3, 2), not (2, 3)"]),
        (zeros(2, 3), zeros(1, 3), ["hidden 1 is (1, 3), not (2, 3)"]),
    ],
)
def test_names_come_before_axes_before_shapes_before_values(
    reference: dict, candidate: dict, mismatches: list[str]
) -> None:
    comparison = compared(reference, candidate)
    assert comparison.mismatches == mismatches
    assert comparison.differences == {}
    assert not comparison.passed


def test_every_check_runs_before_the_verdict() -> None:
    good, far = array([1, 1]), array([1, 9])
    comparison = compared(
        {A: good, B: good, Key("hidden", 2): good}, {A: far, Key("hidden", 2): array([1])}
    )
    assert comparison.mismatches == ["attention 0.2 is missing", "hidden 2 is (1, 1), not (1, 2)"]
    assert comparison.differences[A].max_abs_diff == 8


@pytest.mark.parametrize("candidate", [{}, {B: array([1]), A: array([1])}], ids=["less", "more"])
def test_a_mismatch_is_not_mended_by_what_is_equal(candidate: dict) -> None:
    good = Key("hidden", 9)
    reference = {good: array([1])} | ({A: array([1])} if not candidate else {})
    comparison = compared(reference, {good: array([1])} | candidate)
    assert comparison.differences[good].passed
    assert not comparison.passed


def test_nothing_compared_is_not_a_pass() -> None:
    assert not Comparison().passed
    assert not compared({}, {}).passed


@pytest.mark.parametrize(
    ("reference", "candidate", "tolerance", "passed"),
    [
        (1.0, 1.25, Tolerance(0.25, 0.0, -1), True),
        (1.0, 1.2500001, Tolerance(0.25, 0.0, -1), False),
        (1.0, 0.75, Tolerance(0.25, 0.0, -1), True),
        (4.0, 5.0, Tolerance(0.0, 0.25, -1), True),
        (-4.0, -5.0, Tolerance(0.0, 0.25, -1), True),
        (5.0, 4.0, Tolerance(0.0, 0.1875, -1), False),  # relative to the reference, 5 · 0.1875 < 1
        (4.0, 5.25, Tolerance(0.25, 0.25, -1), True),
        (4.0, 5.5, Tolerance(0.25, 0.25, -1), False),
        (0.0, 1e-9, Tolerance(0.0, 1.0, -1), False),
    ],
)
def test_a_value_may_differ_by_atol_and_rtol_of_the_reference(
    reference: float, candidate: float, tolerance: Tolerance, passed: bool
) -> None:
    found = difference(array([reference]), array([candidate]), tolerance)
    assert found.passed is passed


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["candidate", "reference", "both"])
def test_a_value_that_is_not_finite_never_passes(bad: float, where: str) -> None:
    good, broken = array([1, 2], [3, 4]), array([1, 2], [3, bad])
    reference = good if where == "candidate" else broken
    candidate = good if where == "reference" else broken
    found = difference(reference, candidate, Tolerance(atol=1e30, rtol=1e30, cosine_at_least=-1))
    assert not found.passed
    assert found.max_abs_diff == math.inf
    assert found.min_cosine == -1


def test_min_cosine_is_the_smallest_of_any_row() -> None:
    rng = np.random.default_rng(0)
    reference, candidate = rng.standard_normal((2, 7, 5)).astype(np.float32)
    expected = functional.cosine_similarity(torch.tensor(reference), torch.tensor(candidate)).min()
    found = difference(reference, candidate, Tolerance(9, 9, -1)).min_cosine
    assert found == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize(("cosine_at_least", "passed"), [(0.599, True), (0.601, False)])
def test_one_row_of_another_direction_is_enough(cosine_at_least: float, passed: bool) -> None:
    """The last row is the 3-4-5 triangle's: its cosine is 0.6, however small its values."""
    reference = array([1, 2], [5, 1], [1e-3, 0])
    candidate = array([1, 2], [5, 1], [3e-3, 4e-3])
    found = difference(reference, candidate, Tolerance(0.1, 0.0, cosine_at_least))
    assert found.passed is passed
    assert found.min_cosine == pytest.approx(0.6, abs=1e-6)
    assert found.max_abs_diff == pytest.approx(4e-3)


def test_a_direction_does_not_mend_a_value() -> None:
    found = difference(array([1, 2]), array([2, 4]), Tolerance(0.1, 0.0, 0.99999))
    assert (found.passed, found.min_cosine) == (False, pytest.approx(1))


def test_differences_are_taken_in_double_precision() -> None:
    """3e38 - (-3e38) overflows float32; and 2²⁴ + 1 does not exist there."""
    found = difference(array([3e38]), array([-3e38]), Tolerance(1e39, 0, -1))
    assert found.max_abs_diff == pytest.approx(6e38, rel=1e-6)
    assert found.passed


@pytest.mark.parametrize("order", [1, -1])
def test_the_worst_of_each_tensor_is_kept(order: int) -> None:
    comparison = Comparison()
    for value in [0.0, 0.05, 0.5, 0.01][::order]:
        comparison.add({A: array([1, 0])}, {A: array([1, value])}, STRICT)
    comparison.add({B: array([1])}, {B: array([1.0625])}, STRICT)
    assert comparison.inputs == 5
    assert comparison.differences[A].max_abs_diff == 0.5
    assert comparison.differences[A].min_cosine == pytest.approx(1 / math.sqrt(1.25))
    assert not comparison.differences[A].passed
    assert comparison.differences[B].passed
    assert not comparison.passed
    assert comparison.worst("hidden").max_abs_diff == 0.5
    assert comparison.worst("attention").max_abs_diff == 0.0625
    assert comparison.worst("pooled").max_abs_diff == 0
    assert comparison.worst("hidden").min_cosine == comparison.differences[A].min_cosine
    assert comparison.worst("attention").min_cosine == pytest.approx(1)
    assert comparison.worst("pooled").min_cosine == 1


def test_a_kinds_figures_are_the_worst_of_its_tensors() -> None:
    comparison = compared(
        {A: array([1, 0]), Key("hidden", 2): array([1, 0])},
        {A: array([1, 0.03125]), Key("hidden", 2): array([3, 4])},
    )
    assert comparison.worst("hidden").min_cosine == pytest.approx(0.6)
    assert comparison.worst("hidden").max_abs_diff == 4
    assert comparison.worst("attention").min_cosine == 1


def test_keys_read_well() -> None:
    names = [str(key) for key in (Key("hidden", 3), Key("attention", 5, 11), Key("pooled"))]
    assert names == ["hidden 3", "attention 5.11", "pooled"]


def test_keyed_names_every_tensor() -> None:
    hidden = [array([1, 2], [3, 4]), array([3, 0], [3, 8])]
    maps = np.arange(1 * 2 * 2 * 2, dtype=np.float32).reshape(1, 2, 2, 2)
    tensors = keyed(hidden, maps, lambda state: state.mean(axis=0) / 10)
    assert {str(key) for key in tensors} == {
        *("hidden 0", "hidden 1", "attention 0.0", "attention 0.1", "pooled")
    }
    assert tensors[Key("attention", 0, 1)].tolist() == [[4, 5], [6, 7]]
    assert tensors[Key("hidden", 0)].tolist() == [[1, 2], [3, 4]]
    np.testing.assert_allclose(tensors[Key("pooled")], [0.3, 0.4], rtol=1e-6)


def test_the_tolerances_are_those_that_the_project_promises() -> None:
    assert TOLERANCES["fp32"] == {
        "hidden": Tolerance(atol=1e-4, rtol=1e-5, cosine_at_least=0.99999),
        "attention": Tolerance(atol=1e-5, rtol=0.0, cosine_at_least=0.99999),
        "values": Tolerance(atol=0.0, rtol=1e-4, cosine_at_least=0.99999),
        "pooled": Tolerance(atol=1e-5, rtol=0.0, cosine_at_least=0.99999),
        "task": Tolerance(atol=1e-4, rtol=1e-5, cosine_at_least=-1.0),
        "token_vectors": Tolerance(atol=1e-4, rtol=1e-5, cosine_at_least=0.99999),
    }
    assert set(TOLERANCES) == set(get_args(Precision))
    assert TOLERANCES["bf16"]["pooled"].cosine_at_least == 0.9
    assert TOLERANCES["int8"]["pooled"].cosine_at_least == 0.3


@pytest.mark.parametrize(
    ("layers", "atol"), [(1, 1e-5), (6, 1e-5), (7, 2e-5), (12, 7e-5), (28, 2.3e-4)]
)
def test_float32_maps_are_bounded_by_the_number_of_layers(layers: int, atol: float) -> None:
    bounds = {"attention": Tolerance(atol, 0.0, 0.99999)}
    assert tolerances_of("fp32", layers) == TOLERANCES["fp32"] | bounds
    assert tolerances_of("bf16", layers) == TOLERANCES["bf16"]


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3)])
def test_equal_rows_of_zeros_agree(shape: tuple[int, ...]) -> None:
    zeros = np.zeros(shape, np.float32)
    found = difference(zeros, zeros, Tolerance(1e-4, 1e-5, 0.99999))
    assert found.passed
    assert found.min_cosine == 1.0
    assert not difference(zeros, zeros + 1, Tolerance(2.0, 0.0, 0.99999)).passed


def test_a_decoders_tensors_are_bounded_like_the_encoders_and_its_maps_by_both_depths() -> None:
    assert "cross_attention" not in tolerances_of("fp32", 6)
    for precision in ("fp32", "fp16"):
        found = tolerances_of(precision, 6, 2)
        assert found["decoder_hidden"] == found["cross_queries"] == found["hidden"]
        assert found["logprobs"] == found["task"]
    deep = tolerances_of("fp32", 6, 4)
    assert deep["attention"].atol == 1e-5
    assert deep["decoder_attention"].atol == deep["cross_attention"].atol == 5e-5
    assert tolerances_of("fp16", 6, 4)["cross_attention"] == TOLERANCES["fp16"]["attention"]


VECTORS = np.random.default_rng(0).standard_normal((60, 21)).astype(np.float32)
VECTORS[:, 4] = 0.5  # a feature without a range
CALIBRATION, OTHERS = VECTORS[:20], VECTORS[20:]


@pytest.mark.parametrize("name", [name for name in VECTOR_TYPES if name != "float16"])
def test_types_are_sentence_transformers(name: VectorType) -> None:
    """Vectors outside of the ranges are clipped; 21 features of a bit are three bytes."""
    ranges = ranges_of([*CALIBRATION]) if name in WITH_RANGES else None
    found = Quantization(name, ranges)(OTHERS)
    expected = quantize_embeddings(OTHERS, name, calibration_embeddings=CALIBRATION)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    several = Quantization(name, ranges)(OTHERS.reshape(8, 5, 21))
    np.testing.assert_array_equal(several, found.reshape(8, 5, -1))


def test_float16_is_rounded_or_refused() -> None:
    found = Quantization("float16")(np.array([1 / 3, 65504], np.float32))
    assert found.dtype == np.float16
    assert found.tolist() == [0.333251953125, 65504]
    with pytest.raises(OverflowError, match="beyond the largest float16"):
        Quantization("float16")(np.array([0, -65520], np.float32))


EXACT = Similarity(
    texts=154, rank_correlation=1, neighbour_recall=1, mean_cosine=1, low_cosine=1, least_cosine=1
)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_figure_at_its_bound_passes_and_one_below_is_named(precision: Precision) -> None:
    bounds = SIMILARITY_AT_LEAST[precision]
    assert set(bounds) == set(EXACT.model_dump(exclude={"texts"}))
    assert shortfall(EXACT, bounds) is None
    assert shortfall(EXACT.model_copy(update=bounds), bounds) is None
    for name, bound in bounds.items():
        found = EXACT.model_copy(update={name: bound - 0.01})
        said = shortfall(found, bounds) or ""
        assert f"{bound - 0.01:.4f} (at least {bound:g}), over 154 texts" in said


def test_bounds_are_printed() -> None:
    assert bounds_line("fp32") == "fp32 vectors: every tensor within its tolerance"
    for bound in SIMILARITY_AT_LEAST["int8"].values():
        assert f" {bound:g}" in bounds_line("int8")
