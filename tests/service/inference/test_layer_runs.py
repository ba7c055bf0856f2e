"""Layers of a request that are recomputed, and how often."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from service.engines.contract import LayerTask, Pooling, Task
from service.errors import ReplyTooLarge, Unprocessable
from service.inference import layer_runs
from service.inference.encoding import EncodeOptions, HeadPatch, PreparedTexts
from service.inference.layer_runs import LayerRuns
from service.inference.timings import Timings
from service.scheduler.submission import ANYBODY
from tests.service.harness import CONFIG, AnsweringEngine, batching, tokenized

DEEP = CONFIG.model_copy(update={"num_hidden_layers": 6})


def runs(lengths: Sequence[int], scheduler: Any = None, **asked: Any) -> LayerRuns:
    texts = [tokenized(length, seed) for seed, length in enumerate(lengths)]
    prepared = PreparedTexts(texts, ANYBODY, scheduler, Timings(0, 0, 0))
    options = EncodeOptions(**({"layer": 6, "tokens": True, "pooled": True} | asked))
    return LayerRuns(prepared, DEEP, options, [Pooling(6, "mean")] * len(lengths))


def computed(lengths: Sequence[int], **asked: Any) -> Counter[tuple[int, int]]:
    """Return the number of steps through each layer, by tokens of the text and layer."""
    found: Counter[tuple[int, int]] = Counter()

    def count(tasks: Sequence[Task]) -> None:
        steps = [task.step for task in tasks if isinstance(task, LayerTask)]
        found.update((len(step.states), step.layer) for step in steps)

    with batching(AnsweringEngine(count, DEEP)) as (scheduler, _):
        encodings = asyncio.run(runs(lengths, scheduler, **asked).encode())
    assert len(encodings) == len(lengths)
    return found


def test_only_what_is_needed_is_computed_again() -> None:
    patches = (HeadPatch(4, 0, 0, 1), HeadPatch(4, 1, 0, 1))
    # layer 4 of the source for both heads, layers 4 and 5 of the text that is patched
    assert computed([3, 3, 9], patches=patches) == {(3, 4): 2, (3, 5): 1}
    assert computed([3, 3], patches=patches, layers=(5, 0)) == {(3, 4): 2}
    assert computed([3, 9], parts=("mlp",), layers=(2, 6)) == {
        (tokens, layer): 1 for tokens in (3, 9) for layer in (1, 5)
    }
    # the parts that write states 3 and 6 of a text that is patched in layer 4
    assert computed([3, 3], patches=patches, parts=("mlp",), layers=(3, 6)) == {
        (3, 2): 2,
        (3, 4): 2,
        (3, 5): 2,
    }


def test_what_a_request_takes_is_known_beforehand() -> None:
    asked = runs([8, 8, 9], patches=(HeadPatch(4, 0, 0, 1),))
    # three texts, a layer of the source and two of the patched text, of six, each COST as long
    each = layer_runs.COST * 8 / 6
    assert 25 + 3 * each <= asked._tokens() < 25 + 3 * (each + 1)
    assert runs([8, 8], layers=(6,)).working_bytes < asked.working_bytes


def test_other_lengths_and_long_texts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unprocessable, match=r"inputs\[0\] has 3 tokens and inputs\[1\] 4"):
        runs([3, 4], patches=(HeadPatch(0, 0, 0, 1),))
    monkeypatch.setattr(layer_runs, "LAYER_BYTES", 4 * 2 * 9**2)
    runs([9, 30], parts=(), patches=(HeadPatch(0, 0, 0, 0),))
    with pytest.raises(ReplyTooLarge, match=r"inputs\[1\] has 10 tokens"):
        runs([9, 10], parts=("mlp",))
