"""Both clients against well-behaved and broken services: lists, retries, errors, deadlines."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest

from headscope import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    Failed,
    HeadscopeError,
    InvalidReply,
    NoConnection,
    NotFound,
    Overloaded,
    Refused,
    Retries,
    TooLarge,
    Unauthorized,
    Unavailable,
    attention,
)
from tests.clients.python.fake import INFO, URL, Service, asked, lengths_of, problem, sent

TEXTS = [str(i) for i in range(10)]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_: Retries, error: HeadscopeError, *_numbers: float) -> float:
        return 0.001 + (error.retry_after_seconds or 0)

    monkeypatch.setattr(Retries, "wait", wait)


def test_a_long_list_is_several_requests_and_one_result_in_order(kind):
    """The order of answers does not matter: the first request waits for the others."""

    def last_comes_first(request, _):
        if kind == "sync" and "0" in sent(request)["inputs"]:
            time.sleep(0.02)

    service = Service(last_comes_first)
    found = asked(kind, "embed", service, TEXTS, max_in_flight=2)
    np.testing.assert_array_equal(found[:, 0], np.arange(10))
    assert sorted(sent(r)["inputs"] for r in service.requests) == [
        *(TEXTS[0:3], TEXTS[3:6], TEXTS[6:9], TEXTS[9:])
    ]
    assert service.most <= 2


def test_what_is_sent(kind):
    service = Service()
    fields = {"layer": np.int64(1), "model": "m"}
    asked(kind, "embed", service, "7", api_key="secret", timeout=900, fields=fields)
    (request,) = service.requests
    assert str(request.url) == f"{URL}/encode"
    assert sent(request) == {"inputs": ["7"], "layer": 1, "model": "m", "outputs": ["pooled"]}
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["accept"] == "application/vnd.safetensors"
    assert 800_000 < int(request.headers["x-request-timeout-ms"]) <= 900_000
    assert asked(kind, "encode", service, []) == ()
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    "first",
    [
        (429, b"{}", "0"),
        (503, b"<html>", "Sun, 06 Nov 1994 08:49:37 GMT"),
        (503, b'{"detail": "starting"}', "soon"),
        httpx.ConnectError("refused"),
        httpx.RemoteProtocolError("Server disconnected without sending a response."),
        httpx.ReadError("reset"),
    ],
    ids=str,
)
def test_what_another_try_may_answer_is_sent_again(kind, first):
    def once(_, count):
        if count > 2:
            return None
        if isinstance(first, Exception):
            raise first
        status, body, wait = first
        return httpx.Response(status, content=body, headers={"retry-after": wait})

    service = Service(once)
    assert asked(kind, "embed", service, ["7"])[0, 0] == 7
    assert len(service.requests) == 3
    service.requests.clear()
    with pytest.raises(HeadscopeError):
        asked(kind, "embed", service, ["7"], retries=1)
    assert len(service.requests) == 2


def test_a_request_to_any_route_is_retried_and_answered_with_any_status(kind):
    service = Service(lambda _, count: problem(429 if count == 1 else 422, "no", x_mark="1"))
    answer = asked(kind, "request", service, "/v1/x", {"n": np.arange(2)}, fields={"accept": "a/b"})
    assert (answer.status, answer.headers["x-mark"]) == (422, "1")
    first, second = service.requests
    assert (first.method, second.url.path, sent(second)) == ("POST", "/v1/x", {"n": [0, 1]})
    assert second.headers["accept"] == "a/b"
    assert asked(kind, "request", service, "/info").status == 200
    busy = Service(lambda *_: problem(429, "full"))
    assert asked(kind, "request", busy, "/v1/x", {}, retries=1).status == 429
    assert len(busy.requests) == 2
    with pytest.raises(NoConnection):
        asked(kind, "request", Service(unreachable), "/v1/x", {}, retries=1)


def unreachable(*_: object) -> httpx.Response:
    raise httpx.ConnectError("refused")


def test_silence_ends_a_request_before_its_deadline(kind):
    """It is retried where the rules say so, and is not the deadline."""

    def silent(*_: object) -> httpx.Response:
        raise httpx.ReadTimeout("silent")

    service = Service(silent)
    with pytest.raises(NoConnection, match="silent"):
        asked(kind, "embed", service, ["7"], retries=Retries(2, silence_seconds=9))
    assert len(service.requests) == 3
    with pytest.raises(DeadlineExceeded):
        asked(kind, "embed", service, ["7"])


ERRORS = [
    (400, Refused),
    (401, Unauthorized),
    (404, NotFound),
    (413, TooLarge),
    (422, Refused),
    (424, Refused),
    (429, Overloaded),
    (500, Failed),
    (501, Refused),
    (502, Unavailable),
    (503, Unavailable),
    (504, Failed),
]


@pytest.mark.parametrize(("status", "error"), ERRORS)
def test_errors_by_kind_with_the_service_s_words(kind, status, error):
    refuse = Service(lambda *_: problem(status, "no: ü", x_request_id="id 1", retry_after="7"))
    with pytest.raises(error) as failed:
        asked(kind, "embed", refuse, ["7"], retries=0)
    assert str(failed.value) == f"{status}: no: ü"
    assert type(failed.value) is error
    assert (failed.value.status, failed.value.detail) == (status, "no: ü")
    assert (failed.value.request_id, failed.value.retry_after_seconds) == ("id 1", 7)
    assert failed.value.__notes__ == ["request id: id 1"]
    assert len(refuse.requests) == 1


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"[]", b"", b'{"detail": 1}'])
def test_another_program_s_errors_have_the_status_s_name(kind, body):
    refuse = Service(lambda *_: httpx.Response(503, content=body))
    with pytest.raises(Unavailable, match=r"^503: Service Unavailable$"):
        asked(kind, "embed", refuse, ["7"], retries=0)


LISTS = ("encode", "attention", "predict", "embed_sparse", "tokenize", "verify")
ARGUMENTS = {
    **{name: (["7"],) for name in LISTS},
    "explain": ([("7", "8")],),
    **{name: ("q", ["7"]) for name in ("rerank", "rank", "explain_ranking")},
    **dict.fromkeys(("models", "vocabulary", "info"), ()),
}
TEXT = {"tokens": ["a"], "token_ids": [1], "offsets": [[0, 1]], "truncated": False}
HEAD = {"model": "m", "backend": "onnx"}


@pytest.mark.parametrize(
    ("name", "status"), [*((name, 200) for name in ARGUMENTS), ("info", 204), ("info", 307)]
)
@pytest.mark.parametrize("body", [b"", b"<html>hello</html>", b"{}", b'{"a": [1]}', b"\xff" * 20])
def test_what_is_not_of_the_service_is_told(kind, name, status, body):
    """To every method, and never as another exception."""
    with pytest.raises(InvalidReply, match=f"the answer of {URL}/.* is not from this service"):
        asked(kind, name, lambda _: httpx.Response(status, content=body), *ARGUMENTS[name])


MATRIX = {"similarity": 0.5, "texts": [TEXT, TEXT], "pairs": [[1.0, 2.0]]}
SCORES = TEXT | {"query_vectors": [[1.0]], "key_vectors": [[1.0]], "weights": [[1.0]]}
SCORES |= {"scores": [[1.0, 2.0]]}
RANKING = {"scoring": "cosine", "prompts": {"query": None, "document": None}}
PIECE = {"id": 1, "text": "b", "special": False, "start": 5, "stop": 9}


@pytest.mark.parametrize(
    ("name", "arguments", "reply"),
    [
        ("explain", [[("a", "b")]], HEAD | {"results": [MATRIX]}),
        ("head_scores", ["a"], HEAD | {"layer": 0, "head": 0, "scale": 1.0, "results": [SCORES]}),
        ("explain_ranking", ["q", ["a"]], HEAD | RANKING | {"results": [{"index": 9, "score": 1}]}),
        ("score", ["q", ["a"]], {"data": [{"index": 1, "score": 0.5}]}),
        ("rerank", ["q", ["a"]], [{"index": 1, "score": 0.5}]),
        ("tokenize", ["a"], []),
        ("tokenize", ["a"], [[PIECE]] * 2),
        ("vocabulary", [], ["a", 1]),
        ("info", [], INFO | {"max_queue_tokens": 0}),
    ],
)
def test_a_reply_to_other_inputs_is_not_of_the_service(kind, name, arguments, reply):
    """Matrices of other tokens, results of other texts, and numbers that are none."""
    with pytest.raises(InvalidReply):
        asked(kind, name, lambda _: httpx.Response(200, json=reply), *arguments)


def test_one_failure_fails_the_list_and_tells_which_inputs(kind):
    def refuse(request, _):
        if "4" in sent(request)["inputs"]:
            return problem(422, "inputs[1] has 302 tokens")
        return None

    service = Service(refuse)
    with pytest.raises(Refused) as failed:
        asked(kind, "embed", service, TEXTS, max_in_flight=1)
    assert str(failed.value) == "422: inputs[4] has 302 tokens (inputs[3] to [5] of 10)"
    assert failed.value.inputs == range(3, 6)
    assert len(service.requests) == 2, "what was not begun is not sent"


def test_a_failure_ends_the_waits_of_the_others(kind):
    """The last request is finally refused while the first has half a minute to wait."""
    waits = threading.Event()

    def answer(request, _):
        if "0" in sent(request)["inputs"]:
            waits.set()
            return problem(429, "full", retry_after="30")
        return problem(422, "no") if waits.is_set() else None

    started = time.monotonic()
    with pytest.raises(Refused, match="no"):
        asked(kind, "embed", Service(answer), TEXTS, max_in_flight=2)
    assert time.monotonic() - started < 10


def test_a_reply_that_would_be_too_large_is_asked_for_in_halves(kind):
    def large(request, _):
        if len(sent(request)["inputs"]) > 1:
            return problem(413, "the reply would have 999 bytes")
        return None

    service = Service(large)
    found = asked(kind, "embed", service, TEXTS[:3])
    assert found[:, 0].tolist() == [0, 1, 2]
    assert [sent(r)["inputs"] for r in service.requests] == [
        *(["0", "1", "2"], ["0"], ["1", "2"], ["1"], ["2"])
    ]


def test_vectors_of_two_models_are_never_mixed(kind):
    def changed(request: httpx.Request, _: int) -> httpx.Response:
        inputs = sent(request)["inputs"]
        reply = lengths_of(inputs)
        reply.headers["x-model-fingerprint"] = "b" if "9" in inputs else "a"
        return reply

    with pytest.raises(
        InvalidReply, match=r"several models answered one call \(fingerprints a, b\)"
    ):
        asked(kind, "embed", Service(changed), TEXTS)
    with Client(URL, transport=httpx.MockTransport(Service(changed))) as client:
        assert [client.embed(text).item() for text in ("8", "9")] == [8, 9]


@pytest.mark.parametrize("ignored", [False, True])
def test_no_vector_of_another_model_than_the_expected_one(ignored):
    """The service refuses it; one of before the header ignores that, and the client refuses it."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["x-expect-fingerprint"] == "a"
        reply = lengths_of(sent(request)["inputs"]) if ignored else problem(409, "a and b")
        reply.headers["x-model-fingerprint"] = "b"
        return reply

    with Client(URL, transport=httpx.MockTransport(answer)) as client:
        client.expect_fingerprint = "a"
        with pytest.raises(InvalidReply if ignored else Refused) as refused:
            client.embed("8")
        assert ("the model b, and" if ignored else "409: a and b") in str(refused.value)


