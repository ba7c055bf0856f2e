"""Messages about invalid settings: flag or place, value, and what is allowed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from service.settings.model_group import ModelTable
from service.settings.schema import Settings, file_of, overriding_names
from service.settings.sources import MAX_MISTAKES, MODEL, TABLES, Content
from service.system.words import likely, must_be_one_of

PREFIX = "HEADSCOPE_"


def messages(error: ValidationError, flags: Mapping[str, object]) -> list[str]:
    """Return a message for each of the first invalid settings, with its flag, variable or place."""
    content = file_of(flags)
    found = islice(error.errors(), MAX_MISTAKES)
    return list(dict.fromkeys(_wrong(item, flags, content) for item in found))


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the words of a setting that is a choice, else nothing."""
    return tuple(_literals(field.annotation))


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


def _literals(annotation: object) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _literals(part)
