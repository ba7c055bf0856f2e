"""Steps of a call, executed by hand with a fake clock; splitting of lists into requests."""

from __future__ import annotations

import json

import httpx
import pytest

from headscope import calls, task_calls
from headscope.errors import DeadlineExceeded, Overloaded, Unavailable
from headscope.exchange import REPLY_BYTES, REQUEST_CHARACTERS, conduct, ranges_of
from headscope.reading import read_info
from headscope.sending import Retries, Session
from headscope.wire import Answer, Lost, Send, Together, Wait
from tests.clients.python.fake import INFO, URL, lengths_of

FULL = Answer(429, {}, b'{"detail": "full"}')


class Clock:
    """Clock that only advances when a step waits."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def steps_of(answers, jitter=0.5, timeout=60.0, retries=5, **rules):
    """Yield every step of a call of one text, answered in turn; return or raise its outcome."""
    clock = Clock()
    session = Session(URL, timeout, Retries(retries, **rules), clock, lambda: jitter)
    (steps,) = next(conduct(calls.embed("7"), session)).exchanges
    seen, given, left = [], None, iter(answers)
    while True:
        try:
            step = steps.send(given)
        except StopIteration:
            return seen
        except Exception as error:
            return [*seen, error]
        seen.append(step)
        if isinstance(step, Wait):
            clock.now += step.seconds
        given = next(left) if isinstance(step, Send) else None


def waits(*arguments, **options):
    return [step.seconds for step in steps_of(*arguments, **options) if isinstance(step, Wait)]


def test_waits_double_and_half_of_each_is_random():
    assert waits([FULL] * 6, jitter=1) == [0.25, 0.5, 1, 2, 4]
    assert waits([FULL] * 6, jitter=0) == [0.125, 0.25, 0.5, 1, 2]
    assert waits([Lost("refused")] * 9, jitter=1, retries=8)[-2:] == [8, 8]


def test_retry_after_is_the_least_that_is_waited():
    busy = Answer(503, {"retry-after": "3"}, b"")
    assert waits([busy, busy, FULL, *[busy] * 9], jitter=1, retries=3) == [3.25, 3.5, 1]


def test_every_try_is_told_what_is_left():
    *steps, error = steps_of([Answer(429, {"retry-after": "2"}, b"")] * 9, jitter=1, timeout=4.5)
    sends = [step for step in steps if isinstance(step, Send)]
    assert [step.headers["x-request-timeout-ms"] for step in sends] == ["4500", "2250"]
    assert sends[1].seconds == 2.25
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
    assert [step.seconds for step in steps if isinstance(step, Wait)] == [1, 11, 3, 3]
    first, *_ = steps
    assert (first.silence_seconds, first.headers["x-request-timeout-ms"]) == (20, "20000")
    assert isinstance(error, Unavailable)
    assert str(error) == "502: Bad Gateway"
    assert len(steps_of([FULL], **rules)) == 2, "429 is not among the statuses"


@pytest.mark.parametrize("lost", [Lost("x", begun=True), Lost("x", late=True)])
def test_a_reply_that_had_begun_is_not_asked_for_again(lost):
    assert len(steps_of([lost])) == 2


def test_limits_are_asked_once_and_only_for_lists():
    session = Session(URL, 60, Retries())
    first = conduct(calls.embed(["1", "2", "3", "4"]), session)
    asked = next(first)
    assert (asked.method, asked.path, asked.content) == ("GET", "/info", None)
    together = first.send(Answer(200, {}, json.dumps(INFO).encode()))
    assert [json.loads(next(steps).content)["inputs"] for steps in together.exchanges] == [
        ["1", "2", "3"],
        ["4"],
    ]
    assert isinstance(next(conduct(calls.embed(["1", "2"]), session)), Together)
    assert next(conduct(calls.embed(["1", "2"], model="b c"), session)).path == "/info?model=b+c"


def ranges(call, **limits):
    info = read_info(json.dumps(INFO | {"max_client_batch_size": 99} | limits).encode())
    found = list(ranges_of(call, info))
    assert [i for part in found for i in part] == list(range(len(call.inputs)))
    return [len(part) for part in found]


def test_a_request_has_as_many_inputs_as_are_taken():
    assert ranges(calls.embed(["a"] * 10), max_client_batch_size=4) == [4, 4, 2]
    assert ranges(calls.embed(["a"] * 4), max_client_batch_size=4) == [4]


def test_a_request_is_bounded_by_characters_and_a_long_text_stands_alone():
    long = "x" * REQUEST_CHARACTERS
    assert ranges(calls.embed(["a", long, "a", "a"])) == [1, 1, 2]
    assert ranges(task_calls.rerank(long, ["a", "b"])) == [1, 1], (
        "each text is computed with the query"
    )


def test_a_request_leaves_room_in_the_queue():
    assert ranges(calls.embed(["x" * 300] * 8), max_queue_tokens=1600) == [2, 2, 2, 2]


def test_a_request_is_bounded_by_what_its_reply_weighs():
    """A text of 1000 characters has about 335 tokens, here 100: 2 · 2 maps of 40 kB."""
    texts = ["x" * 1000] * 90
    limits = {"max_queue_tokens": 10**9, "layers": 20, "heads": 10}
    each = 200 * 100 * 100 * 4
    assert max(ranges(calls.attention(texts), **limits)) == REPLY_BYTES // each
    assert max(ranges(calls.attention(texts, top_k=25), **limits)) == 2 * REPLY_BYTES // each
    assert ranges(calls.attention(texts, layers=[0], heads=[1]), **limits) == [90]
    pooled = calls.attention(texts, max_size=50, include=["norms"])
    assert max(ranges(pooled, **limits)) == 4 * REPLY_BYTES // each
    row = calls.attention(texts, queries=[0], keys=[1, 2])
    assert ranges(row, **limits) == [90]
    assert ranges(calls.attention(texts, include=["stats"]), **limits) == [90]
    rows = {"max_queue_tokens": 10**9, "hidden_size": 8192}
    assert max(ranges(calls.encode(texts), **rows)) == REPLY_BYTES // (100 * 8192 * 4)
    assert ranges(calls.embed(texts), **rows) == [90]
    several = calls.encode(texts, layers=[0, 1])
    assert max(ranges(several, **rows)) == REPLY_BYTES // (2 * 100 * 8192 * 4)


def test_replies_of_a_fake_are_read():
    """The fake of these tests writes replies that the client can read."""
    content = lengths_of(["7", "12"]).content
    assert isinstance(lengths_of(["7"]), httpx.Response)
    assert [one.pooled[0] for one in calls.encode(["7", "12"]).read(content, ["7", "12"])] == [
        7,
        12,
    ]


def test_targets_count_as_their_inputs_do_and_go_with_them():
    """Three inputs fit into a request; a long target fills one."""
    info = read_info(json.dumps(INFO | {"max_queue_tokens": 10**9}).encode())
    long = "x" * REQUEST_CHARACTERS
    call = calls.attention(list("abcde"), targets=["A", "B", "C", long, "E"])
    parts = list(ranges_of(call, info))
    assert [(part.start, part.stop) for part in parts] == [(0, 3), (3, 4), (4, 5)]
    assert call.written(parts[0]) == {"inputs": ["a", "b", "c"], "targets": ["A", "B", "C"]}
    assert "targets" not in calls.attention(["a"]).written(range(1))
