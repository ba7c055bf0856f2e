"""Growth of memory is detected over batches of every shape."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import memory
from model.families.registry import parse_config
from model.numerics.batch import Batch
from tests.model.checkpoints import TINY


def test_memory_that_grows_is_seen():
    mebibytes = [10, 30, 20, 30, 35, 31]
    held = [2**20 * one for one in mebibytes]
    assert memory.growth("x", held, 2).value == 5
    assert memory.growth("x", held, 5).value == 0


class Recorder:
    """Stand-in for an encoding and its runtime that records the lengths of its inputs."""

    def __init__(self, positions: int) -> None:
        self.config = parse_config(
            {"model_type": "bert", **TINY, "max_position_embeddings": positions}
        )
        self.runtime = self
        self.batches: list[np.ndarray] = []
        self.maps_of: list[int] = []

    def warm_up(self, batch_tokens: int, longest: int) -> None:
        self.warm = (batch_tokens, longest)

    def pooled(self, batch: Batch) -> None:
        assert len(batch.input_ids) == len(batch.token_type_ids)
        self.batches.append(np.diff(batch.cu_seqlens))

    def hidden_states(self, batch: Batch, layers: list[int]) -> None:
        assert layers == [0, 1, 2]
        self.pooled(batch)

    def maps(self, text, layers, heads) -> None:
        self.maps_of.append(len(text[0]))


@pytest.mark.parametrize(("positions", "longest"), [(40, 40), (512, 90)])
def test_memory_sees_the_largest_batch_first_and_then_all_shapes(positions: int, longest: int):
    recorder = Recorder(positions)
    looked = iter(range(100))
    (seen,) = memory.watch(recorder, 100, 90, [lambda: next(looked)])
    assert seen == list(range(10))
    assert recorder.warm == (90, longest)
    assert len(recorder.batches) == 100
    assert recorder.batches[0].tolist() == [longest] * (90 // longest)
    assert max(lengths.sum() for lengths in recorder.batches) <= 90
    assert max(lengths.max() for lengths in recorder.batches) <= longest
    assert len({tuple(lengths) for lengths in recorder.batches}) > 60
    assert recorder.maps_of == [recorder.batches[0][0], recorder.batches[50][0]]
