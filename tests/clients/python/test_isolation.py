"""Refused inputs: their errors in their places, and answers for all others."""

from __future__ import annotations

import json

import httpx
import pytest

from headscope import (
    Failed,
    HeadscopeError,
    NotFound,
    Rank,
    Refused,
    TooLarge,
    Unauthorized,
    Unavailable,
    calls,
)
from tests.clients.python.fake import INFO, Service, asked, problem, sent

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


def test_a_list_of_which_all_are_refused(kind):
    service = refusing(*TEXTS)
    found = asked(kind, "encode", service, TEXTS[:3], fields={"on_error": "return"})
    assert [one.index for one in found] == [0, 1, 2]
    assert asked_for(service) == ["012", "1", "2"]


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
