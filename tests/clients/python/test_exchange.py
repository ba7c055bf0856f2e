"""Steps of a call by hand with a fake clock: requests of a list, and refused inputs."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from headscope import (
    Client,
    Failed,
    HeadscopeError,
    NotFound,
    Rank,
    Refused,
    TooLarge,
    Unauthorized,
    Unavailable,
    calls,
    heads,
    ranking,
)
from headscope.errors import DeadlineExceeded, Overloaded
from headscope.exchange import REPLY_BYTES, REQUEST_CHARACTERS, conduct, ranges_of
from headscope.reading import read_info
from headscope.sending import Answer, Lost, Retries, Session
from tests.clients.python.fake import INFO, URL, Service, asked, problem, sent

FULL = Answer(429, {}, b'{"detail": "full"}')


class ByHand(Session):
    """Session that gets the given outcomes in turn; its clock only advances when it waits."""

    def __init__(self, outcomes=(), jitter=0.5, timeout=60.0, retries=5, **rules):
        super().__init__(URL, timeout=timeout, retries=Retries(retries, **rules))
        self.outcomes, self.steps, self.now = iter(outcomes), [], 100.0
        self.clock, self.jitter = lambda: self.now, lambda: jitter

    async def _send(self, request, seconds):
        self.steps.append((request, seconds))
        return next(self.outcomes)

    async def _wait(self, seconds):
        self.steps.append(seconds)
        self.now += seconds


def steps_of(answers, **options):
    """Return every request and wait of a call of one text, and the error of the call."""
    session = ByHand(answers, **options)
    with pytest.raises(HeadscopeError) as failed:
        asyncio.run(conduct(calls.embed("7"), session))
    return [*session.steps, failed.value]


def waits(*arguments, **options):
    return [step for step in steps_of(*arguments, **options) if isinstance(step, float)]


def test_waits_double_and_half_of_each_is_random():
    assert waits([FULL] * 6, jitter=1) == [0.25, 0.5, 1, 2, 4]
    assert waits([FULL] * 6, jitter=0) == [0.125, 0.25, 0.5, 1, 2]
    assert waits([Lost("refused")] * 9, jitter=1, retries=8)[-2:] == [8, 8]


def test_retry_after_is_the_least_that_is_waited():
    busy = Answer(503, {"retry-after": "3"}, b"")
    assert waits([busy, busy, FULL, *[busy] * 9], jitter=1, retries=3) == [3.25, 3.5, 1]


def test_every_try_is_told_what_is_left():
    *steps, error = steps_of([Answer(429, {"retry-after": "2"}, b"")] * 9, jitter=1, timeout=4.5)
    sends = [step for step in steps if isinstance(step, tuple)]
    assert [sent.headers["x-request-timeout-ms"] for sent, _ in sends] == ["4500", "2250"]
    assert sends[1][1] == 2.25
    assert isinstance(error, Overloaded), "a wait that ends after the deadline is not begun"


def test_a_deadline_that_passes_tells_what_went_wrong_before():
    *_, error = steps_of([FULL, Lost("", late=True)])
    assert isinstance(error, DeadlineExceeded)
    assert str(error) == f"no result from {URL} within 60 seconds; before that, 429: full"


def test_a_policy_sets_statuses_waits_and_silence():
    """The rules of a run that lasts for hours."""
    bad, busy = Answer(502, {}, b""), Answer(503, {"retry-after": "900"}, b"")
    rules = {"statuses": {502, 503}, "first_wait_seconds": 1, "longest_wait_seconds": 3}
    rules |= {"longest_retry_after_seconds": 9, "silence_seconds": 20, "incomplete": True}
    answers = [bad, busy, Lost("cut", begun=True), *[bad] * 2]
    *steps, error = steps_of(answers, jitter=1, timeout=99, retries=4, **rules)
    assert [step for step in steps if isinstance(step, float)] == [1, 11, 3, 3]
    (first, _), *_ = steps
    assert first.extensions["timeout"]["read"] == 20
    assert first.headers["x-request-timeout-ms"] == "20000"
    assert isinstance(error, Unavailable)
    assert str(error) == "502: Bad Gateway"
    assert len(steps_of([FULL], **rules)) == 2, "429 is not among the statuses"


def test_limits_are_asked_once_and_only_for_lists():
    requests = []

    def answer(request):
        requests.append(request.url.raw_path.decode())
        return Service()(request)

    with Client(URL, transport=httpx.MockTransport(answer)) as client:
        client.embed("1")
        assert requests == ["/encode"]
        client.embed(["1", "2", "3", "4"])
        client.embed(["1", "2"])
        assert requests == ["/encode", "/info", *["/encode"] * 3]
        client.embed(["1", "2"], model="b c")
        assert requests[-2:] == ["/info?model=b+c", "/encode"]


def ranges(call, **limits):
    info = read_info(INFO | {"max_client_batch_size": 99} | limits)
    found = list(ranges_of(call, info))
    assert [i for part in found for i in part] == list(range(len(call.inputs)))
    return [len(part) for part in found]


def test_a_request_has_as_many_inputs_as_are_taken():
    assert ranges(calls.embed(["a"] * 10), max_client_batch_size=4) == [4, 4, 2]
    assert ranges(calls.embed(["a"] * 4), max_client_batch_size=4) == [4]


def test_a_request_is_bounded_by_characters_and_a_long_text_stands_alone():
    long = "x" * REQUEST_CHARACTERS
    assert ranges(calls.embed(["a", long, "a", "a"])) == [1, 1, 2]
    assert ranges(ranking.rerank(long, ["a", "b"])) == [1, 1], (
        "each text is computed with the query"
    )


def test_a_request_leaves_room_in_the_queue():
    assert ranges(calls.embed(["x" * 300] * 8), max_queue_tokens=1600) == [2, 2, 2, 2]


def test_a_request_is_bounded_by_what_its_reply_weighs():
    """A text of 1000 characters has about 335 tokens, here 100: 2 · 2 maps of 40 kB."""
    texts = ["x" * 1000] * 90
    limits = {"max_queue_tokens": 10**9, "layers": 20, "heads": 10}
    each = 200 * 100 * 100 * 4
    assert max(ranges(heads.attention(texts), **limits)) == REPLY_BYTES // each
    assert max(ranges(heads.attention(texts, top_k=25), **limits)) == 2 * REPLY_BYTES // each
    assert ranges(heads.attention(texts, layers=[0], heads=[1]), **limits) == [90]
    pooled = heads.attention(texts, max_size=50, include=["norms"])
    assert max(ranges(pooled, **limits)) == 4 * REPLY_BYTES // each
    row = heads.attention(texts, queries=[0], keys=[1, 2])
    assert ranges(row, **limits) == [90]
    assert ranges(heads.attention(texts, include=["stats"]), **limits) == [90]
    rows = {"max_queue_tokens": 10**9, "hidden_size": 8192}
    assert max(ranges(calls.encode(texts), **rows)) == REPLY_BYTES // (100 * 8192 * 4)
    assert ranges(calls.embed(texts), **rows) == [90]
    several = calls.encode(texts, layers=[0, 1])
    assert max(ranges(several, **rows)) == REPLY_BYTES // (2 * 100 * 8192 * 4)


def test_targets_count_as_their_inputs_do_and_go_with_them():
    """Three inputs fit into a request; a long target fills one."""
    info = read_info(INFO | {"max_queue_tokens": 10**9})
    long = "x" * REQUEST_CHARACTERS
    call = heads.attention(list("abcde"), targets=["A", "B", "C", long, "E"])
    parts = list(ranges_of(call, info))
    assert [(part.start, part.stop) for part in parts] == [(0, 3), (3, 4), (4, 5)]
    assert call.written(parts[0]) == {"inputs": ["a", "b", "c"], "targets": ["A", "B", "C"]}
    assert "targets" not in heads.attention(["a"]).written(range(1))


TEXTS = [str(i) for i in range(10)]


def refusing(*bad: str, status: int = 422, words: str = "inputs[{}] has 302 tokens") -> Service:
    """Return a service that refuses the first of some texts in a request, as the real one does."""

    def refuse(request: httpx.Request, _: int) -> httpx.Response | None:
        found = [i for i, text in enumerate(sent(request)["inputs"]) if text in bad]
        return problem(status, words.format(found[0])) if found else None

    return Service(refuse)


def asked_for(service: Service) -> list[str]:
    return ["".join(sent(request)["inputs"]) for request in service.requests]


def vectors(found: list) -> list[float | int]:
    """Return the number in each vector, and the index of each error."""
    return [-one.index if isinstance(one, Refused) else one[0] for one in found]


def test_a_named_input_is_left_out_and_the_others_are_asked_for_again(kind):
    service = refusing("4", "5", "9")
    settings = {"max_in_flight": 1, "fields": {"on_error": "return"}}
    found = asked(kind, "embed", service, TEXTS, **settings)
    assert vectors(found) == [0, 1, 2, 3, -4, -5, 6, 7, 8, -9]
    assert asked_for(service) == ["012", "345", "3", "5", "678", "9"]
    assert str(found[5]) == "422: inputs[5] has 302 tokens (inputs[5] of 10)"
    assert str(found[4]) == "422: inputs[4] has 302 tokens (inputs[3] to [5] of 10)"
    assert (found[4].inputs, found[4].status) == (range(3, 6), 422)


def test_an_input_that_is_not_named_is_found_by_halves(kind):
    service = refusing("2", status=400, words="the body is not JSON")
    found = asked(kind, "embed", service, TEXTS[:3], fields={"on_error": "return"})
    assert vectors(found) == [0, 1, -2]
    assert asked_for(service) == ["012", "0", "12", "1", "2"]
    assert str(found[2]) == "400: the body is not JSON (inputs[2] of 3)"


def test_a_reply_of_one_input_that_is_too_large_is_its_error(kind):
    """Even if the service advises to request less of a field in the request."""
    words = "the reply would have 9 bytes: ask for fewer outputs"
    service = refusing("1", status=413, words=words)
    found = asked(kind, "embed", service, TEXTS[:3], fields={"on_error": "return"})
    assert vectors(found) == [0, -1, 2]
    assert isinstance(found[1], TooLarge)


def test_of_many_that_are_refused_few_are_sent_often(kind):
    """Each input is sent about log₂ n times, and each extra request isolates one error."""
    bad = [str(i) for i in range(100, 164)]
    service = refusing(*bad)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/info":
            return httpx.Response(200, json=INFO | {"max_client_batch_size": 99})
        return service(request)

    found = asked(kind, "embed", answer, bad, fields={"on_error": "return"})
    assert [one.index for one in found] == list(range(64))
    assert len(service.requests) == 64
    assert sum(len(sent(request)["inputs"]) for request in service.requests) < 64 * 6


def test_a_field_that_is_refused_is_no_fault_of_an_input(kind):
    service = Service(lambda *_: problem(422, "layer 99 is not in -3 … 2"))
    for texts in (TEXTS[:3], TEXTS[:1]):
        with pytest.raises(Refused, match="layer 99"):
            asked(kind, "encode", service, texts, fields={"on_error": "return", "layer": 99})
    assert len(service.requests) == 2


def test_a_field_that_the_inputs_exceed_together_is_found_by_halves(kind):
    def trouble(request: httpx.Request, _: int) -> httpx.Response | None:
        many = len(sent(request)["inputs"]) > 1
        return problem(422, "outputs: the inputs give too many") if many else None

    found = asked(kind, "embed", Service(trouble), TEXTS[:3], fields={"on_error": "return"})
    assert vectors(found) == [0, 1, 2]


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, Unauthorized), (404, NotFound), (424, Refused), (500, Failed), (503, Unavailable)],
)
def test_what_ails_the_whole_service_is_raised(kind, status, error):
    service = refusing("4", status=status)
    settings = {"retries": 0, "max_in_flight": 1, "fields": {"on_error": "return"}}
    with pytest.raises(error):
        asked(kind, "embed", service, TEXTS, **settings)
    assert asked_for(service) == ["012", "345"]


def test_the_input_that_is_named_is_the_error_s_where_it_is_raised(kind):
    with pytest.raises(HeadscopeError) as failed:
        asked(kind, "embed", refusing("4"), TEXTS, max_in_flight=1)
    assert failed.value.index == 4
    with pytest.raises(HeadscopeError) as failed:
        asked(kind, "embed", refusing("4", words="no"), TEXTS, max_in_flight=1)
    assert (failed.value.index, failed.value.inputs) == (None, range(3, 6))


def test_errors_stand_after_the_ranks(kind):
    """The score of a text is the number that it spells."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/info":
            return httpx.Response(200, json=INFO)
        texts = json.loads(request.content)["texts"]
        if "3" in texts:
            return problem(422, f"texts[{texts.index('3')}] has 302 tokens")
        ranks = [{"index": i, "score": float(text)} for i, text in enumerate(texts)]
        return httpx.Response(200, json=sorted(ranks, key=lambda rank: -rank["score"]))

    found = asked(kind, "rerank", answer, "q", TEXTS[:6], fields={"on_error": "return"})
    assert [one.index for one in found] == [5, 4, 2, 1, 0, 3]
    assert [type(one) for one in found] == [*[Rank] * 5, Refused]


def test_another_word_than_raise_and_return():
    with pytest.raises(ValueError, match=r"on_error is 'ignore': use \"raise\" or \"return\""):
        calls.embed(["a"], on_error="ignore")
