"""Shares of tokens, words and sentences; what an explanation costs, and when it is refused."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.nn import functional

from model.artifact.manifest import Artifact
from model.artifact.verification import UNVERIFIED, Verdict
from model.numerics.task_head import TaskConfig
from service.engines.fake import FakeEngine
from service.errors import NoEmbeddings, NotExported, NotVerified, ServiceError, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.explanation.explanation import (
    check_explainable,
    most_promising,
    shares_in_means,
)
from service.inference.explanation.occlusion import (
    Work,
    needed_tokens,
    promised,
    run_until,
    writing_seconds,
)
from service.inference.explanation.spans import (
    Block,
    Span,
    blocks_of,
    spans_of,
    split_sentences,
)
from service.inference.explanation.tower import (
    ExplainOptions,
    Side,
    Tower,
    fitting_pair,
)
from service.inference.timings import Timings
from service.inference.tokenization.text import PictureView, places_of
from service.scheduler.call import ANYBODY, Call
from service.scheduler.outputs import requested
from service.scheduler.scheduler import Scheduler
from tests.service.harness import CONFIG, Client, assert_problem, batching, serving, tokenized

pytestmark = pytest.mark.anyio


PAIR = ["the cat.", "a cat and the cat"]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint with a linear Dense with a bias after a mean without the prompt."""
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("linear")
    pooling = Pooling(12, "mean", include_prompt=False)
    dense = Dense(12, 9, activation_function=nn.Identity())
    nn.init.normal_(dense.linear.bias)
    SentenceTransformer(
        modules=[Transformer(str(tiny_checkpoint)), pooling, dense, Normalize()],
        prompts={"query": "the query: ", "document": ""},
        truncate_dim=7,
        device="cpu",
    ).save(str(folder))
    return folder


@pytest.fixture(scope="module")
async def client(
    exported: Callable[..., Artifact], checkpoint: Path, anyio_backend: str
) -> AsyncIterator[Client]:
    async with serving(exported(checkpoint, "linear")) as client:
        yield client


async def test_shares_through_a_linear_module_sum_to_the_similarity(
    client: Client, checkpoint: Path
) -> None:
    reference = SentenceTransformer(str(checkpoint), device="cpu")
    body = {"inputs": [PAIR], "include": ["pairs", "decomposition", "occlusion"]}
    for prompt in (None, "query"):
        reply = await client.post("/explain", json=body | {"prompt_name": prompt})
        (found,) = reply.json()["results"]
        one, other = reference.encode(PAIR, prompt_name=prompt)
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert found["similarity"] == pytest.approx(cosine, abs=1e-5)
        for name, error in (("pairs", 1e-5), ("decomposition", 1e-4)):
            assert np.sum(found[name]) == pytest.approx(cosine, abs=error)
        pairs, offsets = np.array(found["pairs"]), found["texts"][0]["offsets"]
        left_out = (
            offsets.index([0, 3]) if prompt else 0
        )  # the offsets of [CLS] and the prompt are [0, 0]
        assert bool(left_out) == bool(prompt)
        assert [len(text["tokens"]) for text in found["texts"]] == list(pairs.shape)
        assert not pairs[:left_out].any()
        assert not pairs[:, :left_out].any()
        assert pairs[left_out:, left_out:].all()
        assert np.array(found["decomposition"]).all()
        assert all(np.any(losses) for losses in found["occlusion"])


