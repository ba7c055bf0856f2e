"""Checks of texts find damage, and report the first failure in order of computation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.artifact.manifest import Artifact
from model.checkpoint import load_checkpoint
from model.config.precision import Precision
from model.errors import CheckpointError
from model.export import loading
from model.export.verify import add_checks, compare_filled_up, first_failure, verify
from model.families.registry import read_config
from model.numerics.comparison import (
    TOLERANCES,
    Comparison,
    Difference,
    Floats,
    Key,
    keyed,
    tolerances_of,
)
from model.numerics.pooling import l2_normalize
from model.runtimes.onnx import OnnxRuntime
from model.runtimes.pytorch import load_modules
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import edit_weights
from tests.model.late_checkpoints import write_pylate, write_stanford


def tensors(degrees: float) -> dict[Key, Floats]:
    """Return the tensors of a text of one token, where only its last state is rotated."""
    angle = np.radians(degrees)
    hidden = [
        np.array([[1, 0]], np.float32),
        np.array([[np.cos(angle), np.sin(angle)]], np.float32),
    ]
    maps = np.ones((1, 1, 1, 1), np.float32)
    return keyed(hidden, maps, lambda state: l2_normalize(state.mean(axis=0)))


def compared(precision: Precision, found: float, alone: float) -> Comparison:
    """Compare a text whose last state is rotated by 0° in PyTorch, by angles in the graphs."""
    reference, candidate, comparison = tensors(0), tensors(found), Comparison()
    add_checks([reference], [candidate], [tensors(alone)])
    comparison.add(reference, candidate, tolerances_of(precision, 1))
    return comparison


def failed(comparison: Comparison) -> set[str]:
    return {str(key) for key, found in comparison.differences.items() if not found.passed}


@pytest.mark.parametrize(
    ("found", "alone", "expected"),
    [
        (0, 0, set()),
        (25, 25, set()),  # cos 25° = 0.906
        (26, 26, {"pooled (text)"}),  # cos 26° = 0.899
        (14, 0, set()),  # cos 14° = 0.9703
        (15, 0, {"hidden 1 (alone)", "pooled (alone)"}),  # cos 15° = 0.966
    ],
)
def test_a_check_has_a_bound_of_its_own(found: float, alone: float, expected: set[str]) -> None:
    comparison = compared("int8", found, alone)
    assert failed(comparison) == expected
    assert comparison.inputs == 1
    exact = failed(compared("fp32", found, alone))
    assert exact >= expected, "a stricter tolerance of the precision stays"


@pytest.mark.parametrize(
    ("found", "alone", "line"),
    [
        (
            15,
            0,
            "2 of 8 tensors, first hidden state 1 of a text in a batch, compared with the same "
            "text alone: max abs diff 2.6e-01 (at most 10 + 0.1 of the largest value), "
            "min cosine 0.965926 (at least 0.97)",
        ),
        (
            60,
            60,
            "1 of 8 tensors, first pooled vector of a text: max abs diff 8.7e-01 (at most 1), "
            "min cosine 0.500000 (at least 0.9)",
        ),
    ],
)
def test_a_failure_names_the_check(found: float, alone: float, line: str) -> None:
    assert first_failure(compared("int8", found, alone), tolerances_of("int8", 1)) == line


GOOD, BAD = Difference(1e-6, 1.0, True), Difference(12.5, 0.13, False)
LAST = Key("pooled")


def of(*failed: Key) -> Comparison:
    """Return a comparison of two layers of three heads, in which these tensors failed."""
    keys = [
        *(Key("hidden", layer) for layer in range(3)),
        *(Key("attention", layer, head) for layer in range(2) for head in range(3)),
        LAST,
    ]
    return Comparison(differences={key: BAD if key in failed else GOOD for key in keys})


LATE = (Key("hidden", 2), Key("attention", 1, 2), Key("attention", 1, 1), LAST)


@pytest.mark.parametrize(
    ("failed", "precision", "said"),
    [
        (  # all hidden states are compared before all maps, but computed in turn
            LATE,
            "int8",
            "4 of 10 tensors, first attention of layer 1, head 1: max abs diff 1.2e+01 (at most "
            "1), min cosine 0.130000 (at least 0.5)",
        ),
        (
            (Key("attention", 1, 0), Key("hidden", 1), Key("hidden", 2)),
            "fp32",
            "3 of 10 tensors, first hidden state 1: max abs diff 1.2e+01 (at most 0.0001 + 1e-05 "
            "of the largest value), min cosine 0.130000 (at least 0.99999)",
        ),
        ((LAST, Key("hidden", 2)), "bf16", "2 of 10 tensors, first hidden state 2: "),
        ((LAST,), "bf16", "1 of 10 tensors, first pooled vector: "),
    ],
)
def test_the_first_failure_in_order_of_computation_is_named(
    failed: tuple[Key, ...], precision: Precision, said: str
) -> None:
    assert first_failure(of(*failed), TOLERANCES[precision]).startswith(said)


def test_a_mismatch_comes_before_any_value() -> None:
    found = of(LAST)
    found.mismatches += ["one", "two"]
    assert first_failure(found, TOLERANCES["fp32"]) == "one, and 1 more mismatches"
    del found.mismatches[1]
    assert first_failure(found, TOLERANCES["fp32"]) == "one"


def test_a_decoder_comes_after_the_encoder_and_log_probabilities_last() -> None:
    keys = [
        Key("logprobs"),
        Key("cross_attention", 0, 1),
        Key("cross_queries", 0),
        Key("decoder_attention", 0, 2),
        Key("decoder_hidden", 0),
        LAST,
        Key("attention", 1, 2),
    ]
    tolerances = tolerances_of("fp32", 2, 2)
    named = []
    while keys:
        found = Comparison(differences=dict.fromkeys(keys, BAD))
        named.append(first_failure(found, tolerances).split("first ")[1].split(":")[0])
        keys.pop()
    assert named == [
        "attention of layer 1, head 2",
        "pooled vector",
        "decoder state 0",
        "attention of decoder layer 0, head 2",
        "query states of cross-attention in layer 0",
        "cross-attention of layer 0, head 1",
        "log-probabilities",
    ]


def expansion_compared(artifact: Artifact) -> Comparison:
    (encoder, head, _), comparison = load_modules(artifact), Comparison()
    assert head is not None
    compare_filled_up(encoder, head, OnnxRuntime(artifact), comparison, TOLERANCES["fp32"])
    return comparison


def test_an_export_is_held_to_pytorch(late_artifact: Artifact) -> None:
    record = late_artifact.manifest.verification
    assert record.passed
    assert record.min_cosine["token_vectors"] == 1.0
    assert verify(late_artifact).comparison.inputs == record.inputs
    comparison = expansion_compared(late_artifact)
    assert (comparison.passed, comparison.inputs) == (True, 4)
    assert comparison.differences.keys() == {Key("token_vectors")}


def test_a_graph_that_attends_to_what_fills_up_fails(
    late_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = OnnxRuntime.encode

    def attending(runtime: OnnxRuntime, batch: Any, *asked: Any) -> Any:
        places = batch.padded_index
        shown = dataclasses.replace(batch, padded_index=np.where(places < -1, -1 - places, places))
        return encode(runtime, shown, *asked)

    monkeypatch.setattr(OnnxRuntime, "encode", attending)
    comparison = expansion_compared(late_artifact)
    assert not comparison.passed
    assert comparison.worst("token_vectors").min_cosine < 0.999


def test_an_encoder_and_its_projection(tmp_path: Path) -> None:
    folder = write_stanford(tmp_path / "model")
    projection = torch.arange(72.0).reshape(6, 12)
    edit_weights(folder, **{"linear.weight": projection})
    config = read_config(folder)
    encoder, head, _ = loading.load_modules(
        folder, load_tokenizer(folder, config, lowercase=False), config
    )
    assert head is not None
    (held,) = head.state_dict().values()
    assert torch.equal(held, projection)
    alone = load_checkpoint(folder, config, ["linear.weight"]).state_dict()
    found = encoder.state_dict()
    assert found.keys() == alone.keys()
    assert all(torch.equal(found[name], alone[name]) for name in alone)


def test_a_stray_projection_is_still_unexpected(tmp_path: Path) -> None:
    """Only Stanford's format has a projection beside its encoder."""
    folder = write_pylate(tmp_path / "model")
    edit_weights(folder, **{"linear.weight": torch.zeros(6, 12)})
    tokenizer = load_tokenizer(folder, read_config(folder), lowercase=False)
    with pytest.raises(CheckpointError, match=r"unexpected: linear\.weight"):
        loading.load_modules(folder, tokenizer)
