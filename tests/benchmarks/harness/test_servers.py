"""A server is measured only after a right reply, and every request must be answered."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.harness.servers import Server, running
from benchmarks.harness.ways import over_http
from testing.generators import LoadError
from testing.process import StartError

SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["content-length"])))["text"]
        content = json.dumps([float(len(text)), 1.0]).encode()
        self.send_response(200 if text != "bad" else 500)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer.request_queue_size = 512  # all connections of an open loop
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server(code: str = SERVER) -> Server:
    return Server(
        name="stand-in",
        precision="fp32",
        command=lambda port: [sys.executable, "-c", code, str(port)],
        path="/vector",
        body=lambda text: {"text": text},
        vector=lambda reply: reply,
    )


def test_vectors_and_load():
    with running(server(), "a") as started:
        np.testing.assert_array_equal(started.vectors(["a", "abc"]), [[1, 1], [3, 1]])
        result = started.load(started.requests(["a", "ab", "abc"]), 2)
        assert result.outcomes == ["right"] * 3
        with pytest.raises(StartError, match="stand-in answers 500"):
            started.vectors(["bad"])
        with pytest.raises(LoadError, match="500"):
            started.load(started.requests(["a", "bad"]), 1)
    assert started.process.returncode is not None


def test_a_server_that_ends():
    with pytest.raises(StartError, match="no luck"), running(server("exit('no luck')"), "a"):
        pass


def test_ways_over_http_run_a_server_that_is_paused_between_them():
    with running(server(), "a") as started:
        closed, paced = over_http(started, [2], 0.9)
        assert (closed.name, paced.name) == (
            "stand-in, HTTP, 2 connections",
            "stand-in, HTTP, fixed arrivals",
        )
        assert paced.paced_by == closed.name
        for way, rate in ((closed, None), (paced, 200.0)):
            measured = way.run(["a", "b", "c"], rate)
            assert len(measured.latencies_ms) == 3
            assert measured.seconds > 0
