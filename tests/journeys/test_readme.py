"""README's commands, run as printed, give the replies in README."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n\$ (curl (?:.*\\\n)*.*)\n(\{.*\})\n```", README)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return value


def test_there_are_examples():
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize(("command", "shown"), EXAMPLES)
def test_an_example_answers_what_it_shows(server, command, shown):
    command = command.replace("localhost:8000", server.removeprefix("http://"))
    answer = subprocess.run(command, shell=True, capture_output=True, check=True, text=True)
    assert rounded(json.loads(answer.stdout)) == rounded(json.loads(shown))
