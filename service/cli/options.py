"""Options generated from the fields of `Settings`, and messages about invalid settings.

A message has the flag or place, the value, and what is allowed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from click.types import OptionHelpExtra
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from service.cli.command import Choice
from service.cli.terminal import WrongUseError
from service.settings.groups import Shown
from service.settings.model_group import ModelTable
from service.settings.schema import Settings, file_of, overriding_names
from service.settings.sources import MAX_MISTAKES, MODEL, PRECISION_OF_ARTIFACT, TABLES, Content
from service.system.words import likely, must_be_one_of

PREFIX = "HEADSCOPE_"


def messages(error: ValidationError, flags: Mapping[str, object]) -> list[str]:
    """Return a message for each of the first invalid settings, with its flag, variable or place."""
    content = file_of(flags)
    found = islice(error.errors(), MAX_MISTAKES)
    return list(dict.fromkeys(_wrong(item, flags, content) for item in found))


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the words of a setting that is a choice, else nothing."""
    return tuple(literals(field.annotation))


def _wrong(item: ErrorDetails, flags: Mapping[str, object], content: Content | None) -> str:
    """Return the message of an invalid value, beginning with its flag, variable or place."""
    if not item["loc"]:
        return _reason(item, ())
    name, *inner = map(str, item["loc"])
    if name == TABLES:
        return _wrong_table(item, inner, content)
    field, by_flag, key = Settings.model_fields[name], name in flags, name.replace("_", "-")
    if by_flag:
        source = f"--{key}"
    elif content and name in content.values and name not in overriding_names(flags):
        source = f"--config {content.place(name)}: {key}"
    else:
        source = PREFIX + name.upper()
    value = f"{' ' if by_flag else '='}{shlex.quote(str(item['input']))}" if field.repr else ""
    return _joined(source + value, _reason(item, choices(field)))


def _wrong_table(item: ErrorDetails, inner: Sequence[str], content: Content | None) -> str:
    """Return the message of an invalid value in the table of a model."""
    path = [MODEL, *(part for part in inner if part != "[key]")]
    source = f"--config {content.place(*path)}: " if content else ""
    key = ".".join([*path[:-1], path[-1].replace("_", "-")])
    field = ModelTable.model_fields.get(path[2]) if len(path) == 3 else None
    if item["type"] == "extra_forbidden":
        known = [name.replace("_", "-") for name in ModelTable.model_fields]
        return f"{source}{key} is not a setting of a model{likely(path[-1], known)}"
    if item["type"] == "model_type":
        return f"{source}{key} needs a table of settings"
    shown = isinstance(item["input"], str | int | float) and "prompts" not in path
    value = f"={shlex.quote(str(item['input']))}" if shown else ""
    return _joined(source + key + value, _reason(item, choices(field) if field else ()))


def _reason(item: ErrorDetails, words: Sequence[str]) -> str:
    if words:
        return must_be_one_of(words) + likely(str(item["input"]), words)
    message = item["msg"].removeprefix("Value error, ")
    return message.replace("Input should", "must").partition(", unable")[0]


def _joined(source: str, reason: str) -> str:
    return f"{source}{' ' if reason.startswith('must ') else ': '}{reason}"


def literals(annotation: object) -> Iterator[str]:
    """Yield the words of a type that is a choice."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from literals(part)


class Words(Choice):
    """Choice for help and completion only; the settings validate flags and variables alike."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the value unchanged."""
        del param, ctx
        return str(value)


class SettingOption(click.Option):
    """Option of a setting, whose help names the variable of `service.settings.sources`."""

    def __init__(
        self, name: str, field: FieldInfo, *, single: bool = False, about: str = ""
    ) -> None:
        shown = shown_of(field)
        flag = "--" + name.replace("_", "-")
        switch = field.annotation is bool
        multiple = get_origin(field.annotation) is tuple and not single
        super().__init__(
            [f"{flag}/--no-{flag[2:]}" if switch else flag, name],
            type=None if switch else _type_of(field),
            multiple=multiple,
            default=None,
            metavar=None if switch else shown.unit or None,
            help=about or field.description,
        )
        self.group = shown.group
        self.variable = PREFIX + name.upper()
        self._default = default_in_words(field)

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Return the variable and the default of the setting."""
        del ctx
        return {"envvars": (self.variable,), "default": self._default}


def shown_of(field: FieldInfo) -> Shown:
    """Return the presentation of a setting."""
    (shown,) = (item for item in field.metadata if isinstance(item, Shown))
    return shown


def default_in_words(field: FieldInfo) -> str:
    """Return a default for help and docs: its value, or a description."""
    words = shown_of(field).default
    if isinstance(field.default, bool):
        return words or ("on" if field.default else "off")
    return words or str(field.default).removesuffix(".0")


def setting(name: str, *, single: bool = False, about: str = "") -> SettingOption:
    """Return the option of a setting; `single` takes one value where `serve` takes several."""
    return SettingOption(name, Settings.model_fields[name], single=single, about=about)


def verification_device() -> click.Option:
    """Return the option `--device` of verifying commands, which is not the setting `device`."""
    return click.Option(
        ["--device"],
        type=Choice(("cpu", "cuda")),
        default="cpu",
        show_default=True,
        help="Device of the verification.",
    )


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are set on the command line."""
    return {name: value for name, value in options.items() if value not in (None, ())}


def settings_of(flags: dict[str, Any]) -> Settings:
    """Return the settings from flags, environment variables and defaults."""
    if flags.keys() >= {"artifact", "precision"}:
        raise WrongUseError(PRECISION_OF_ARTIFACT)
    try:
        return Settings(**flags)
    except ValidationError as error:
        raise WrongUseError("; ".join(messages(error, flags))) from None
    except ValueError as error:
        raise WrongUseError(str(error)) from None


def settings_of_model(options: dict[str, Any], device: str = "auto") -> Settings:
    """Return the settings of a command for one model, by default the environment's model."""
    flags = given(options)
    if "model" not in flags:
        environment = settings_of({})
        flags = {"revision": environment.revision, **flags, "model": environment.model}
    return settings_of({"device": device, **flags})


def _type_of(field: FieldInfo) -> click.ParamType[str] | click.Path:
    """Return the type for completion; the settings validate values."""
    if words := choices(field):
        return Words(words)
    if Path in (field.annotation, *get_args(field.annotation)):
        return click.Path()
    return click.STRING
