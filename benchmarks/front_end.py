"""Processor time of requests, beside the same work as a plain FastAPI route; and their calls.

Run: python -m benchmarks.front_end [--rounds N] [--seconds N] [--calls]. Headscope serves with the
engine that computes nothing; the plain route parses a text with pydantic and answers with 384
floats by orjson. Both are loaded in turn, on one core, by a generator on another. Processor time is
the server's, of all threads; ratios are of one round. `--calls` counts the calls of Python and C
functions of a request of /encode, by `sys.setprofile`; a resumed coroutine is a call, too.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.report import markdown
from benchmarks.harness.texts import read_workload
from testing.blocking import ask
from testing.load import Job, check_right, generate
from testing.process import Service, clean_environment, free_port

Body = Callable[[str], dict[str, object]]
LIST = 32
"""Texts of a request with a list."""


@dataclass(frozen=True)
class Way:
    """Requests of one kind."""

    path: str
    body: Body
    connections: int = 64
    texts: int = 1
    goal: float = 0.0
    """Maximum ratio to the plain route, or milliseconds a text of a list; 0 without a goal."""

    @property
    def name(self) -> str:
        """Name in the tables."""
        return f"{self.path}, {self.texts} texts, {self.connections} connections"


def _native(text: str) -> dict[str, object]:
    return {"inputs": text, "outputs": ["pooled"], "truncate": True}


PLAIN = Way("/plain", lambda text: {"inputs": text})
PLAIN_ALONE = Way("/plain", lambda text: {"inputs": text}, connections=1)
ENCODE = Way("/encode", _native, goal=2.5)
WAYS = [
    PLAIN,
    ENCODE,
    Way("/v1/embeddings", lambda text: {"input": text, "truncate": True}, goal=2.5),
    Way("/embed", lambda text: {"inputs": text, "truncate": True}, goal=2.5),
    PLAIN_ALONE,
    Way("/encode", _native, connections=1, goal=3.5),
    Way("/encode", _native, connections=8, texts=LIST, goal=0.13),
]
SERVER = """
import numpy as np, orjson, sys, uvicorn
from fastapi import FastAPI
from fastapi.responses import Response
from pydantic import BaseModel

class Body(BaseModel):
    inputs: str

app = FastAPI()
vector = np.random.default_rng(0).random(384, np.float32)

@app.post("/plain")
async def plain(body: Body) -> Response:
    content = orjson.dumps({"results": [{"pooled": vector}]}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, media_type="application/json")

uvicorn.run(app, port=int(sys.argv[-1]), log_level="error", loop="uvloop", http="httptools")
"""
COUNTED = """
import collections, json, os, signal, sys, threading

counts, counting = collections.Counter(), False

def count(frame, event, _):
    if counting and event in ("call", "c_call"):
        counts[event, frame.f_code.co_filename, frame.f_code.co_qualname] += 1

def toggle(*_):
    global counting
    counting = not counting
    if not counting:
        with open(sys.argv[1] + ".new", "w") as file:
            json.dump([[*key, number] for key, number in counts.items()], file)
        os.rename(sys.argv[1] + ".new", sys.argv[1])

signal.signal(signal.SIGUSR1, toggle)
threading.setprofile(count)
sys.setprofile(count)
from service.cli import main

