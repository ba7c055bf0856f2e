"""`headscope models`: list, load, swap and unload the models of a running service."""

from __future__ import annotations

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
    from headscope import Client

EXAMPLES = """
headscope models list --url http://localhost:8000
headscope models load bge-m3 --url http://localhost:8000         the newest version
headscope models swap bge-m3@3 --url http://localhost:8000       another version of a loaded model
headscope models unload bge-m3@2 --url http://localhost:8000
"""
ACTIONS = ("list", "load", "swap", "unload")
LOAD_SECONDS = 24 * 3600.0
"""Timeout of a command, as loading a model may export it."""


def run(action: str, name: str | None, url: str, admin_key: str | None) -> int:
    """Send the command to the service, and print the state of its models."""
    if (name is None) != (action == "list"):
        raise WrongUseError("list takes no name" if name else f"{action} needs a NAME[@VERSION]")
    require("headscope models", "headscope")
    keys = admin_key or Settings().admin_keys or ""
    from headscope import Client

    key = keys.split(",")[0].strip() or None
    with Client(url, api_key=key, timeout=LOAD_SECONDS, retries=0) as client:
        if name is not None:
            _change(client, action, Target.parse(name))
        rows = [
            (f"{one['name']}@{one['version']}", one["state"].lower(), one["reason"])
            for one in _index(client)
        ]
    width = max((len(row[0]) for row in rows), default=0)
    for shown, state, reason in rows:
        click.echo(f"{shown:{width}}  {state}  {reason}".rstrip())
    return Exit.DONE


def _change(client: Client, action: str, target: Target) -> None:
    """Load, swap or unload a model."""
    serving = [one for one in _index(client) if one["name"] == target.name]
    if action == "swap" and not any(one["state"] == "READY" for one in serving):
        raise OSError(f"{target.name} is not loaded, so nothing can be swapped: load it")
    parameters = {} if target.version is None else {"version": target.version}
    path = f"models/{quote(target.name)}/{'unload' if action == 'unload' else 'load'}"
    _post(client, path, {"parameters": parameters})


def _index(client: Client) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads(_post(client, "index", {}))
    return entries


def _post(client: Client, path: str, body: Mapping[str, object]) -> bytes:
    from headscope import HeadscopeError
    from headscope.sending import refusal

    try:
        answer = client.request(f"/v2/repository/{path}", body)
        if answer.status >= 300:
            raise refusal(answer, client.url)
    except HeadscopeError as error:
        raise OSError(str(error)) from None
    return answer.content


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
