"""Requests and ratios of the outputs of one pass."""

from __future__ import annotations

from benchmarks import one_pass


def test_the_spans_cover_each_text_and_all_outputs_need_them():
    named = one_pass.bodies(["tokens", "pooled"])
    assert [*named] == ["pooled", "spans", *(f"windows {n}" for n in one_pass.WINDOWED_WORDS)]
    (spans,) = {tuple(map(tuple, own)) for own in named["spans"]["spans"]}
    assert [end for _, end in spans[:-1]] == [first for first, _ in spans[1:]]
    assert spans[-1][1] == len(named["spans"]["inputs"][0])
    every = one_pass.bodies(["tokens", *one_pass.HYBRID])
    assert every["all outputs"]["outputs"] == one_pass.HYBRID


def test_ratios_are_medians_of_the_rounds():
    short, middle, long = (f"windows {words}" for words in one_pass.WINDOWED_WORDS)
    spent = {"pooled": [1.0, 2.0, 4.0], "spans": [1.0, 4.0, 6.0]}
    spent |= {short: [1.0] * 3, middle: [2.0, 3.0, 2.0], long: [4.0, 9.0, 3.0]}
    assert one_pass.ratios(spent) == {
        "spans / pooled": 1.5,
        f"{middle} / {short}": 2.0,
        f"{long} / {middle}": 2.0,
    }
