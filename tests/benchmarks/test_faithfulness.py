"""Deletion of tokens: order, remaining cosine, and agreement with occlusion."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.faithfulness import Explained, agreement, deletion, kept_masks, of_pair, read_pairs

OFFSETS = [[0, 0], [0, 3], [4, 7], [0, 0]]


def side(scale: float) -> dict:
    """Return a text's attention, in which token k receives (k + 1) · scale from every query."""
    received = (np.arange(4) + 1.0) * scale
    maps = np.tile(received, (2, 3, 4, 1))
    return {
        "attention": maps.tolist(),
        "norms": (2 * maps).tolist(),
        "rollout": np.tile(received, (4, 1)).tolist(),
        "norm_rollout": np.tile(received, (4, 1)).tolist(),
    }


@pytest.fixture
def pair() -> Explained:
    shares = np.arange(16.0).reshape(4, 4)
    result = {
        "pairs": shares.tolist(),
        "decomposition": (-shares).tolist(),
        "occlusion": [[0.0, 0.1, 0.4, 0.0], [0.0, 0.3, 0.2, 0.0]],
        "texts": [{"token_ids": [1, 5, 6, 2], "offsets": OFFSETS}] * 2,
    }
    return of_pair(result, [side(1.0), side(0.1)])


def test_importance_is_what_a_token_receives_or_its_row_and_column(pair):
    np.testing.assert_allclose(pair.importance["weights"][1], [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(pair.importance["norms"][0], [2, 4, 6, 8])
    np.testing.assert_allclose(pair.importance["pairs"][0], [6, 22, 38, 54])
    np.testing.assert_allclose(pair.importance["pairs"][1], [24, 28, 32, 36])
    assert pair.removable == ([1, 2], [1, 2])


def test_the_most_important_goes_first_and_special_tokens_stay(pair):
    masks = kept_masks(pair, pair.importance["occlusion"])
    gone = [sum(4 - int(mask.sum()) for mask in both) for both in masks]
    assert gone == [0, 1, 1, 2, 2]
    assert [mask.tolist() for mask in masks[1]] == [[1, 1, 0, 1], [1, 1, 1, 1]]
    assert [mask.tolist() for mask in masks[3]] == [[1, 1, 0, 1], [1, 0, 1, 1]]


def test_a_curve_is_over_the_cosine_of_whole_texts(pair):
    def cosines(pairs, masks):
        counts = [[float(a.sum() + b.sum()) / 16 for a, b in steps] for steps in masks]
        return np.array(counts)

    curves = deletion([pair], cosines)
    assert set(curves) == {"random", *pair.importance}
    np.testing.assert_allclose(curves["pairs"], 1 - np.array([0, 1, 1, 2, 2]) / 8)


def test_agreement_is_a_rank_correlation_over_both_texts(pair):
    assert agreement([pair], "occlusion") == pytest.approx(1)
    # ranks of 22, 38, 28, 32 against ranks of 0.1, 0.4, 0.3, 0.2: 1 − 6·2 / (4·15)
    assert agreement([pair], "pairs") == pytest.approx(0.8)
    assert agreement([pair], "decomposition") == pytest.approx(-0.8)


def test_pairs_are_the_most_alike_half_evenly(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("".join(f"a{i},b{i},{i}\n" for i in range(8)))
    assert read_pairs(path, 2) == [("a7", "b7"), ("a4", "b4")]
