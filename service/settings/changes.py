"""Changes of settings while the service runs: which apply at once, and which need a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from service.settings.config_file import MODEL, TABLES, Content, without
from service.settings.mistakes import messages
from service.settings.of_model import OF_EXPORTS, OPTIONS
from service.settings.schema import Settings, file_of, overriding_names
from service.settings.served import flagged

OF_MODELS = (*OPTIONS, "alias", TABLES, "pinned", "on_demand")
"""Settings of models that apply at once, unless flags choose the models."""
RELOADED = (
    *OF_MODELS,
    *("memory_budget", "api_keys", "admin_keys", "keys_file", "allowed_hosts"),
    *("log_level", "log_format", "auto_truncate", "request_timeout_seconds"),
    *("max_response_bytes", "max_bytes_in_flight", "max_body_bytes_in_flight"),
)
"""Settings that apply at once; all others need a restart."""
NO_FILE = (
    "the service was started without a file of settings, so there is nothing to read again: start "
    "it with --config"
)


@dataclass(frozen=True)
class Changes:
    """Changes from the settings of the service to a file; names are keys of the file."""

    settings: Settings
    """Settings of the service with all changes that apply at once."""
    applied: list[str]
    restart: list[str]
    """Changed keys that need a restart."""
    unchanged: list[str]
    overridden: list[str]
    """Keys over which a flag or a variable takes precedence."""


def read_again(current: Settings) -> tuple[Settings, Content]:
    """Read the file of settings again, with the flags of the start and the variables.

    Raises:
        ValueError: there is no such file, it is invalid, or it takes all API keys away; the
            message has the line and column of each mistake, and no keys.

    """
    content = file_of(current.given)
    if content is None:
        raise ValueError(NO_FILE)
    if not content.values:  # as while an editor writes it
        raise ValueError(f"--config {content.path} has no setting: write it, and reload again")
    try:
        new = Settings(**current.given)
    except ValidationError as error:
        raise ValueError("; ".join(messages(error, current.given))) from None
    if _needs_keys(current) and not _needs_keys(new):
        raise ValueError(
            f"--config {content.path} no longer has api-keys or keys-file, so that everyone could "
            "use the service: restart it if that is intended"
        )
    return new.model_copy(update={"given": current.given}), content


def _needs_keys(settings: Settings) -> bool:
    return bool(settings.api_keys or settings.keys_file)


def changes_of(current: Settings, new: Settings, content: Content) -> Changes:
    """Return the changes from the service's settings to new ones.

    Args:
        current: settings of the service.
        new: settings with the values of the file.
        content: the file.

    """
    ignored = {"given", "config"}
    names = [name for name in Settings.model_fields if name not in ignored]
    differ = [name for name in names if getattr(current, name) != getattr(new, name)]
    fixed = set(names) - set(RELOADED)
    if flagged(current) != flagged(new):
        fixed |= set(OF_MODELS)
    elif flagged(current):
        fixed |= set(OF_EXPORTS)
    applied = [name for name in differ if name not in fixed]
    restart = [name for name in differ if name in fixed]
    if _order(current) != _order(new) and TABLES not in differ:
        (restart if TABLES in fixed else applied).append(TABLES)
    settings = current.model_copy(update={name: getattr(new, name) for name in applied})
    keys = [*_keys(applied, current, new)], [*_keys(restart, current, new)]
    given = overriding_names(current.given)
    all_keys = [*_of_content(content.values)]
    kept = {*_of_content(without(content.values, given))}
    overridden = [key for key in all_keys if key not in kept]
    changed = {key.partition(":")[0] for key in (*keys[0], *keys[1])}
    unchanged = [key for key in all_keys if key not in changed and key not in overridden]
    unchanged = [key for key in unchanged if key.count(".") < 2 or not key.startswith(f"{MODEL}.")]
    return Changes(settings, *keys, unchanged, overridden)


def _keys(names: list[str], current: Settings, new: Settings) -> Iterator[str]:
    """Yield the keys of the file for changed settings; for tables the changed keys of each."""
    for name in names:
        if name != TABLES:
            yield name.replace("_", "-")
            continue
        old, tables = current.tables.models, new.tables.models
        for model in {**old, **tables}:
            if model not in tables:
                yield f"{MODEL}.{model}: removed"
            elif model not in old:
                yield f"{MODEL}.{model}: added"
            elif old[model] != tables[model]:
                pairs = ((key, getattr(old[model], key)) for key in type(old[model]).model_fields)
                changed = [key for key, value in pairs if value != getattr(tables[model], key)]
                yield f"{MODEL}.{model}: {', '.join(changed).replace('_', '-')}"
        aliases = current.tables.aliases, new.tables.aliases
        for alias in {**aliases[0], **aliases[1]}:
            if aliases[0].get(alias) != aliases[1].get(alias):
                yield f"alias.{alias}"
        both = [name for name in old if name in tables]
        if both != [name for name in tables if name in old]:
            yield f"{MODEL}: order"


def _order(settings: Settings) -> list[str]:
    return [*settings.tables.models]


def _of_content(values: dict[str, object]) -> Iterator[str]:
    """Yield the keys of a file, and for the tables of models also the keys inside."""
    for name, value in values.items():
        if name != TABLES:
            yield name.replace("_", "-")
        elif isinstance(value, dict):
            for model, table in value["models"].items():
                yield f"{MODEL}.{model}"
                yield from (f"{MODEL}.{model}.{key.replace('_', '-')}" for key in table)
            yield from (f"alias.{alias}" for alias in value["aliases"])
