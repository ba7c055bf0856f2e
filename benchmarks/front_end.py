"""Processor time of a request of one text, beside the same work as a plain FastAPI route.

Run: python -m benchmarks.front_end [--rounds N] [--seconds N] [--path PATH …]. Headscope serves
with the engine that computes nothing; the plain route parses a text with pydantic and answers with
384 floats by orjson. Both are loaded in turn over 64 connections. Processor time is the server's,
of all threads; figures are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness.report import markdown
from benchmarks.harness.texts import read_workload
from benchmarks.harness.timing import median_ratio
from testing.blocking import ask
from testing.generators import check_right, generate
from testing.load import Job
from testing.process import Service, clean_environment, free_port

CONNECTIONS = 64
GOAL = 2.5
"""Maximum processor time of a request of /encode, relative to the plain route."""
BODIES = {
    "/plain": lambda text: {"inputs": text},
    "/encode": lambda text: {"inputs": text, "outputs": ["pooled"], "truncate": True},
    "/v1/embeddings": lambda text: {"model": "any", "input": text},
    "/embed": lambda text: {"inputs": text, "truncate": True},
}
PLAIN = """
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

uvicorn.run(app, port=int(sys.argv[1]), log_level="error", loop="uvloop", http="httptools")
"""


@contextlib.contextmanager
def serving(path: str) -> Iterator[Service]:
    """Serve the plain route, or Headscope with the engine that computes nothing."""
    port = free_port()
    own = ["-m", "service", "serve", "--engine", "fake", "--log-level", "error", "--port"]
    command = [sys.executable, *(["-c", PLAIN] if path == "/plain" else own), str(port)]
    with Service(command, port, environment=clean_environment()) as service:

        def answered() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return ask(port, path, BODIES[path]("a text")).status == http.HTTPStatus.OK
            return False

        service.wait_until(answered, seconds=60)
        yield service


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(service: Service, path: str, texts: Sequence[str], seconds: float) -> tuple[float, ...]:
    """Return the milliseconds of processor time of a request, and the requests of a second."""
    requests = [(path, BODIES[path](text)) for text in texts]
    began = processor_seconds(service.process.pid)
    job = Job(service.port, requests, connections=CONNECTIONS, seconds=seconds)
    result = check_right(generate(job))
    count = len(result.outcomes)
    spent = processor_seconds(service.process.pid) - began
    return 1000 * spent / count, count / result.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--path", nargs="+", default=["/encode"], choices=[*BODIES])
    parser.add_argument("--workload", type=Path)
    options = parser.parse_args()
    texts = read_workload(options.workload, 400)
    paths = ["/plain", *options.path]
    milliseconds: dict[str, list[float]] = {path: [] for path in paths}
    rates: dict[str, list[float]] = {path: [] for path in paths}
    with contextlib.ExitStack() as stack:
        services = {"/plain": stack.enter_context(serving("/plain"))}
        headscope = stack.enter_context(serving(options.path[0]))
        services |= dict.fromkeys(options.path, headscope)
        for path in paths:
            measure(services[path], path, texts, 1.0)  # the first requests are slower
        for number in range(options.rounds):
            for path in paths if number % 2 else reversed(paths):
                spent, rate = measure(services[path], path, texts, options.seconds)
                milliseconds[path].append(spent)
                rates[path].append(rate)
    rows = [
        (
            path,
            f"{statistics.median(milliseconds[path]):.3f}",
            f"{median_ratio(milliseconds[path], milliseconds['/plain']):.2f}",
            f"{statistics.median(rates[path]):.0f}",
        )
        for path in paths
    ]
    print(markdown(("route", "processor time, ms", "× plain route", "requests/s"), rows))
    sys.exit(median_ratio(milliseconds["/encode"], milliseconds["/plain"]) > GOAL)


if __name__ == "__main__":
    main()