@pytest.mark.parametrize("error", [httpx.ReadTimeout("slow"), httpx.PoolTimeout("slow")])
def test_the_deadline_is_told(kind, error):
    def slow(*_):
        raise error

    service = Service(slow)
    with pytest.raises(DeadlineExceeded, match=f"no result from {URL} within 5 seconds"):
        asked(kind, "embed", service, ["7"], timeout=5)
    assert len(service.requests) == 1


class Dripping(httpx.AsyncByteStream):
    """A reply that never ends, or breaks off."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def __aiter__(self):
        while not self.error:
            await asyncio.sleep(0.005)
            yield b"x"
        raise self.error


def test_a_reply_that_drips_ends_with_the_deadline(kind):
    service = Service(lambda *_: httpx.Response(200, stream=Dripping(None)))
    with pytest.raises(DeadlineExceeded):
        asked(kind, "embed", service, ["7"], timeout=0.05)


def test_a_reply_that_breaks_off_is_none_and_not_asked_for_again(kind):
    service = Service(lambda *_: httpx.Response(200, stream=Dripping(httpx.ReadError("reset"))))
    with pytest.raises(NoConnection, match=f"^no reply from {URL}/encode: reset$") as failed:
        asked(kind, "embed", service, ["7"])
    assert (failed.value.status, len(service.requests)) == (None, 1)


def test_an_interrupt_cancels_the_request():
    ended = threading.Event()

    async def stalls(_: httpx.Request) -> httpx.Response:
        asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with Client(URL, transport=httpx.MockTransport(stalls)) as client:
        with pytest.raises(KeyboardInterrupt):
            client.embed("7")
        assert ended.wait(10)


FORKED = """
import os, httpx
from headscope import Client
from tests.clients.python.fake import URL, Service

