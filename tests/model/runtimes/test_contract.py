"""Head masks without ablation, and selection of the layers that a request needs."""

from __future__ import annotations

import numpy as np

from model.families.registry import parse_config
from model.numerics.batch import pack
from model.numerics.pooling import TextPooling
from model.runtimes.contract import every_head, layers_of
from tests.model.checkpoints import TINY


def test_no_head_is_ablated_unless_asked_for() -> None:
    batch = pack([([1, 2], [0, 0]), ([3], [0]), ([4] * 9, [0] * 9)])
    mask = every_head(batch, parse_config(TINY | {"model_type": "bert"}))
    np.testing.assert_array_equal(mask, np.ones((3, 2, 3), np.float32), strict=True)


def test_each_layer_is_needed_once_and_in_order() -> None:
    poolings = [TextPooling(0, 4, "mean"), TextPooling(1, 0, "cls"), TextPooling(0, 4, "max")]
    assert layers_of([(0, 5), (1, 2), (2, 5)], poolings) == [0, 2, 4, 5]
    assert layers_of([(0, 3)], []) == [3]
    assert layers_of([], poolings[:1]) == [4]
