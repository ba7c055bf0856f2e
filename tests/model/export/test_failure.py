"""The first failure in order of computation, with its tolerance."""

from __future__ import annotations

import math

from model.export.failure import first_failure
from model.numerics.comparison import TOLERANCES, Comparison, Difference, Key, tolerances_of

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


def test_the_head_that_failed_first_is_named_before_what_it_led_to() -> None:
    """All hidden states are compared before all maps, but that is not the order of computation."""
    found = of(Key("hidden", 2), Key("attention", 1, 2), Key("attention", 1, 1), LAST)
    assert first_failure(found, TOLERANCES["int8"]) == (
        "4 of 10 tensors, first attention of layer 1, head 1: max abs diff 1.2e+01 (at most 1), "
        "min cosine 0.130000 (at least 0.5)"
    )


def test_a_layers_input_comes_before_its_heads() -> None:
    found = of(Key("attention", 1, 0), Key("hidden", 1), Key("hidden", 2))
    assert first_failure(found, TOLERANCES["fp32"]) == (
        "3 of 10 tensors, first hidden state 1: max abs diff 1.2e+01 "
        "(at most 0.0001 + 1e-05 of the largest value), min cosine 0.130000 (at least 0.99999)"
    )


def test_the_pooled_vector_comes_last() -> None:
    assert "first hidden state 2:" in first_failure(of(LAST, Key("hidden", 2)), TOLERANCES["bf16"])
    assert "1 of 10 tensors, first pooled vector:" in first_failure(of(LAST), TOLERANCES["bf16"])


def test_a_mismatch_comes_before_any_value() -> None:
    found = of(LAST)
    found.mismatches += ["one", "two"]
    assert first_failure(found, TOLERANCES["fp32"]) == "one, and 1 more mismatches"
    del found.mismatches[1]
    assert first_failure(found, TOLERANCES["fp32"]) == "one"


def test_what_is_not_finite() -> None:
    found = Comparison(differences={LAST: Difference(math.inf, -1.0, False)})
    assert "max abs diff inf" in first_failure(found, TOLERANCES["fp32"])


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
