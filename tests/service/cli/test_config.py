"""`headscope config check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.program import main


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("port = 1\nworkers = 2\n", 0, "2 settings, all valid"),
        ("port = 1\n", 0, "1 setting, all valid"),
        ("port = 'x'\n", 2, "line 1, column 1: port=x"),
        ("port = \n", 1, "line 1, column"),
    ],
)
def test_it_says_what_is_wrong(
    content: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "headscope.toml"
    file.write_text(content)
    assert main(["config", "check", str(file)]) == code
    assert says in "".join(capsys.readouterr())
