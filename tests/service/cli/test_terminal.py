"""Output to a terminal and to other streams."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import time

import pytest

from service.cli import terminal
from service.cli.command import Command
from service.cli.terminal import TimedSteps, interruptible, steps


def test_steps_are_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with steps() as say:
        say("one")
        time.sleep(0.01)
        say("two")
    assert capsys.readouterr().err == "headscope: one\nheadscope: two\n"


def test_a_step_on_a_terminal_shows_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    timed = TimedSteps(stream, every_seconds=0.02)
    for _ in range(20):
        timed("quick")
    timed("slow")
    while "slow  " not in stream.getvalue():
        time.sleep(0.01)
    timed("a line that is too long to be written over, as it wraps")
    timed("fetching weights, whose bar is the hub's")
    time.sleep(0.05)
    timed.close()
    *quick, slow, wrapped, fetching, rest = stream.getvalue().split("\n")
    assert len(quick) == 20
    assert "headscope: quick" in quick, "a busy machine makes some of them slow, not all"
    times = r"(\rheadscope: slow  \d+ s)+\rheadscope: slow  \d+\.\d s"
    assert re.fullmatch(f"headscope: slow{times}", slow)
    assert (wrapped[:17], fetching[:19], rest) == ("headscope: a line", "headscope: fetching", "")
    assert not wrapped.endswith(" s")
    assert not fetching.endswith(" s")


def test_steps_end_with_what_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    with steps() as say:
        say("one")
        assert stream.getvalue() == "headscope: one"
    assert stream.getvalue() == "headscope: one\n"


def test_ctrl_c_ends_what_takes_it_for_a_failure_of_its_own() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)

    @interruptible()
    def library(interrupted: bool) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            if interrupted:
                signal.raise_signal(signal.SIGINT)
        raise RuntimeError("circular import")

    with pytest.raises(KeyboardInterrupt):
        library(interrupted=True)
    with pytest.raises(RuntimeError):
        library(interrupted=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    """A script ignores interrupts for its background commands."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_failure_is_coloured_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for is_terminal, forbidden in ((True, False), (True, True), (False, False)):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda answer=is_terminal: answer)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("NO_COLOR", "1" if forbidden else "")
        terminal.fail("headscope serve", "no")
        assert ("\x1b[31m" in stream.getvalue()) == (is_terminal and not forbidden)


def test_a_reader_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert not terminal.reader_left()
        os.close(ours)
        assert terminal.reader_left()
        stream.write("left in the buffer")
        monkeypatch.setattr(sys, "stderr", stream)
        terminal.silence()
        stream.flush()


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_help_has_no_colours_where_none_are_wanted(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    command = Command("pick")
    context = command.make_context("pick", [])
    command.get_help(context)
    assert context.color is None  # the stream decides
    monkeypatch.setenv(variable, "dumb")
    command.get_help(context)
    assert context.color is False
