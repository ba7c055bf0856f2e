"""The client without the service: servers that misbehave, and replies made by hand."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from safetensors.numpy import save

from headscope import HeadscopeError, attention, attentions


@contextlib.contextmanager
def answering(status: int, body: bytes, length: int | None = None) -> Iterator[tuple[str, list]]:
    """A server with one answer to everything, and the requests it got."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            requests.append((self.path, dict(self.headers.items()), content))
            self.send_response(status)
            self.send_header("content-length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"detail": "the queue is full"}', "^503: the queue is full$"),
        (b"<html>bad gateway</html>", "^503: Service Unavailable$"),
        (b"[]", "^503: Service Unavailable$"),
        (b"", "^503: Service Unavailable$"),
    ],
)
def test_errors_have_the_service_s_words_and_status(body, message):
    with (
        answering(503, body) as (url, _),
        pytest.raises(HeadscopeError, match=message) as failed,
    ):
        attention(url, "a text")
    assert failed.value.status == 503


def test_a_reply_that_breaks_off_is_no_reply():
    with answering(200, b"half", length=100) as (url, _), pytest.raises(HeadscopeError) as failed:
        attention(url, "a text")
    assert failed.value.status is None
    assert str(failed.value).startswith(f"no reply from {url}/attention")


@pytest.mark.parametrize("body", [b"", b"<html>hello</html>", save({"a": np.zeros(1)}, {"b": "c"})])
def test_another_program_answers(body):
    with (
        answering(200, body) as (url, _),
        pytest.raises(HeadscopeError, match="is not of this service"),
    ):
        attention(url, "a text")


def test_nobody_answers():
    with answering(200, b"") as (url, _):
        pass
    with pytest.raises(HeadscopeError, match="no reply from"):
        attention(url, "a text")


def test_only_http_is_fetched():
    with pytest.raises(ValueError, match="file:///etc/attention is not an address"):
        attention("file:///etc", "a text")


@pytest.mark.parametrize("key", [None, "secret"])
def test_the_key_is_sent_as_a_bearer_token(key):
    with answering(401, b"") as (url, requests), pytest.raises(HeadscopeError, match="401"):
        attention(f"{url}/", ("a", "b"), api_key=key, layers=[1])
    ((path, headers, content),) = requests
    assert path == "/attention"
    assert headers.get("Authorization") == (key and f"Bearer {key}")
    assert content == b'{"inputs": [["a", "b"]], "layers": [1]}'


def test_each_text_gets_what_is_its_own():
    """Of twelve texts, so that 1 and 11 are easily taken for each other."""
    lengths = np.arange(12) + 2
    bounds = np.cumsum([0, *lengths])
    tensors = {
        "cu_seqlens": bounds.astype(np.int32),
        "token_ids": np.arange(bounds[-1], dtype=np.int32),
        "segment_ids": np.zeros(bounds[-1], np.int32),
        "truncated": (lengths == 5).astype(np.uint8),
        "pooled_shift": (lengths / 100).astype(np.float32),
    }
    for i, size in enumerate(lengths):
        tensors[f"attention.{i}.indices"] = np.full((1, 1, size, 1), i, np.int32)
        tensors[f"attention.{i}.values"] = np.full((1, 1, size, 1), i, np.float16)
        tensors[f"stats.{i}.entropy"] = np.full((1, 1), i, np.float32)
        tensors[f"rollout.{i}"] = np.full((size, size), i, np.float32)
    lists = {
        "layers": [4],
        "heads": [2],
        "tokens": [["t"] * int(size) for size in lengths],
        "offsets": [[[0, 0]] * int(size) for size in lengths],
    }
    metadata = {name: json.dumps(value) for name, value in lists.items()}
    body = save(tensors, metadata | {"model": "m", "backend": "torch"})
    with answering(200, body) as (url, _):
        replies = attentions(url, [str(i) for i in range(12)])
    for i, (size, found) in enumerate(zip(lengths, replies, strict=True)):
        assert (found.texts, found.layers, found.heads) == ((str(i),), [4], [2])
        assert (found.model, found.backend) == ("m", "torch")
        assert found.token_ids == list(range(bounds[i], bounds[i + 1]))
        assert (len(found.tokens), found.truncated) == (size, size == 5)
        assert found.tensors.keys() == {
            "attention.indices",
            "attention.values",
            "stats.entropy",
            "rollout",
            "pooled_shift",
        }
        assert found.statistics.keys() == {"entropy"}
        assert found.rollout.shape == (size, size)
        assert found.tensors["pooled_shift"] == np.float32(size / 100)
        del found.tensors["pooled_shift"]
        assert {float(tensor.flat[0]) for tensor in found.tensors.values()} == {float(i)}
