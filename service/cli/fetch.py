"""`headscope fetch`: fetch a model's checkpoint to this machine."""

from __future__ import annotations

from typing import Any

import click

from service.artifacts.opening import locate_checkpoint
from service.cli import terminal
from service.cli.command import Command
from service.cli.options import setting, settings_of_model
from service.cli.terminal import Exit

EXAMPLES = """
headscope fetch BAAI/bge-small-en-v1.5
headscope fetch ORG/NAME --revision v1.0
"""


def fetch(**options: Any) -> int:
    """Fetch missing files of the checkpoint, and print its folder."""
    settings = settings_of_model(options)
    with terminal.steps() as say:
        folder = locate_checkpoint(settings, say)
    click.echo(folder)
    return Exit.DONE


command = Command(
    "fetch",
    callback=fetch,
    params=[
        click.Argument(["model"], required=False, metavar="[NAME]"),
        setting("revision"),
        setting("pickle"),
    ],
    help="Fetch a model's checkpoint and print its folder. NAME is a hub name, name@revision or a "
    "folder; the default is HEADSCOPE_MODEL, or else the default model.",
    examples=EXAMPLES,
)