client = Client(URL, transport=httpx.MockTransport(Service()))
client.embed("1")
if not (child := os.fork()):
    os._exit(int(client.embed("7")[0, 0]))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_sends_too():
    run = [sys.executable, "-X", "dev", "-c", FORKED]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("7\n", "")


CONNECTED = """
import os, socket, threading
from headscope import Client

def serve(connection):
    while connection.recv(65536):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n")

listener = socket.create_server(("127.0.0.1", 0))
client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", retries=0, timeout=20)

def accept():
    while True:
        threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

threading.Thread(target=accept, daemon=True).start()
client.request("/info")
if not (child := os.fork()):
    status = client.request("/info").status
    client.close()
    os._exit(status % 199)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), client.request("/info").status)
"""


def test_a_forked_process_has_connections_of_its_own():
    run = [sys.executable, "-c", CONNECTED]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("1 200\n", "")


def test_a_client_that_is_called_while_it_tells_of_a_retry_does_not_hang():
    seen = []

    def told(error: HeadscopeError) -> None:
        with pytest.raises(RuntimeError, match="tells of a retry"):
            client.info()
        seen.append(error)

    rules = Retries(1, first_wait_seconds=0.01, on_retry=told)
    with Client("http://127.0.0.1:9", retries=rules) as client, pytest.raises(NoConnection):
        client.info()
    assert len(seen) == 1


