"""Log lines, in both formats and in every process."""

from __future__ import annotations

import json
import logging
import re
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from model.errors import ConfigError
from service.errors import EngineFailed
from service.scheduler.outputs import check_outputs
from service.system import logs
from testing.blocking import Session
from testing.process import Service, run_python
from tests.service.harness import AnsweringEngine, serving, text
from tests.service.logged import Log

SECRET = "Sesame-99"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
KEYS = {"time", "level", "logger", "message"}


def raised(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def refuse(why: str) -> None:
    raise ConfigError(why)


def ours(error: BaseException) -> list[str]:
    """Return the frames of the project's code in a traceback, by the standard library."""
    root = Path(__file__).resolve().parents[3]
    return [
        f"{Path(frame.filename).relative_to(root)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(root / "service")
    ]


def test_a_line_of_text(log: Log) -> None:
    logging.getLogger("headscope").warning("%d of %s", 3, "them")
    assert re.fullmatch(rf"{TIME} warning headscope: 3 of them\n", log.text)


def test_a_message_cannot_forge_a_line_or_colour_a_terminal(log: Log) -> None:
    name = "a\n2026-01-01 error: forged \x1b[31m\r\u202e\u2028\x9b\udc80é"
    error = raised(lambda: refuse(name))
    reported = (type(error), error, error.__traceback__)
    record = logging.LogRecord("headscope", logging.ERROR, "", 0, "%s", (name,), reported)
    for handler in log.handlers:  # pytest's own handlers cannot pass a surrogate on
        handler.handle(record)
    lines = log.text.splitlines()
    assert len(lines) == log.text.count("\n") == 2
    said = r"a\n2026-01-01 error: forged \x1b[31m\r\u202e\u2028\x9b\udc80é"
    assert [said in line for line in lines] == [True, True]
    assert log.objects[0]["message"] == name


def test_a_line_of_json(log: Log) -> None:
    said = 'two\nlines, a quote " and a surrogate \ud800'
    record = logging.LogRecord("headscope", logging.INFO, "", 0, said, None, None)
    log.handlers[1].handle(record)
    (line,) = log.objects
    assert line.keys() == KEYS
    assert re.fullmatch(TIME, line["time"])
    assert line["level"] == "info"
    assert line["logger"] == "headscope"
    assert line["message"] == said


def test_our_own_errors_say_why_and_others_do_not(log: Log) -> None:
    def fail() -> None:
        try:
            check_outputs([text(3)], [], 8)
        except EngineFailed as error:
            raise ValueError(SECRET) from error

    error = raised(fail)
    logging.getLogger("headscope").error("it failed", exc_info=error)
    (line,) = log.objects
    one, other = line["exception"]
    assert one == {"type": "builtins.ValueError", "frames": []}
    assert other["type"] == "service.errors.EngineFailed"
    assert other["detail"] == str(error.__cause__)
    assert error.__cause__ is not None
    expected = ours(error.__cause__)
    assert expected
    assert [frame.rpartition(":")[0] for frame in other["frames"]] == expected
    assert other["frames"][-1].endswith(":check_outputs")
    assert "builtins.ValueError\n" in log.text
    assert (
        f"service.errors.EngineFailed: {error.__cause__} (service/scheduler/outputs.py:" in log.text
    )
    assert SECRET not in log.text


def test_an_error_of_the_model_says_why(log: Log) -> None:
    logging.getLogger("headscope").error("no", exc_info=ConfigError("one layer is missing"))
    (line,) = log.objects
    assert line["exception"] == [
        {"type": "model.errors.ConfigError", "detail": "one layer is missing", "frames": []}
    ]


def test_what_came_before_an_exception_and_what_is_in_it(log: Log) -> None:
    def fail() -> None:
        try:
            raise KeyError(SECRET)
        except KeyError:
            raise ExceptionGroup(SECRET, [OSError(SECRET), EngineFailed("reported")])  # noqa: B904

    logging.getLogger("headscope").error("it failed", exc_info=raised(fail))
    found = [error["type"] for error in log.objects[0]["exception"]]
    assert found == [
        "builtins.ExceptionGroup",
        "builtins.OSError",
        "service.errors.EngineFailed",
        "builtins.KeyError",
    ]
    assert SECRET not in log.text


def test_a_long_chain_is_cut(log: Log) -> None:
    error: Exception = ValueError()
    for _ in range(100):
        error, error.__cause__ = ValueError(), error
    logging.getLogger("headscope").error("it failed", exc_info=error)
    assert len(log.objects[0]["exception"]) == logs.MOST_EXCEPTIONS


def test_what_other_libraries_say_is_not_shown(log: Log) -> None:
    logging.getLogger("asyncio").error("Task exception: %r", SECRET, exc_info=ValueError(SECRET))
    logging.getLogger("uvicorn.error").info("Started")
    foreign, uvicorn = log.objects
    assert foreign["logger"] == "asyncio"
    assert foreign["message"].startswith("message not shown, from test_logs:")
    assert foreign["exception"] == [{"type": "builtins.ValueError", "frames": []}]
    assert uvicorn["message"] == "Started"
    assert SECRET not in log.text


@pytest.mark.anyio
async def test_a_failed_batch_names_its_cause(log: Log, artifact: Artifact) -> None:
    def fail(_: object) -> None:
        raise ValueError(SECRET)

    async with serving(artifact, AnsweringEngine(fail)) as client:
        assert (await client.post("/encode", json={"inputs": "a"})).status_code == 500
    errors = [line for line in log.objects if line["level"] == "error"]
    assert errors
    for line in errors:
        assert [error["type"] for error in line["exception"]] == [
            "service.errors.EngineFailed",
            "builtins.ValueError",
        ]
        assert any(frame.startswith("service/") for frame in line["exception"][1]["frames"])
    assert SECRET not in log.text


UNCAUGHT = f"""
import sys, threading, warnings
from service.system import logs

logs.configure("info", sys.argv[1])

class Bad:
    def __del__(self):
        raise ValueError("{SECRET}")

warnings.warn("{SECRET}")
Bad()
thread = threading.Thread(target=int, args=("{SECRET}",))
thread.start()
thread.join()
raise KeyError("{SECRET}")
"""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_nobody_catches_is_logged_like_the_rest(log_format: str) -> None:
    done = run_python("-c", UNCAUGHT, log_format)
    assert done.returncode == 1
    assert SECRET not in done.stderr
    if log_format == "json":
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert lines[0]["message"].startswith("UserWarning at ")
        kinds = [error["type"] for line in lines[1:] for error in line["exception"]]
        assert kinds == ["builtins.ValueError", "builtins.ValueError", "builtins.KeyError"]
    else:
        assert done.stderr.count("an uncaught exception\n") == 3
        assert done.stderr.endswith("    builtins.KeyError\n")


def lines_of(service: Service) -> list[dict[str, Any]]:
    """Stop a service, and return the log lines of all its processes."""
    assert service.stop() in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in service.log.splitlines()]
    assert all(line.keys() >= KEYS for line in lines)
    return lines


