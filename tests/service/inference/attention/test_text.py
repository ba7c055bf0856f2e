"""Forward passes of a text and its target, and the states of each kind of map."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.signature import MapKind
from service.engines.contract import Output, Pooling, Target, TargetOutput
from service.inference.attention.layer_passes import LayerPass
from service.inference.attention.selection import AttentionSelection
from service.inference.attention.text import (
    AttentionText,
    StateLayers,
    attention_texts,
)
from service.inference.tokenization.tokenizer import Limits, TextTokenizer
from tests.service.harness import tokenized
from tests.service.with_targets import with_decoder

ALONE = AttentionText(tokenized(5), (4,), Pooling(6, "mean"))
TEXT = AttentionText(
    dataclasses.replace(tokenized(5), target=tokenized(3, 1)), (4,), ALONE.pooling, (0, 2)
)
NOTHING = AttentionSelection({})


def one(layer: int, kind: Any) -> LayerPass:
    return LayerPass(kind, layer, (0,), frozenset({"weights"}))


def test_cross_attention_needs_the_encoders_last_state() -> None:
    own = [one(4, "encoder"), one(1, "encoder"), one(1, "encoder")]
    assert StateLayers.of(own, 6) == StateLayers((1, 4), (), (), 6)
    crossing = [*own, one(2, "decoder"), one(1, "cross"), one(0, "cross")]
    layers = StateLayers.of(crossing, 6)
    assert layers == StateLayers((1, 4, 6), (2,), (0, 1), 6)
    assert (layers.most, layers.rows(TEXT)) == (3, 3 * 5 + 3 * 3)


def test_queries_and_keys_of_each_kind() -> None:
    layers = StateLayers((1, 6), (2,), (0, 1), 6)
    arrays = [np.full((2, 2), value, np.float32) for value in range(5)]
    states = layers.states(Output(arrays[:2], target=TargetOutput(arrays[2:3], arrays[3:])))
    found = [states.queries_and_keys(each) for each in (one(1, "encoder"), one(2, "decoder"))]
    assert [queries is keys for queries, keys in found] == [True, True]
    assert [int(queries[0, 0]) for queries, _ in found] == [0, 2]
    queries, keys = states.queries_and_keys(one(1, "cross"))
    assert (int(queries[0, 0]), int(keys[0, 0])) == (4, 1)


def test_shapes_and_separators_are_of_each_kinds_keys() -> None:
    assert TEXT.lengths == (5, 3)
    shapes = {kind: TEXT.lengths.shape(kind) for kind in ("encoder", "decoder", "cross")}  # type: ignore[arg-type]
    assert shapes == {"encoder": (5, 5), "decoder": (3, 3), "cross": (3, 5)}
    assert TEXT.separators_of("encoder") == TEXT.separators_of("cross") == (4,)
    assert TEXT.separators_of("decoder") == (0, 2)


def target_of(selection: AttentionSelection, layers: StateLayers) -> Target | None:
    return TEXT.task(layers, selection).target


def test_a_decoder_runs_only_where_something_of_it_is_asked() -> None:
    none, both = StateLayers((0,), (), (), 6), StateLayers((6,), (1,), (0,), 6)
    reported = dataclasses.replace(NOTHING, include=frozenset({"logprobs"}))
    assert ALONE.task(none, reported).target is None
    assert target_of(NOTHING, none) is None
    found = target_of(reported, none)
    assert found is not None
    assert (found.hidden_layers, found.cross_layers, found.logprobs) == ((), (), True)
    found = target_of(NOTHING, both)
    assert found is not None
    assert found.labels is TEXT.text.target.input_ids  # type: ignore[union-attr]
    assert (found.hidden_layers, found.cross_layers, found.logprobs) == ((1,), (0,), False)


@pytest.mark.parametrize("of", ["encoder", "decoder", "cross"])
def test_an_ablation_is_held_against_a_pass_without(of: MapKind) -> None:
    heads = ((1, 2),)
    asked = dataclasses.replace(NOTHING, ablated={of: heads})
    task, whole = TEXT.task(StateLayers((), (), (), 6), asked), TEXT.whole_task()
    assert task.target is not None
    assert whole.target is not None
    assert (task.ablated, task.target.ablated, task.target.cross_ablated) == tuple(
        heads if of == kind else () for kind in ("encoder", "decoder", "cross")
    )
    assert (whole.ablated, whole.target.ablated, whole.target.cross_ablated) == ((), (), ())
    for each in (task, whole):
        assert each.pooling == TEXT.pooling
        assert each.target is not None
        assert each.target.logprobs


def test_separators_of_a_target_are_among_what_the_decoder_reads(artifact: Artifact) -> None:
    """The start token stands before the labels, and the last of them is never read."""
    text = dataclasses.replace(tokenized(4), input_ids=np.array([101, 102, 7, 102]))
    manifest = with_decoder(artifact).manifest
    path, limits = artifact.path(TOKENIZER), Limits(512, 10**6)
    tokenizer = TextTokenizer(path, manifest.sentence, limits, target=path)
    with_target = dataclasses.replace(text, target=text)
    (prepared,) = attention_texts(manifest, tokenizer, [with_target])
    assert (prepared.separators, prepared.target_separators) == ((1, 3), (0, 2))
    (plain,) = attention_texts(artifact.manifest, tokenizer, [text])
    assert (plain.target_separators, plain.lengths) == ((), (4, 0))
