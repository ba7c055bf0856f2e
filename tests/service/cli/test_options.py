"""Options of settings: all options, their help, wrong values, and exit codes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel, ValidationError, field_validator

from service.cli import export, fetch, serve
from service.cli.options import SettingOption, choices, default_in_words, settings_of, shown_of
from service.cli.terminal import Exit, WrongUseError, one_line
from service.settings import Settings
from service.settings.groups import Group

FIELDS = Settings.flags()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("HEADSCOPE_"):
            monkeypatch.delenv(name)


def help_of_serve() -> str:
    with serve.command.make_context("serve", []) as context:
        return " ".join(click.unstyle(serve.command.get_help(context)).split())


def test_the_options_of_serve_are_the_settings() -> None:
    assert [option.name for option in serve.command.params] == [*FIELDS]
    said = help_of_serve()
    for name, field in FIELDS.items():
        assert f"--{name.replace('_', '-')} " in said
        assert field.description in said
        reported = f"[env var: HEADSCOPE_{name.upper()}; default: {default_in_words(field)}]"
        assert reported.replace(" ", "") in said.replace(" ", ""), name  # a long word is broken


def test_groups_are_whole_and_in_order() -> None:
    groups = [shown_of(field).group for field in FIELDS.values()]
    assert list(dict.fromkeys(groups)) == list(Group)
    assert groups == sorted(groups, key=list(Group).index)
    said = help_of_serve()
    assert [said.index(f" {group}: --") for group in Group] == sorted(
        said.index(f" {group}: --") for group in Group
    )


def test_a_value_has_a_unit_or_is_one_of_some_words() -> None:
    """`--max-body-bytes` is in bytes, and says so."""
    for name, field in FIELDS.items():
        unit, words = shown_of(field).unit, choices(field)
        assert bool(unit) + bool(words) + (field.annotation is bool) == 1, name
        for suffix in ("bytes", "seconds", "tokens", "characters", "texts"):
            if re.search(rf"_{suffix}(_|$)", name) and name != "max_request_characters":
                assert unit == suffix.upper(), name


def test_what_is_none_has_its_default_in_words() -> None:
    for name, field in FIELDS.items():
        by_machine = field.default_factory is not None or field.default is None
        assert bool(shown_of(field).default) == by_machine, name
        assert "by default" not in field.description, name
    assert default_in_words(FIELDS["port"]) == "8000"
    assert default_in_words(FIELDS["verify_route"]) == "on"
    assert default_in_words(FIELDS["drain_seconds"]) == "30"


@pytest.mark.parametrize(
    ("flags", "variables", "says"),
    [
        ({"port": "abc"}, {}, "--port abc must be a valid integer"),
        ({}, {"PORT": "abc"}, "HEADSCOPE_PORT=abc must be a valid integer"),
        ({"port": "abc"}, {"PORT": "1"}, "--port abc must be a valid integer"),
        ({"port": "65536"}, {}, "--port 65536 must be less than or equal to 65535"),
        ({"max_length": ""}, {}, "--max-length '' must be a valid integer"),
        ({"engine": "onx"}, {}, "--engine onx must be onnx, torch or fake: did you mean onnx?"),
        ({}, {"LOG_LEVEL": "inof"}, "HEADSCOPE_LOG_LEVEL=inof must be debug, info, warning or"),
        ({"precision": "fp8"}, {}, "--precision fp8 must be fp32, fp16, bf16 or int8"),
        ({}, {"ALLOW_UNVERIFIED": "perhaps"}, "HEADSCOPE_ALLOW_UNVERIFIED=perhaps must be a"),
        ({"api_keys": "s3cret,,"}, {}, "--api-keys: a key is empty"),
        ({}, {"API_KEYS": "s3cret,,"}, "HEADSCOPE_API_KEYS: a key is empty"),
        ({}, {"PROT": "s3cret"}, "HEADSCOPE_PROT is not a setting: did you mean HEADSCOPE_PORT?"),
        ({"port": "a"}, {"THREADS": "0"}, "=0 must be greater than 0; --port a must be a valid"),
    ],
)
def test_a_wrong_value_names_where_it_comes_from(
    flags: dict[str, Any], variables: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"HEADSCOPE_{name}", value)
    with pytest.raises(WrongUseError) as refused:
        settings_of(flags)
    assert says in str(refused.value)
    assert str(refused.value).count("must be") == says.count("must be")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("command", [export.command, fetch.command])
def test_other_commands_have_the_settings_that_count_there(command: click.Command) -> None:
    options = {one.name: one for one in command.params if isinstance(one, SettingOption)}
    assert "revision" in options
    assert not any(one.multiple for one in options.values())


def test_a_switch_has_both_forms() -> None:
    for words, answer in ((["--verify-route"], True), (["--no-verify-route"], False), ([], None)):
        assert serve.command.make_context("serve", words).params["verify_route"] is answer


PAGE = Path(__file__).resolve().parents[3] / "docs" / "command-line.md"


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
