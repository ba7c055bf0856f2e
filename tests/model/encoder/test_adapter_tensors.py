from __future__ import annotations

import pytest
import torch

from model.config.encoder import AdapterLayout
from model.encoder.adapter_tensors import Matrices, low_rank_matrices, stacked
from model.errors import CheckpointError

LAYOUT = AdapterLayout(count=2, rank=2)
M, A, B = "layers.0.m", torch.ones(2, 4), torch.ones(5, 2)


def test_low_rank_matrices_are_told_by_their_keys() -> None:
    keys = ("a.lora_A", "a.lora_B.weight", "b.lora_embedding_A", "b.weight")
    matrices, others = low_rank_matrices(dict.fromkeys(keys, A))
    assert {name: {*pair} for name, pair in matrices.items()} == {"a": {"A", "B"}, "b": {"A"}}
    assert {*others} == {"b.weight"}


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ([{M: {"A": A}}, {}], "lacks a matrix"),
        ([{M: {"A": A, "B": torch.ones(5, 3)}}, {}], "lacks a matrix"),
        ([{M: {"A": A, "B": B}}, {M: {"A": A[:, 1:], "B": B}}], "does not fit the encoder"),
        ([{M: {"A": torch.ones(3, 4), "B": torch.ones(5, 3)}}, {}], "does not fit the encoder"),
        ([{"layers.0.n": {"A": A, "B": B}}, {}], "does not fit the encoder"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(tasks: list[Matrices], problem: str) -> None:
    tensors = {f"{M}.weight": torch.ones(5, 4)}
    with pytest.raises(
        CheckpointError, match=rf"the folder: the adapter of layers\.0\.. {problem}"
    ):
        stacked([(matrices, 1.0) for matrices in tasks], tensors, LAYOUT, "the folder")
