"""Access log: a line for each request, if enabled."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.telemetry.requests import ACCESS, MOST_LINES
from testing.process import run_python
from tests.service.harness import AnsweringEngine, serving, until
from tests.service.logged import Log

SECRET = "Sesame-99"
KEYS = {"time", "level", "logger", "message"}


def accesses(log: Log) -> list[dict[str, Any]]:
    """Return the lines of requests."""
    return [line for line in log.objects if line["logger"] == ACCESS]


@pytest.mark.anyio
async def test_a_request_has_a_line_if_asked_for(log: Log, artifact: Artifact) -> None:
    engine = AnsweringEngine(lambda _: None)
    body = {"inputs": "a b", "outputs": ["pooled"]}
    async with serving(artifact, engine) as client:
        await client.post("/encode", json=body)
    assert "/encode" not in log.text
    async with serving(artifact, engine, access_log=True) as client:
        one = await client.post("/encode", json=body, headers={"x-request-id": "mine"})
        other = await client.get(f"/{SECRET}?{SECRET}")
    lines = accesses(log)
    assert [line["level"] for line in lines] == ["info", "info"]
    reported = [
        {name: line[name] for name in ("method", "route", "status", "bytes")} for line in lines
    ]
    assert reported == [
        {"method": "POST", "route": "/encode", "status": 200, "bytes": len(one.content)},
        {"method": "GET", "route": "unmatched", "status": 404, "bytes": len(other.content)},
    ]
    assert lines[0].keys() == KEYS | reported[0].keys() | {"ms", "request_id"}
    assert [line["request_id"] for line in lines] == ["mine", other.headers["x-request-id"]]
    assert all(0 < line["ms"] < 60_000 for line in lines)
    assert re.search(r" \[mine\]: POST /encode 200, [\d.]+ ms, \d+ bytes\n", log.text)
    assert SECRET not in log.text


@pytest.mark.anyio
async def test_the_owner_of_a_key_and_the_callers_trace_are_told(
    log: Log, artifact: Artifact, tmp_path: Path
) -> None:
    path, trace = tmp_path / "keys", "4bf92f3577b34da6a3ce929d0e0e4736"
    path.write_text(f"search:{SECRET}\n", encoding="utf-8")
    parent = f"00-{trace}-00f067aa0ba902b7-01"
    headers = {"authorization": f"Bearer {SECRET}", "traceparent": parent}
    engine = AnsweringEngine(lambda _: None)
    async with serving(artifact, engine, access_log=True, keys_file=path) as client:
        await client.get("/info", headers=headers)
        await client.get("/info")
    lines = accesses(log)
    assert [line.get("key") for line in lines] == ["search", None]
    assert [line.get("trace_id") for line in lines] == [trace, None]
    assert f"bytes, key search, trace_id {trace}\n" in log.text
    assert SECRET not in log.text


@pytest.mark.anyio
async def test_what_is_refused_before_its_route_has_that_route(
    log: Log, artifact: Artifact
) -> None:
    """Its line distinguishes a client without a key, or with too large a body, from a scanner."""
    engine = AnsweringEngine(lambda _: None)
    long = {"inputs": "a" * 2000}
    key = {"authorization": f"Bearer {SECRET}"}
    settings = {"access_log": True, "api_keys": SECRET, "max_body_bytes": 1000}
    async with serving(artifact, engine, **settings) as client:
        await client.post("/encode", json={"inputs": "a"})
        await client.get("/v1/models/some/name")
        await client.post("/attention", json=long, headers=key)
        await client.get("/metrics")
        await client.get("/nowhere")
    lines = accesses(log)
    assert [(line["route"], line["status"], line["level"]) for line in lines] == [
        ("/encode", 401, "info"),
        ("/v1/models/{model:name}", 401, "info"),
        ("/attention", 413, "info"),
        ("/metrics", 401, "info"),
        ("unmatched", 401, "info"),
    ]


@pytest.mark.anyio
async def test_probes_and_scrapes_are_for_debug(log: Log, artifact: Artifact) -> None:
    engine = AnsweringEngine(lambda _: None)
    logging.getLogger(ACCESS).setLevel(logging.INFO)
    async with serving(artifact, engine, access_log=True) as client:
        for path in ("/health/live", "/health/ready", "/metrics", "/v2/health/live"):
            await client.get(path)
    assert "headscope.access" not in log.text
    logging.getLogger(ACCESS).setLevel(logging.DEBUG)
    async with serving(artifact, engine, access_log=True) as client:
        await client.get("/health/live")
    (line,) = accesses(log)
    assert (line["route"], line["level"]) == ("/health/live", "debug")


@pytest.mark.anyio
async def test_lines_are_written_together_soon(
    log: Log, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of 100 requests are a few records, and each line is whole."""
    monkeypatch.setattr("service.telemetry.requests.WAIT_SECONDS", 0.01)
    records = list[logging.LogRecord]()
    async with serving(artifact, AnsweringEngine(lambda _: None), access_log=True) as client:
        log.handlers[0].addFilter(lambda record: not records.append(record))
        await asyncio.gather(*(client.get("/info") for _ in range(100)))
        await until(lambda: len(accesses(log)) == 100)
        await client.get("/info")
    assert len(accesses(log)) == 101
    assert log.text.count(" headscope.access [") == 101
    assert 100 / MOST_LINES <= len([one for one in records if one.name == ACCESS]) <= 50


ENDING = """
import asyncio, sys
from service.system import logs
from service.telemetry.requests import AccessLog
from tests.service.harness import exchange

logs.configure("info", "json")

async def serve():
    log = AccessLog()
    log.observe(exchange("mine"))
    {ending}

asyncio.run(serve())
"""


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit(1)",
        "raise KeyboardInterrupt",
        "import logging, os; logging.shutdown(); os._exit(1)",
    ],
)
def test_no_line_is_lost_at_an_end(ending: str) -> None:
    done = run_python("-c", ENDING.format(ending=ending))
    assert done.returncode
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["request_id"] for line in lines if line["logger"] == ACCESS] == ["mine"]