@pytest.mark.slow
def test_every_process_logs_json(artifact: Artifact) -> None:
    flags = ["--artifact", str(artifact.folder), "--engine", "fake", "--access-log"]
    flags += ["--log-format", "json", "--workers", "2"]
    with Service.of_headscope(*flags) as service:
        service.wait_until_ready()
        with Session(service.port) as session:
            session.ask("/encode", {"inputs": "a"}, {"x-request-id": "mine"})
        lines = lines_of(service)
    (access,) = [line for line in lines if line.get("route") == "/encode"]
    assert access["request_id"] == "mine"
    loggers = {line["logger"] for line in lines}
    assert loggers >= {"headscope.access", "uvicorn.error"}
    assert any("2 workers" in line["message"] for line in lines)


@pytest.mark.slow
def test_a_service_that_cannot_start_says_so_in_json(artifact: Artifact) -> None:
    flags = ("--log-format", "json", "--artifact", artifact.folder / "nowhere")
    done = run_python("-m", "service", "serve", *flags)
    assert done.returncode == 1
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert line["level"] == "critical"
    assert line["message"].startswith("headscope serve: ")
    assert line["message"].endswith("it holds no manifest.json")


def test_what_happens_often_is_said_now_and_then(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    occasional = logs.Occasional()
    for _ in range(1000):
        now += logs.QUIET_SECONDS / 240
        occasional.log("at %g", now)
    times = [float(line.rpartition(" ")[2]) for line in log.text.splitlines()]
    assert times == pytest.approx([0.25, 60.25, 120.25, 180.25, 240.25])