sys.exit(main(sys.argv[2:]))
"""


@contextlib.contextmanager
def serving(way: Way, core: int, counted: str = "") -> Iterator[Service]:
    """Serve the plain route, or Headscope with the engine that computes nothing, on one core.

    Args:
        way: requests to be answered.
        core: the processor's core; all if negative.
        counted: path of the counts of calls; they are not counted if empty.

    """
    port = free_port()
    own = ["serve", "--engine", "fake", "--log-level", "error", "--port"]
    run = ["-c", COUNTED, counted, *own] if counted else ["-m", "service", *own]
    pinned = ["taskset", "--cpu-list", str(core)] if core >= 0 else []
    command = [*pinned, sys.executable, *(["-c", SERVER] if way.path == "/plain" else run)]
    with Service([*command, str(port)], port, environment=clean_environment()) as service:

        def answered() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return ask(port, way.path, way.body("a text")).status == http.HTTPStatus.OK
            return False

        service.wait_until(answered, seconds=60)
        yield service


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(service: Service, way: Way, texts: Sequence[str], seconds: float) -> tuple[float, int]:
    """Return the milliseconds of processor time of a request, and the number of requests."""
    requests = [(way.path, way.body(text)) for text in texts]
    if way.texts > 1:
        lists = [texts[n : n + way.texts] for n in range(0, len(texts) - way.texts, way.texts)]
        requests = [(way.path, way.body("") | {"inputs": [*own]}) for own in lists]
    began = processor_seconds(service.process.pid)
    job = Job(service.port, requests, connections=way.connections, seconds=seconds)
    count = len(check_right(generate(job)).outcomes)
    return 1000 * (processor_seconds(service.process.pid) - began) / count, count


def compare(texts: Sequence[str], rounds: int, seconds: float) -> bool:
    """Print processor times in turn; return whether all goals are reached."""
    first, *_, last = sorted(os.sched_getaffinity(0))
    spent: dict[Way, list[float]] = {way: [] for way in WAYS}
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(serving(PLAIN, first))
        own = stack.enter_context(serving(ENCODE, first))
        os.sched_setaffinity(0, {last})
        for number in range(-1, rounds):  # the first round is slower
            for way in WAYS if number % 2 else reversed(WAYS):
                service = plain if way.path == "/plain" else own
                milliseconds, _ = measure(service, way, texts, seconds)
                if number >= 0:
                    spent[way].append(milliseconds)
    rows, reached = [], True
    for way, own_times in spent.items():
        below = spent[PLAIN_ALONE if way.connections == 1 else PLAIN]
        ratios = [a / b for a, b in zip(own_times, below, strict=True)]
        if way.texts > 1:
            ratios = [a / way.texts for a in own_times]
        quarter, median = statistics.quantiles(ratios, n=4)[0], statistics.median(ratios)
        reached &= not way.goal or median <= way.goal
        unit = " ms a text" if way.texts > 1 else " ×"
        goal = f"{way.goal:g}" if way.goal else ""
        shown = f"{quarter:.2f}, {median:.2f}{unit}"
        rows.append((way.name, f"{statistics.median(own_times):.3f}", shown, goal))
    print(markdown(("requests", "ms a request", "p25, median of plain's", "at most"), rows))
    return reached


def calls(texts: Sequence[str], seconds: float) -> None:
    """Print the calls of a request of /encode, by file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls.json"
        with serving(ENCODE, -1, str(path)) as service:
            measure(service, ENCODE, texts, 1.0)
            service.process.send_signal(signal.SIGUSR1)
            _, count = measure(service, ENCODE, texts, seconds)
            service.process.send_signal(signal.SIGUSR1)
            service.wait_until(path.exists, seconds=10)
        counted = json.loads(path.read_text(encoding="utf-8"))
    every = collections.Counter[str]()
    files, functions = collections.Counter[str](), set[tuple[str, str]]()
    root = f"{Path.cwd()}{os.sep}"
    for event, file, function, number in counted:
        every[event] += number
        own = file.startswith(root) and ".venv" not in file
        if own and event == "call" and 2 * number > count:
            functions.add((file, function))
        if event == "call":
            files[file.removeprefix(root) if own else "others"] += number
    usual = {file for file, _ in functions}
    print(f"{count} requests; of each, {every['call'] / count:.0f} calls of Python functions and")
    print(f"{every['c_call'] / count:.0f} of C functions; in most requests {len(functions)} own")
    print(f"functions run, in {len(usual)} own files\n")
    rows = [(name, f"{n / count:.1f}") for name, n in files.most_common() if n > count / 10]
    print(markdown(("file", "calls a request"), rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--workload", type=Path)
    options = parser.parse_args()
    texts = [text for text in read_workload(options.workload, 400) if text.strip()]
    if options.calls:
        calls(texts, options.seconds)
        return
    began = time.monotonic()
    reached = compare(texts, options.rounds, options.seconds)
    print(f"\n{options.rounds} rounds, {time.monotonic() - began:.0f} s")
    sys.exit(not reached)


if __name__ == "__main__":
    main()
