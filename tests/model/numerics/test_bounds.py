"""Bounds of similarity, and the message about a figure below its bound."""

from __future__ import annotations

import pytest

from model.config.precision import Precision
from model.numerics.bounds import SIMILARITY_AT_LEAST, bounds_line, shortfall
from model.numerics.similarity import Similarity

EXACT = Similarity(
    texts=154,
    rank_correlation=1,
    neighbour_recall=1,
    mean_cosine=1,
    low_cosine=1,
    least_cosine=1,
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