def test_an_exit_while_a_client_tells_of_a_retry_is_the_callers():
    """Later calls, of all clients, are answered."""

    def leaves(error: HeadscopeError) -> None:
        raise SystemExit(3)

    with Client("http://127.0.0.1:9", retries=Retries(1, on_retry=leaves)) as client:
        for _ in range(2):
            with pytest.raises(SystemExit, match="3"):
                client.info()
    with Client(URL, transport=httpx.MockTransport(Service())) as client:
        assert client.embed("7")[0, 0] == 7


def test_nobody_answers():
    with pytest.raises(NoConnection, match=r"no reply from http://127\.0\.0\.1:9/attention"):
        attention("http://127.0.0.1:9", "a text")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "file:///etc"}, "file:///etc is not an address of http"),
        ({"url": "localhost:8000"}, "not an address"),
        ({"url": "http://a:b"}, "not an address"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"retries": -1}, "retries is at least 0"),
        ({"max_in_flight": 0}, "max_in_flight at least 1"),
        ({"api_key": "a\nb"}, "api_key is empty"),
    ],
)
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_settings_that_make_no_sense(client, settings, says):
    with pytest.raises(ValueError, match=says):
        client(**{"url": URL} | settings)


def test_a_transport_without_asyncio():
    with pytest.raises(TypeError, match="AsyncHTTPTransport"):
        Client(URL, transport=httpx.HTTPTransport())


def test_both_have_the_same_methods_documented():
    methods = ("encode", "embed", "attention", "predict", "rerank", "embed_sparse", "vocabulary")
    for name in (*methods, "verify", "info", "models", "__init__"):
        one, other = getattr(Client, name), getattr(AsyncClient, name)
        if name != "__init__":
            assert inspect.signature(one) == inspect.signature(other)
            assert one.__doc__ == other.__doc__
            assert one.__name__ == name
        assert next(iter(inspect.signature(one).parameters)) == "self"
    assert str(inspect.signature(Client(URL).rerank)).startswith("(query: 'str', texts")
