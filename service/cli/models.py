"""`headscope models`: list, load, swap and unload the models of a running service."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from service.artifacts.repository import Target
from service.cli.command import Choice, Command
from service.cli.terminal import Exit, WrongUseError
from service.settings import Settings
from service.system.distribution import require

if TYPE_CHECKING:
    from service.files.connection import Connection

EXAMPLES = """
headscope models list --url http://localhost:8000
headscope models load bge-m3 --url http://localhost:8000         the newest version
headscope models swap bge-m3@3 --url http://localhost:8000       another version of a loaded model
headscope models unload bge-m3@2 --url http://localhost:8000
"""
ACTIONS = ("list", "load", "swap", "unload")


def run(action: str, name: str | None, url: str, admin_key: str | None) -> int:
    """Send the command to the service, and print the state of its models."""
    if (name is None) != (action == "list"):
        raise WrongUseError("list takes no name" if name else f"{action} needs a NAME[@VERSION]")
    require("headscope models", "headscope")
    keys = admin_key or Settings().admin_keys or ""
    from service.files.connection import ONCE, Connection

    connection = Connection(url, keys.split(",")[0].strip() or None, ONCE)
    with contextlib.closing(connection):
        if name is not None:
            _change(connection, action, Target.parse(name))
        rows = [
            (f"{one['name']}@{one['version']}", one["state"].lower(), one["reason"])
            for one in _index(connection)
        ]
    width = max((len(row[0]) for row in rows), default=0)
    for shown, state, reason in rows:
        click.echo(f"{shown:{width}}  {state}  {reason}".rstrip())
    return Exit.DONE


def _change(connection: Connection, action: str, target: Target) -> None:
    """Load, swap or unload a model."""
    serving = [one for one in _index(connection) if one["name"] == target.name]
    if action == "swap" and not any(one["state"] == "READY" for one in serving):
        raise OSError(f"{target.name} is not loaded, so nothing can be swapped: load it")
    parameters = {} if target.version is None else {"version": target.version}
    path = f"models/{quote(target.name)}/{'unload' if action == 'unload' else 'load'}"
    _post(connection, path, {"parameters": parameters})


def _index(connection: Connection) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads(_post(connection, "index", {}))
    return entries


def _post(connection: Connection, path: str, body: Mapping[str, object]) -> bytes:
    from service.files.connection import RefusedRequest

    try:
        return connection.post(f"/v2/repository/{path}", body, "application/json")
    except RefusedRequest as refused:
        raise OSError(f"{refused.status}: {refused}") from None


command = Command(
    "models",
    callback=run,
    params=[
        click.Argument(["action"], type=Choice(ACTIONS)),
        click.Argument(["name"], required=False, metavar="[NAME[@VERSION]]"),
        click.Option(["--url"], required=True, metavar="URL", help="Address of the service."),
        click.Option(
            ["--admin-key"],
            metavar="KEY",
            help="Admin key of the service; by default the first of HEADSCOPE_ADMIN_KEYS.",
        ),
    ],
    help="List, load, swap and unload the models of a running service.",
    examples=EXAMPLES,
)
