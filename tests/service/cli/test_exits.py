"""Exit codes, one for each kind of failure, as docs/command-line.md lists them."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from model.errors import ArtifactError, VerificationError
from service.cli.terminal import Exit, WrongUseError, code_of, one_line, verified
from service.errors import EngineUnavailable

PAGE = Path(__file__).resolve().parents[3] / "docs" / "command-line.md"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (WrongUseError("a"), 2),
        (VerificationError("a"), 4),
        (ArtifactError("a"), 1),
        (EngineUnavailable("a"), 1),
        (ValueError("a"), 1),
        (OSError("a"), 1),
    ],
)
def test_a_kind_of_failure_has_one(failure: Exception, code: int) -> None:
    assert code_of(failure) == code


def test_those_of_a_verification() -> None:
    assert (verified(True), verified(False)) == (0, 4)


def test_those_of_signals_are_a_shells() -> None:
    assert Exit.INTERRUPTED == 128 + signal.SIGINT
    assert Exit.CLOSED_PIPE == 128 + signal.SIGPIPE


def test_the_page_has_them_all() -> None:
    rows = re.findall(r"^\| (\d+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [int(code) for code in rows] == sorted(Exit)


class Named(BaseModel):
    folder: str

    @field_validator("folder")
    @classmethod
    def _refused(cls, folder: str) -> str:
        raise ValueError(f"there is no {folder}")


def test_a_message_is_one_line() -> None:
    assert one_line(OSError("a\n  b")) == "a b"
    with pytest.raises(ValidationError) as refused:
        Named(folder="a\nforged \x1b[31m")
    assert one_line(refused.value) == r"folder: Value error, there is no a forged \x1b[31m"
