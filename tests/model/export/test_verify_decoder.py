"""Verification of a decoder: all tensors are compared, and wrong ones reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.export.verify import report, verify
from model.export.verify_decoder import labels_for
from model.numerics.batch import pack
from model.runtimes import pytorch


def test_what_was_verified_is_recorded(translator: tuple[Path, Artifact]) -> None:
    record = translator[1].manifest.verification
    assert record.passed
    kinds = {"decoder_hidden", "decoder_attention", "decoder_values"}
    kinds |= {"cross_queries", "cross_attention", "cross_values", "logprobs"}
    assert kinds <= record.tolerances.keys() == record.max_abs_diff_below.keys()
    assert record.tolerances["cross_attention"]["atol"] == 1e-5
    assert record.tolerances["logprobs"]["atol"] == record.tolerances["decoder_hidden"]["atol"]


def test_a_wrong_decoder_is_told_where_it_begins(
    bart_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = pytorch.load_decoder

    def bent(artifact: Artifact) -> object:
        decoder = load(artifact)
        assert decoder is not None
        decoder.layer(1).cross.query.weight.mul_(1.01)
        return decoder

    monkeypatch.setattr("model.export.rounding.load_decoder", bent)
    found = verify(bart_artifact)
    assert not found.passed
    assert found.failed is not None
    assert "first cross-attention of layer 1, head 0" in found.failed
    assert "cross_attention   layer 1   max abs diff" in report(found)


def test_targets_are_as_long_as_the_texts_in_the_opposite_order(bart_artifact: Artifact) -> None:
    decoder = bart_artifact.manifest.decoder
    assert decoder is not None
    batch = pack([(np.zeros(n, np.int64), np.zeros(n, np.int64)) for n in (3, 9, 1, 60)])
    assert [len(labels) for labels in labels_for(batch, decoder)] == [48, 1, 9, 3]
