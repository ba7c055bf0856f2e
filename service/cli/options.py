"""Options generated from the fields of `Settings`, and conversion of options to settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin

import click
from click.types import OptionHelpExtra
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from service.cli.command import Choice
from service.cli.terminal import WrongUseError
from service.settings import Settings
from service.settings.groups import Shown
from service.settings.mistakes import PREFIX, choices, messages
from service.settings.sources import PRECISION_OF_ARTIFACT


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
