"""A command: its help in groups, with examples; and the choice of a few words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import click

from service.cli.terminal import colours

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
OWN = "Options"
"""The group of options that are of none."""


class Command(click.Command):
    """A command whose callback returns an exit code; its options are shown in their groups."""

    def __init__(self, name: str, *, examples: str = "", **attributes: Any) -> None:
        super().__init__(name, context_settings=CONTEXT, **attributes)
        self._examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, group by group as they first occur."""
        ctx.color = colours()
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if record := option.get_help_record(ctx):
                groups.setdefault(getattr(option, "group", OWN), []).append(record)
        for name, records in groups.items():
            with formatter.section(heading(name)):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, line by line."""
        del ctx
        write_lines(formatter, "Examples", self._examples)


class Choice(click.Choice[str]):
    """One of a few words; a wrong one is told with the likely one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """What the value must be; click tells of which option it is."""
        del ctx
        return f"{value} {must_be_one_of(self.choices)}{likely(str(value), self.choices)}"


def heading(name: str) -> str:
    """A heading of help, bold on a terminal."""
    return click.style(name, bold=True)


def write_lines(formatter: click.HelpFormatter, name: str, text: str) -> None:
    """A section of lines that are not wrapped; none where there are no lines."""
    if text:
        with formatter.section(heading(name)):
            for line in text.strip().splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def must_be_one_of(words: Iterable[str]) -> str:
    """`must be a, b or c`."""
    *others, last = words
    return f"must be {', '.join(others)} or {last}"


def likely(wrong: str, words: Sequence[str]) -> str:
    """`: did you mean a?`, where one is close."""
    (found,) = difflib.get_close_matches(wrong.lower(), words, 1) or [""]
    return f": did you mean {found}?" if found else ""
