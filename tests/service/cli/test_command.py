"""Help in groups, and suggestions for misspelled words."""

from __future__ import annotations

import click
import pytest

from service.cli.command import Choice, Command


class Grouped(click.Option):
    """Option of a group."""

    group = "Apples"


def help_of(command: Command) -> str:
    with command.make_context("pick", []) as context:
        return command.get_help(context)


COMMAND = Command(
    "pick",
    params=[Grouped(["--green"], help="A."), click.Option(["--pear"], help="B.")],
    examples="\npick --green 1      one\npick --pear 2\n",
)


def test_options_are_in_their_groups_and_examples_are_lines() -> None:
    lines = click.unstyle(help_of(COMMAND)).splitlines()
    apples, others = lines.index("Apples:"), lines.index("Options:")
    assert apples < others
    assert [line.split()[0] for line in lines[apples + 1 : others - 1]] == ["--green"]
    assert [line.split()[0] for line in lines[others + 1 : others + 3]] == ["--pear", "-h,"]
    assert lines[-3:] == ["Examples:", "  pick --green 1      one", "  pick --pear 2"]


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_help_has_no_colours_where_none_are_wanted(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    context = COMMAND.make_context("pick", [])
    COMMAND.get_help(context)
    assert context.color is None  # the stream decides
    monkeypatch.setenv(variable, "dumb")
    COMMAND.get_help(context)
    assert context.color is False


def test_a_choice_says_what_it_takes() -> None:
    with pytest.raises(click.BadParameter, match=r"^cdua must be cpu or cuda: did you mean cuda\?"):
        Choice(("cpu", "cuda")).convert("cdua", None, None)
