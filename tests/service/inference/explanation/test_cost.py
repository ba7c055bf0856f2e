"""Work of an explanation, and the texts that fit into the time of a request."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from service.engines.fake import FakeEngine
from service.errors import Unprocessable
from service.inference.explanation.cost import (
    Costs,
    Load,
    Side,
    Work,
    check_time,
    fitting_pair,
    needed_tokens,
)
from service.inference.explanation.options import ExplainOptions
from tests.service.harness import CONFIG, batching

NOTHING = ExplainOptions(2, None, pairs=False, occlusion=False, decomposition=False, heads=False)
THOUSAND_TOKENS_A_SECOND = [(10, 0.01), (1000, 1.0)]


def costs(**wanted: Any) -> Costs:
    return Costs(replace(NOTHING, **wanted), CONFIG, 2.0)


def pair(tokens: int, spans: int | None = None, occluded: int | None = None) -> list[Side]:
    spans = tokens if spans is None else spans
    return [Side(tokens, spans, spans if occluded is None else occluded)] * 2


@pytest.mark.parametrize(
    ("wanted", "sides", "tokens", "least"),
    [
        ({"pairs": True}, pair(40), 80, 80),
        ({"occlusion": True}, pair(40), 80 + 3200, 80 + 320),
        ({"occlusion": True}, pair(40, 20, 5), 80 + 400, 80 + 40),
        ({"heads": True}, pair(40), 80 + 2 * 4 * 40, 80 + 32),
        ({"decomposition": True}, pair(40), 80 + 2 * 2 * 40 * 41, 80 + 2 * 2 * 40 * 41),
        ({"decomposition": True}, pair(40) * 3, 240 + 6 * 2 * 40 * 41, 240 + 2 * 2 * 40 * 41),
    ],
    ids=str,
)
def test_work_is_counted_in_tokens_to_encode(
    wanted: dict[str, bool], sides: list[Side], tokens: int, least: int
) -> None:
    work = costs(**wanted).work(sides)
    assert (work.tokens, work.least) == (tokens, least)


@pytest.mark.anyio
async def test_what_no_idle_service_does_in_time_is_refused_for_good() -> None:
    """At 1,000 tokens a second: 2 · 300 + 2 · 300² / 10 tokens take 18.6 s."""
    engine = FakeEngine(CONFIG)
    engine.measured = THOUSAND_TOKENS_A_SECOND
    occlusion = costs(occlusion=True)
    with batching(engine, max_batch_tokens=1000) as (scheduler, _):

        def check(tokens: int, seconds: float) -> list[float]:
            return check_time([Load(scheduler, occlusion, pair(tokens))], seconds)

        assert occlusion.work(pair(300)).least == 18_600
        assert check(300, 18.7) == [1.0]
        with pytest.raises(Unprocessable) as refused:
            check(300, 10.0)
        assert check(218, 10.0)
        with pytest.raises(Unprocessable, match="up to 218 tokens each fits"):
            check(219, 10.0)
        with pytest.raises(Unprocessable, match="no pair of texts fits"):
            check(300, 0.0001)
    assert refused.value.status == 422
    assert not refused.value.retryable
    for words in (
        "about 18.6 s on an idle service",
        "10.0 s to compute it (--request-timeout-seconds",
        "one pair of texts of up to 218 tokens each fits",
        'occlude `spans` "words" or "sentences", or the `top` ones alone',
    ):
        assert words in refused.value.detail


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("work", "seconds", "needed"),
    [
        (Work(10_000, 1_000), 20.0, 5_000),
        (Work(100_000, 10_000), 20.0, 10_000),
        (Work(100_000, 15_000), 20.0, 15_000),
        (Work(10_000, 1_000), math.inf, 5_000),
    ],
    ids=["half of all", "half of what fits alone", "the useful part", "no deadline"],
)
async def test_half_of_what_an_idle_service_would_compute_is_asked_for(
    work: Work, seconds: float, needed: int
) -> None:
    engine = FakeEngine(CONFIG)
    engine.measured = THOUSAND_TOKENS_A_SECOND
    with batching(engine, max_batch_tokens=1000) as (scheduler, _):
        assert needed_tokens(scheduler, work, seconds) == pytest.approx(needed, abs=1)


def test_the_texts_that_fit_have_as_many_spans_for_their_tokens() -> None:
    sides, seen = pair(100, 50), []

    def fits(found: list[Side]) -> bool:
        seen.append(found[0])
        return found[0].tokens * found[0].occluded <= 800

    options = costs(occlusion=True).options
    assert fitting_pair(sides, options, fits) == "one pair of texts of up to 40 tokens each fits"
    assert Side(40, 20, 20) in seen
    assert "up to 200 tokens" in fitting_pair(sides, replace(options, top=4), fits)


@pytest.mark.anyio
async def test_two_towers_share_the_time_by_their_work() -> None:
    """A text of 100 and a picture of 200 tokens: 100 + 100² / 10 and 200 + 200² / 10 tokens."""
    engine = FakeEngine(CONFIG)
    engine.measured = THOUSAND_TOKENS_A_SECOND
    own = replace(costs(occlusion=True), texts=1)
    sides = Side(100, 100, 100), Side(200, 200, 200, picture=True)
    with batching(engine, max_batch_tokens=1000) as (scheduler, _):
        loads = [Load(scheduler, own, [side]) for side in sides]
        assert check_time(loads, 5.4) == pytest.approx([1.1 / 5.3, 4.2 / 5.3])
        with pytest.raises(Unprocessable, match="a picture always has the same number of tokens"):
            check_time(loads, 5.2)
    decomposed = replace(costs(decomposition=True), texts=1)
    assert decomposed.work([Side(40, 0, 0)] * 3).least == 120 + 2 * 40 * 41
