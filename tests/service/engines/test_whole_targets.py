"""All results of a target, from the fake engine."""

from __future__ import annotations

import numpy as np
import pytest

from model.config.decoder import DecoderConfig
from service.engines.contract import Output, TextTask
from service.engines.fake import FakeEngine
from service.engines.whole_targets import target_maps, target_tensors, whole_target
from tests.service.harness import CONFIG


def test_a_whole_target_has_every_tensor() -> None:
    engine, decoder = FakeEngine(CONFIG), DecoderConfig(layers=CONFIG, start_token_id=0)
    ids, h = np.arange(5), CONFIG.hidden_size
    task = TextTask(ids, ids, (2,), target=whole_target(np.arange(3), decoder))
    (output,) = engine.run([task])
    maps = target_maps(output, decoder)
    assert [(each.kind, each.layer) for each in maps] == [
        *(("decoder", 0), ("decoder", 1), ("cross", 0), ("cross", 1)),
    ]
    found = target_tensors(output, engine.run(maps))
    assert (found.hidden.shape, found.cross_queries.shape) == ((3, 3, h), (2, 3, h))
    assert (found.maps.shape, found.cross_maps.shape) == ((2, 2, 3, 3), (2, 2, 3, 5))
    np.testing.assert_array_equal(found.cross_maps[1], engine.expected(maps[3]).maps)


def test_what_is_missing_is_told() -> None:
    with pytest.raises(ValueError, match="not computed whole"):
        target_tensors(Output(), [])
