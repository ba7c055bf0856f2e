"""Settings that no variable of the outer environment decides, as `serve` reads them."""

from __future__ import annotations

import os

import pytest

from service.cli import serve
from service.cli.options import given, settings_of
from service.settings import Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(("HEADSCOPE_", "HF_ENDPOINT")):
            monkeypatch.delenv(name)


def from_command_line(*arguments: str) -> Settings:
    return settings_of(given(serve.command.make_context("serve", [*arguments]).params))
