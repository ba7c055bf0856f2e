"""Selection of token vectors, and MaxSim against sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers.util import maxsim

from model.numerics import late_interaction
from model.numerics.late_interaction import LateInteraction, QueryExpansion, max_sim
from model.numerics.vector_modules import Dense, Normalize

MODULES = (Dense(in_features=4, out_features=3), Normalize())


@pytest.mark.parametrize("block", [2**20, 7, 1])
def test_max_sim(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """The score does not depend on the block size; all products may be negative."""
    monkeypatch.setattr(late_interaction, "BLOCK", block)
    generator = np.random.default_rng(0)
    query = np.abs(generator.normal(size=(5, 3))).astype(np.float32)
    for rows in (generator.normal(size=(9, 3)), -np.abs(generator.normal(size=(4, 3)))):
        document = rows.astype(np.float32)
        expected = float(maxsim([query], [document])[0, 0])
        assert max_sim(query, document) == pytest.approx(expected, abs=1e-5)
    assert expected < 0
    assert max_sim(query[:0], document) == 0


def test_tokens_without_vectors() -> None:
    vectors, ids = np.eye(4, dtype=np.float32), np.array([7, 8, 9, 8])
    late = LateInteraction(modules=MODULES, skipped_ids=(8, 5))
    assert late.kept(vectors, ids, "document").tolist() == vectors[[0, 2]].tolist()
    assert late.kept(vectors, ids, "query").tolist() == vectors.tolist()
    both = late.model_copy(update={"skipped_in": ("query", "document")})
    assert len(both.kept(vectors, ids, "query")) == 2
    assert late.vector_size(4) == 3
    assert late.vector_size(5) is None


def test_what_fills_a_query_up() -> None:
    late = LateInteraction(modules=MODULES, expansion=QueryExpansion(token_id=4, length=5))
    assert late.filled_up(np.array([2, 9, 3])).tolist() == [2, 9, 3, 4, 4]
    assert late.filled_up(np.arange(6)).tolist() == [*range(6)]
    assert (late.missing(3), late.missing(6), late.unseen) == (2, 0, True)
    attended = QueryExpansion(token_id=4, length=5, attended=True)
    assert not late.model_copy(update={"expansion": attended}).unseen
    alone = LateInteraction(modules=MODULES)
    assert alone.filled_up(np.arange(2)).tolist() == [0, 1]
    assert (alone.missing(1), alone.unseen) == (0, False)
