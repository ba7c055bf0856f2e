"""Files of the project on the call stacks of one /encode and of one /attention.

A request is looked at where it begins, where its text is tokenised, where ONNX Runtime computes it,
where its maps are reduced, and where its reply is sent: the files of all that has called that, or
waits for it. What was called and has returned by then, such as the check of a header, is beside the
way.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import FrameType
from typing import Any

import onnxruntime
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from model.artifact.manifest import Artifact
from service.app import create_app
from service.http.connection import HttpProtocol
from service.inference.attention.map_parts import MapPart
from service.inference.tokenization import tokenizer
from service.process.listener import bound
from service.process.server import Server
from service.settings import Settings
from testing.process import free_port

ROOT = Path(__file__).resolve().parents[2]
POINTS: list[tuple[Any, str]] = [
    (RequestResponseCycle, "__init__"),
    (tokenizer, "Text"),
    (onnxruntime.InferenceSession, "run"),
]
SHARED = [
    "model/runtimes/contract.py",
    "model/runtimes/onnx.py",
    "service/api/wire/route.py",
    "service/engines/runtime.py",
    "service/exchange.py",
    "service/http/exchange.py",
    "service/http/connection.py",
    "service/inference/core.py",
    "service/inference/tokenization/request_tokenizer.py",
    "service/inference/tokenization/tokenizer.py",
    "service/scheduler/outputs.py",
    "service/scheduler/scheduler.py",
]
ENCODE = {*SHARED, "service/api/native/encode.py"}
ATTENTION = {
    *SHARED,
    "model/runtimes/host_graphs.py",
    "service/api/native/attention/maps.py",
    "service/inference/attention/maps.py",
    "service/inference/attention/stream.py",
    "service/inference/encoding.py",
}


class Way:
    """Files of the project on the stacks of a request."""

    def __init__(self) -> None:
        self.looked_at: set[str] = set()
        self.files: set[str] = set()

    def look(self, frame: FrameType | None, tasks: set[asyncio.Task[Any]]) -> None:
        """Add the callers of a frame, and the coroutines of the request's task.

        On another thread the event loop looks at the task, between two of its steps: the task may
        not have come to the point where it waits for the thread.
        """
        while frame and frame.f_code is not Server.run.__code__:  # which runs the event loop
            self._add(frame.f_code.co_filename)
            frame = frame.f_back
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            looked = threading.Event()
            self._loop.call_soon_threadsafe(self._look_at, tasks, looked)
            assert looked.wait(60)
        else:
            self._look_at(tasks, threading.Event())

    def _look_at(self, tasks: set[asyncio.Task[Any]], looked: threading.Event) -> None:
        for task in tasks:
            waiting = list(awaiting(task.get_coro()))
            if any(file.endswith("service/http/exchange.py") for file in waiting):
                for file in waiting:
                    self._add(file)
        looked.set()

    def _add(self, file: str) -> None:
        if Path(file).is_relative_to(ROOT):
            name = Path(file).relative_to(ROOT).as_posix()
            if name.startswith(("model/", "service/")):
                self.files.add(name)


def awaiting(coroutine: Any) -> Iterator[str]:
    """Return the files of a waiting coroutine, and of all that it awaits.

    It may await coroutines, asynchronous generators, and tasks.
    """
    while coroutine is not None:
        for prefix in ("cr", "ag"):
            if frame := getattr(coroutine, f"{prefix}_frame", None):
                yield frame.f_code.co_filename
        awaited = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
        if awaited is None or inspect.iscoroutine(awaited):
            coroutine = awaited
            continue
        (behind,) = gc.get_referents(awaited)[:1] or (None,)
        coroutine = behind.get_coro() if isinstance(behind, asyncio.Task) else behind


def watch(
    monkeypatch: pytest.MonkeyPatch, way: Way, server: Server, points: list[tuple[Any, str]]
) -> None:
    """Record the request's stacks at each of the points."""

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            way.looked_at.add(name)
            way.look(sys._getframe(1), server.server_state.tasks)
            return original(*args, **kwargs)

        return call

    for owner, name in points:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, watched(f"{owner.__name__}.{name}", original))


def ask(port: int, path: str) -> int:
    """Send one request over a connection of its own, and return the status."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", path, json.dumps({"inputs": "Hello world"}), headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "points", "files"),
    [
        ("/encode", [*POINTS, (HttpProtocol, "write_reply")], ENCODE),
        ("/attention", [*POINTS, (RequestResponseCycle, "send"), (MapPart, "of")], ATTENTION),
    ],
)
def test_a_request_passes_through_these_files(
    path: str,
    points: list[tuple[Any, str]],
    files: set[str],
    artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, port, way = Settings(), free_port(), Way()
    with bound("127.0.0.1", port, None) as sockets:
        server = Server(create_app(settings, [artifact]), settings)
        thread = threading.Thread(target=server.run, args=(sockets,))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            assert ask(port, path) == 200
            while server.server_state.tasks:  # its task may end after its reply
                time.sleep(0.01)
            watch(monkeypatch, way, server, points)
            assert ask(port, path) == 200
        finally:
            server.should_exit = True
            thread.join()
    assert way.looked_at == {f"{owner.__name__}.{name}" for owner, name in points}
    assert way.files == files