async def test_modules_that_are_not_linear_have_no_shares(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.numerics.vector_modules.Dense.additive", False)
    for name in ("pairs", "decomposition"):
        response = await client.post("/explain", json={"inputs": [PAIR], "include": [name]})
        assert_problem(response, 422, "modules after pooling that are not linear")
    body = {"inputs": [PAIR], "include": ["occlusion"]}
    assert (await client.post("/explain", json=body)).status_code == 200


async def test_time_is_asked_for_what_is_still_to_come(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token occluded once; one layer of two decomposed."""
    asked: list[tuple[int, int]] = []
    submit = Scheduler.submit

    async def spied(*args: Any, resumed: bool = False) -> Any:
        if not resumed:
            asked.append((args[3].pending.tokens, args[3].pending.needed))
        return await submit(*args, resumed=resumed)

    async def measured(*_: Any) -> float:
        return 1.2

    monkeypatch.setattr(Scheduler, "submit", spied)
    monkeypatch.setattr("service.inference.explanation.tower.part_cost", measured)
    for include, layer in ((["occlusion"], 2), (["decomposition"], 1)):
        body = {"inputs": [["a", "a cat and the cat"]], "include": include, "layer": layer}
        reply = await client.post("/explain", json=body)
        assert reply.status_code == 200, reply.text
    sizes = [len(text["tokens"]) for text in reply.json()["results"][0]["texts"]]
    steps = sum(math.ceil(1.2 * size * (size + 1) / 2) for size in sizes)
    passes, own = sum(size * size for size in sizes), sum(sizes)
    assert asked == [
        (own + passes, math.ceil(0.5 * (own + passes))),
        (own + steps, own + steps),
    ]


def test_shares_sum_to_the_cosine_that_torch_has() -> None:
    rng = np.random.default_rng(0)
    one, other = (rng.standard_normal((n, 6)).astype(np.float32) for n in (5, 3))
    found = shares_in_means([one, other], [2, 0])
    means = torch.from_numpy(one[2:]).mean(dim=0), torch.from_numpy(other).mean(dim=0)
    norms = float(means[0].norm() * means[1].norm())
    cosine = float(functional.cosine_similarity(*means, dim=0))
    for shares, length in zip(found, (5, 3), strict=True):
        assert shares.shape == (length,)
        np.testing.assert_allclose(shares.sum() / norms, cosine, atol=1e-6)
    assert found[0][:2].tolist() == [0, 0]


def test_the_largest_shares_go_first() -> None:
    shares = np.array([0.5, -2.0, 1.0, 0.75, 0.0], np.float32)
    spans = [Span(0, 1, (1, 2)), Span(2, 3, (0,)), Span(4, 5, (3, 4)), Span(6, 7, (0,))]
    assert most_promising(spans, shares, None) == [2, 1, 3, 0]
    assert most_promising(spans, shares, 2) == [2, 1]
    assert most_promising(spans, shares, 9) == [2, 1, 3, 0]


@pytest.mark.parametrize(
    "sentences",
    [
        ["One.", "Two!", "Three?"],
        ["He said “no.”", "Then Dr. Smith left.", "He is back"],
        ["It costs 3.14 in the U.S. today.", "No more"],
        ["Wait… what?", "Well!?"],
        ["今日は。", "「はい。」", "そうですか？", "ええ"],
        ["Ça va?", "Über alles.", "Ещё раз."],
        ["no end"],
        ["..."],
    ],
    ids=str,
)
def test_sentences_are_found_between_white_space(sentences: list[str]) -> None:
    for gap in (" ", "\n", " \r\n\t"):
        text = gap + gap.join(sentences) + gap
        assert [text[start:end] for start, end in split_sentences(text)] == sentences


def test_ideographic_sentences_need_no_space_and_lines_end_them() -> None:
    text = "今日は。はい。 A heading\nA sentence. and more"
    found = [text[start:end] for start, end in split_sentences(text)]
    assert found == ["今日は。", "はい。", "A heading", "A sentence.", "and more"]
    assert split_sentences(" \n ") == []


def test_spans_hold_the_tokens_of_their_characters() -> None:
    text = "A dog's life. Good"
    offsets = [(0, 0), (0, 1), (2, 5), (5, 7), (8, 12), (12, 13), (14, 16), (0, 0)]
    special = [1, 0, 0, 0, 0, 0, 0, 1]
    cut = replace(tokenized(8), places=places_of(offsets), special_tokens_mask=special)
    assert spans_of("sentences", text, cut) == [
        Span(0, 13, (1, 2, 3, 4, 5)),
        Span(14, 18, (6,)),
    ]
    assert spans_of("words", text, cut) == [
        Span(0, 1, (1,)),
        Span(2, 7, (2, 3)),
        Span(8, 12, (4,)),
        Span(12, 13, (5,)),
        Span(14, 18, (6,)),
    ]
    assert spans_of("tokens", text, cut) == [
        Span(start, end, (n,)) for n, (start, end) in enumerate(offsets)
    ]
    shorter = replace(cut, places=places_of([*offsets[:6], (0, 0), (0, 0)]))
    assert spans_of("sentences", text, shorter) == [Span(0, 13, (1, 2, 3, 4, 5))]


def test_blocks_cover_each_patch_once_and_no_special_token() -> None:
    """A class token, then 3 rows of 5 patches."""
    picture = replace(tokenized(16), picture=PictureView((3, 5), (50, 30), (0, 0, 50, 30)))
    assert blocks_of(picture, 2) == [
        Block((0, 2), (0, 2), (1, 2, 6, 7)),
        Block((0, 2), (2, 4), (3, 4, 8, 9)),
        Block((0, 2), (4, 5), (5, 10)),
        Block((2, 3), (0, 2), (11, 12)),
        Block((2, 3), (2, 4), (13, 14)),
        Block((2, 3), (4, 5), (15,)),
    ]
    assert [block.tokens for block in blocks_of(picture, 1)] == [(n,) for n in range(1, 16)]
    assert [block.tokens for block in blocks_of(picture, 9)] == [tuple(range(1, 16))]
    with pytest.raises(ValueError, match="no patches"):
        blocks_of(tokenized(16), 1)


NONE = ExplainOptions(2, None, pairs=False, occlusion=True, decomposition=False, heads=False)
PAIRS, DECOMPOSITION = replace(NONE, pairs=True), replace(NONE, decomposition=True)
HEADS = replace(NONE, heads=True)
VERIFIED = UNVERIFIED.model_copy(update=dict.fromkeys(("vectors", "heads"), Verdict(passed=True)))


class Served(Inference):
    """Part of a served model that decides whether it can be explained."""

    def __init__(
        self, *, pooling: str = "mean", additive: bool = True, static: bool = False
    ) -> None:
        manifest = SimpleNamespace(
            task=None,
            model="a/model",
            static=static,
            serving_only=False,
            decoder=None,
            config=CONFIG,
            precision="int8",
            verification=VERIFIED,
        )
        self.manifest = manifest  # type: ignore[assignment]
        self.sentence = SimpleNamespace(pooling=pooling)  # type: ignore[assignment]
        self.vectors = SimpleNamespace(additive=lambda _: additive)  # type: ignore[assignment]
        self.config, self._allow_unverified = CONFIG, False


@pytest.mark.parametrize(
    ("served", "options", "error", "says"),
    [
        (Served(pooling="cls"), PAIRS, Unprocessable, "means over tokens, and this is pooling cls"),
        (Served(), replace(PAIRS, pooling="max"), Unprocessable, "this is pooling max"),
        (Served(additive=False), PAIRS, Unprocessable, "modules after pooling"),
        (Served(additive=False), DECOMPOSITION, Unprocessable, "modules after pooling"),
        (Served(static=True), DECOMPOSITION, NotExported, "shares of input tokens"),
        (Served(static=True), HEADS, NotExported, "attention weights"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(
    served: Served, options: ExplainOptions, error: type[ServiceError], says: str
) -> None:
    with pytest.raises(error, match=says):
        check_explainable(served, options)


def test_what_is_not() -> None:
    for options in (NONE, PAIRS, DECOMPOSITION, HEADS):
        check_explainable(Served(), options)
    for options in (NONE, HEADS):
        check_explainable(Served(pooling="cls", additive=False), options)
    check_explainable(Served(pooling="cls"), replace(PAIRS, pooling="mean"))


@pytest.mark.parametrize(
    ("use", "refused", "allowed"),
    [
        ("vectors", (NONE, PAIRS, HEADS, DECOMPOSITION), ()),
        ("heads", (PAIRS, HEADS, replace(NONE, layer=1)), (NONE, DECOMPOSITION)),
    ],
)
def test_a_use_that_failed_its_verification(
    use: str, refused: tuple[ExplainOptions, ...], allowed: tuple[ExplainOptions, ...]
) -> None:
    served, failed = Served(), Verdict(passed=False, failed="least cosine 0.8")
    served.manifest.verification = VERIFIED.model_copy(update={use: failed})  # type: ignore[misc]
    for options in refused:
        with pytest.raises(NotVerified, match=r"int8 artifact .*least cosine 0\.8"):
            check_explainable(served, options)
    for options in allowed:
        check_explainable(served, options)


def test_a_model_that_gives_no_vectors() -> None:
    served = Served()
    served.manifest.task = cast("TaskConfig", SimpleNamespace())  # type: ignore[misc]
    with pytest.raises(NoEmbeddings, match="/explain does not explain a/model: ask /rank"):
        check_explainable(served, NONE)


def test_time_to_write() -> None:
    assert writing_seconds(4.0, 0) == pytest.approx(0.4)
    assert writing_seconds(100.0, 100_000_000) == pytest.approx(1.0 + 2.0)


async def test_what_is_unfinished_is_cancelled_and_errors_are_raised() -> None:
    ended: list[str] = []

    async def work(name: str, *, waits: bool = False) -> None:
        try:
            if waits:
                await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def fail() -> None:
        raise ValueError("it failed")

    await run_until(time.monotonic() + 0.01, [work("short"), work("long", waits=True)])
    assert ended == ["short", "long"]
    with pytest.raises(ValueError, match="it failed"):
        await run_until(math.inf, [work("long", waits=True), fail()])


NOTHING = ExplainOptions(2, None, pairs=False, occlusion=False, decomposition=False, heads=False)
THOUSAND_TOKENS_A_SECOND = [(10, 0.01), (1000, 1.0)]


def tower(scheduler: Any = None, texts: int = 2, **wanted: Any) -> Tower:
    inference: Any = SimpleNamespace(config=CONFIG)
    prepared = PreparedTexts([], ANYBODY, scheduler, Timings(0, 0.0, 0.0))
    return Tower(inference, replace(NOTHING, **wanted), prepared, texts, part_cost=2.0)


def reserved(towers: list[Tower], sides: list[list[Side]], seconds: float) -> Any:
    """Reserve the work of towers for some seconds, of which a tenth but at most one is to write."""
    finish_by = seconds + min(seconds / 9, 1.0)
    pairs = [(own, own.work(each)) for own, each in zip(towers, sides, strict=True)]
    caller = Call(finish_by=finish_by)
    works = [(replace(own.prepared, caller=caller), work) for own, work in pairs]
    return promised(works, 0.0, 0, partial(towers[0].advice, [s for own in sides for s in own]))


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
    work = tower(**wanted).work(sides)
    assert (work.tokens, work.least) == (tokens, least)


async def test_what_no_idle_service_does_in_time_is_refused_for_good() -> None:
    """At 1,000 tokens a second: 2 · 300 + 2 · 300² / 10 tokens take 18.6 s."""
    engine = FakeEngine(CONFIG)
    engine.measured = THOUSAND_TOKENS_A_SECOND
    with batching(engine, max_batch_tokens=1000) as (scheduler, _):

        def check(tokens: int, seconds: float) -> None:
            sides, own = pair(tokens), tower(scheduler, occlusion=True)
            with reserved([own], [sides], seconds):
                pass

        assert tower(occlusion=True).work(pair(300)).least == 18_600
        check(300, 18.7)
        with pytest.raises(Unprocessable) as refused:
            check(300, 10.0)
        check(218, 10.0)
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

    options = tower(occlusion=True).options
    assert fitting_pair(sides, options, fits) == "one pair of texts of up to 40 tokens each fits"
    assert Side(40, 20, 20) in seen
    assert "up to 200 tokens" in fitting_pair(sides, replace(options, top=4), fits)


async def test_two_towers_share_the_time_by_their_work() -> None:
    """A text of 100 and a picture of 200 tokens: 100 + 100² / 10 and 200 + 200² / 10 tokens."""
    engine = FakeEngine(CONFIG)
    engine.measured = THOUSAND_TOKENS_A_SECOND
    sides = Side(100, 100, 100), Side(200, 200, 200, picture=True)
    with batching(engine, max_batch_tokens=1000) as (scheduler, _):
        towers = [tower(scheduler, 1, occlusion=True) for _ in sides]
        each = [[side] for side in sides]
        with reserved(towers, each, 30.0) as (found, due):
            promises = [requested(own.caller.pending) for own in found]
            assert due == 30
            assert [own.writing_seconds for own in promises] == [1, 1]
            expected = [15_000 * 1.1 / 5.3, 15_000 * 4.2 / 5.3]
            assert [own.needed for own in promises] == pytest.approx(expected, abs=1)
        assert [own.tokens for own in promises] == [0, 0]
        refused = pytest.raises(Unprocessable, match="a picture always has the same number of tok")
        with refused, reserved(towers, each, 5.2):
            pass
    decomposed = tower(texts=1, decomposition=True)
    assert decomposed.work([Side(40, 0, 0)] * 3).least == 120 + 2 * 40 * 41
