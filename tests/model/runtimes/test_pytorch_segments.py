from __future__ import annotations

import itertools
from pathlib import Path

import torch

from model.checkpoint import load_checkpoint
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.runtimes.pytorch import with_merged_layers
from tests.model.families.parity import texts_of
from tests.model.jina_v3 import Reference, write_published


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
