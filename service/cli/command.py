"""Command with grouped help and examples, and choices with suggestions."""

from __future__ import annotations

import shlex
from typing import Any

import click

from service.cli.terminal import colours
from service.system.words import likely, must_be_one_of

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
OWN = "Options"
"""Heading of options without a group."""


class Command(click.Command):
    """Command whose callback returns an exit code, and whose help shows options in groups."""

    def __init__(self, name: str, *, examples: str = "", **attributes: Any) -> None:
        super().__init__(name, context_settings=CONTEXT, **attributes)
        self._examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, in the order of first occurrence."""
        ctx.color = colours()
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if record := option.get_help_record(ctx):
                groups.setdefault(getattr(option, "group", OWN), []).append(record)
        for name, records in groups.items():
            with formatter.section(heading(name)):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, line by line."""
        del ctx
        write_lines(formatter, "Examples", self._examples)


class Choice(click.Choice[str]):
    """Choice among a few words, whose error message suggests the likely word."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """Return the accepted words and a suggestion; click adds the option's name."""
        del ctx
        message = must_be_one_of(self.choices) + likely(str(value), self.choices)
        return f"{shlex.quote(str(value))} {message}"


def heading(name: str) -> str:
    """Return a heading of help, bold on a terminal."""
    return click.style(name, bold=True)


def write_lines(formatter: click.HelpFormatter, name: str, text: str) -> None:
    """Write a section of unwrapped lines, unless the text is empty."""
    if text:
        with formatter.section(heading(name)):
            for line in text.strip().splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
