"""`headscope config check`: check a file of settings without starting a service."""

from __future__ import annotations

from pathlib import Path

import click

from service.cli.command import Choice, Command
from service.cli.serve import checked_settings
from service.cli.terminal import Exit
from service.settings import Settings
from service.settings.sources import TABLES, read

EXAMPLES = """
headscope config check headscope.toml
headscope serve --config headscope.toml
"""


def run(action: str, file: Path) -> int:
    """Check the file as `headscope serve` reads it, with the environment's variables."""
    del action  # there is one
    count = len(read(file, Settings).values.keys() - {TABLES})
    models = checked_settings({"config": file}).tables
    said = f"{count} setting{'' if count == 1 else 's'}"
    if models:
        said += f", {len(models)} model{'' if len(models) == 1 else 's'}"
    click.echo(f"{file}: {said}, all valid")
    return Exit.DONE


command = Command(
    "config",
    callback=run,
    params=[
        click.Argument(["action"], type=Choice(("check",))),
        click.Argument(["file"], type=click.Path(path_type=Path)),
    ],
    help="Check a file of settings.",
    examples=EXAMPLES,
)
