"""The commands of docs/first-steps.md, in their order, with their replies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.process import Service, clean_environment

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "first-steps.md"


def steps() -> Iterator[tuple[str, str]]:
    """Yield each command of the page with the reply that it shows."""
    for block in re.findall(
        r"^```console\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, reply = step.partition("\n")
            yield command, reply.strip()


def part_of(shown: Any, found: Any) -> Any:
    """Return what was found of what is shown: other fields are left out, numbers are rounded."""
    if isinstance(shown, dict):
        return {key: part_of(value, found[key]) for key, value in shown.items()}
    if isinstance(shown, list):
        assert len(shown) == len(found)
        return [part_of(one, other) for one, other in zip(shown, found, strict=True)]
    if isinstance(shown, float) and abs(shown - found) < 1e-3:
        return shown
    return found


@contextlib.contextmanager
def serving(command: str, folder: Path) -> Iterator[str]:
    """Run the service of a command, with its variables and a folder's models; yield its address."""
    words = shlex.split(command)
    variables = dict(word.split("=", 1) for word in words if word.startswith("HEADSCOPE_"))
    flags = [str(folder / word) if word == "models" else word for word in words]
    environment = clean_environment(**variables)
    with Service.of_headscope(*flags[flags.index("serve") + 1 :], environment=environment) as one:
        one.wait_until_ready()
        yield one.url.removeprefix("http://")
        one.stop()


def run(command: str, folder: Path) -> str:
    """Run a command with this environment's programs, and return what it prints."""
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", command],
        cwd=folder,
        env=clean_environment(**programs),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout.strip()


def test_the_commands_of_the_page_give_its_replies(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """The container's command is left out: tests/deploy builds images."""
    shutil.copytree(tiny_checkpoint, tmp_path / "my-model")
    address, count = "", 0
    with contextlib.ExitStack() as service:
        for command, shown in steps():
            if "serve" in command:
                service.close()
                address = service.enter_context(serving(command, tmp_path))
            elif not command.startswith("docker"):
                found = run(command.replace("localhost:8000", address), tmp_path)
                if shown.startswith("{"):
                    expected = json.loads(shown)
                    assert part_of(expected, json.loads(found)) == expected
                elif shown != "…":  # what differs from run to run
                    assert found == shown
            count += 1
    assert count == 12
