"""`headscope.toml`: settings in a file, with the line and column of each mistake.

    port = 8000
    model = ["BAAI/bge-m3", "minilm"]
    max-length = 512

    [alias]
    text-embedding-3-small = "minilm"

Flags and environment variables take precedence over the file.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from service.settings.environment import OF_MODELS, SERVED

ALIAS = "alias"
_KEY = re.compile(r"""^(\s*)["']?([A-Za-z0-9_.-]+)["']?\s*=""")
_TABLE = re.compile(r"^(\s*)\[")
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)")
_UNKNOWN = "is not a setting"


@dataclass(frozen=True)
class Content:
    """Values of a file by setting, and where each stands."""

    path: Path
    values: dict[str, object] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Line and column of each key, from 1."""

    def place(self, name: str) -> str:
        """Return the file and the place of a setting, for error messages."""
        if name not in self.places:
            return str(self.path)
        line, column = self.places[name]
        return f"{self.path}, line {line}, column {column}"


class ConfigFile(PydanticBaseSettingsSource):
    """Source of the settings in the file that `config` names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[object, str, bool]:
        """Return nothing; `__call__` returns all values at once."""
        del field
        return None, field_name, False

    def __call__(self) -> dict[str, object]:
        """Return the values by setting.

        Raises:
            ValueError: the file cannot be read, is not TOML, or has an unknown key.

        """
        path = self.current_state.get("config")
        if path is None:
            return {}
        values = read(Path(path), self.settings_cls).values
        if SERVED & self.current_state.keys():  # a flag or a variable chooses what is served
            return {name: value for name, value in values.items() if name not in OF_MODELS}
        return values


def read(path: Path, settings: type[BaseSettings]) -> Content:
    """Read a file of settings.

    Raises:
        ValueError: it cannot be read, is not TOML, or has an unknown key; the message has the line
            and the column, and never a value.

    """
    try:
        text = path.read_text(encoding="utf-8")
        parsed = tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--config {path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--config {path}{_at(str(error), text)}") from None
    content = Content(path, places=_places(text))
    names = [name for name in settings.model_fields if name != "config"]
    unknown = []
    for key, value in parsed.items():
        name = key.replace("-", "_")
        if name not in names:
            (likely,) = difflib.get_close_matches(name, names, 1) or [""]
            hint = f": did you mean {likely.replace('_', '-')}?" if likely else ""
            unknown.append(f"{content.place(name)}: {key} {_UNKNOWN}{hint}")
        elif name == ALIAS and isinstance(value, dict):
            content.values[name] = [f"{alias}={model}" for alias, model in value.items()]
        else:
            content.values[name] = value
    if unknown:
        raise ValueError("--config " + "; ".join(unknown))
    return content


def _at(message: str, text: str) -> str:
    """Return tomllib's message after its line and column."""
    found = _AT.fullmatch(message)
    if found is None:
        return f": {message}"
    last = text.count("\n") + 1
    line, column = (int(found[2]), int(found[3])) if found[2] else (last, 1)
    return f", line {line}, column {column}: {found[1]}"


def _places(text: str) -> dict[str, tuple[int, int]]:
    """Return the line and column of each key outside of tables, and of each table."""
    places: dict[str, tuple[int, int]] = {}
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if found := _TABLE.match(line):
            inside = True
            name = line.strip().strip("[]").strip()
        elif not inside and (found := _KEY.match(line)):
            name = found[2]
        else:
            continue
        places.setdefault(name.replace("-", "_"), (number, len(found[1]) + 1))
    return places
