"""The parts of uvicorn that are not its public interface and that the HTTP layer leans on.

One that a new version renames or drops is named here at once, before anything else fails.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import tomllib
from pathlib import Path

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

ROOT = Path(__file__).resolve().parents[3]
PROTOCOL_METHODS = (
    "_unset_keepalive_if_required",
    "connection_lost",
    "connection_made",
    "data_received",
    "eof_received",
    "on_body",
    "on_header",
    "on_headers_complete",
    "on_message_begin",
    "on_message_complete",
    "on_response_complete",
    "pause_writing",
    "resume_writing",
)
PROTOCOL_ATTRIBUTES = (
    "access_log",
    "cycle",
    "flow",
    "headers",
    "loop",
    "parser",
    "pipeline",
    "server_state",
)
CYCLE_ATTRIBUTES = ("disconnected", "message_event", "response_started", "scope")
SERVER_METHODS = ("capture_signals", "run", "shutdown", "startup")
SERVER_ATTRIBUTES = ("config", "server_state", "should_exit", "started")
CONFIG_ATTRIBUTES = ("encoded_headers", "http_protocol_class", "lifespan_class")
STATE_ATTRIBUTES = ("connections", "default_headers")


async def app(_scope: object, _receive: object, _send: object) -> None:
    """Application that is never called."""


@pytest.fixture
def config() -> uvicorn.Config:
    config = uvicorn.Config(app, interface="asgi3", log_config=None)
    config.load()
    return config


@pytest.mark.parametrize("name", PROTOCOL_METHODS)
def test_methods_of_the_protocol(name: str) -> None:
    assert callable(getattr(httptools_impl.HttpToolsProtocol, name, None)), name


@pytest.mark.parametrize("name", PROTOCOL_ATTRIBUTES)
def test_attributes_of_the_protocol(name: str, config: uvicorn.Config) -> None:
    async def made() -> object:
        state = {"config": config, "server_state": ServerState(), "app_state": {}}
        return httptools_impl.HttpToolsProtocol(**state)  # type: ignore[arg-type]

    assert hasattr(asyncio.run(made()), name), name


@pytest.mark.parametrize("name", CYCLE_ATTRIBUTES)
def test_attributes_of_a_request_and_its_reply(name: str) -> None:
    source = inspect.getsource(httptools_impl.RequestResponseCycle.__init__)
    assert f"self.{name} " in source or f"self.{name}:" in source, name


@pytest.mark.parametrize("name", SERVER_METHODS)
def test_methods_of_the_server(name: str) -> None:
    assert callable(getattr(uvicorn.Server, name, None)), name


@pytest.mark.parametrize("name", SERVER_ATTRIBUTES)
def test_attributes_of_the_server(name: str, config: uvicorn.Config) -> None:
    assert hasattr(uvicorn.Server(config), name), name


@pytest.mark.parametrize("name", CONFIG_ATTRIBUTES)
def test_attributes_of_a_loaded_configuration(name: str, config: uvicorn.Config) -> None:
    assert hasattr(config, name), name


@pytest.mark.parametrize("name", STATE_ATTRIBUTES)
def test_attributes_of_the_server_state(name: str) -> None:
    assert hasattr(ServerState(), name), name


def test_status_lines() -> None:
    assert httptools_impl.STATUS_LINE[200].startswith(b"HTTP/1.1 200 OK")
    assert {400, 408, 431} <= httptools_impl.STATUS_LINE.keys()


def test_the_version_is_bounded_above() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (uvicorn_requirement,) = (
        Requirement(one) for one in project["dependencies"] if one.startswith("uvicorn")
    )
    assert any(one.operator == "<" for one in uvicorn_requirement.specifier)
    assert importlib.metadata.version("uvicorn") in uvicorn_requirement.specifier
