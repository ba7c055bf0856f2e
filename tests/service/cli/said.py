"""Message of a failed command, and causes of failures."""

from __future__ import annotations

from pathlib import Path

import pytest


def one_line(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """Return a failed command's only line on standard error after its progress."""
    out, err = capsys.readouterr()
    assert out == ""
    *progress, line = err.splitlines()
    assert all(step.startswith("headscope: ") for step in progress)
    assert line.startswith(f"headscope {command}: ")
    return line


def damage(folder: Path, name: str, how: str) -> None:
    path = folder / name
    content = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut short":
            path.write_bytes(content[: len(content) // 2])
        case "one bit":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "a link":
            path.rename(folder.parent / name)
            path.symlink_to(folder.parent / name)
