"""Sources of settings: `HEADSCOPE_*` variables, and `headscope.toml`.

    port = 8000
    model = ["BAAI/bge-m3", "minilm"]
    max-length = 512

    [alias]
    text-embedding-3-small = "minilm"

Models may have tables with settings of their own instead, see `ModelTable`. Flags and environment
variables take precedence over the file. Unknown variables with the prefix are rejected, since a
misspelt API key or limit would silently have no effect. Variables of models and artifacts are
ignored if a flag names either.
"""

from __future__ import annotations

import difflib
import json
import re
import stat
import tomllib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from service.system.words import likely

KeyPath = tuple[str, ...]
"""Key below its tables, such as `("model", "minilm", "precision")`."""

_TOKEN = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""(?:"{0,2})|\'{3}.*?\'{3}(?:'{0,2})|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\''''
    r"""|\#[^\n]*|[\[\]{}=.,\n]|[^\s\[\]{}=.,\#"']+""",
    re.DOTALL,
)
"""String, comment, punctuation or line end, or a bare key or part of another value."""
_OPENING, _CLOSING = ("[", "{"), ("]", "}")


def places_of(text: str) -> dict[KeyPath, tuple[int, int]]:
    """Return line and column, from 1, of each key and table of a valid TOML document.

    `tomllib` does not report them: https://toml.io/en/v1.0.0
    """
    places: dict[KeyPath, tuple[int, int]] = {}
    lines = [0, *(found.end() for found in re.finditer("\n", text))]
    table: KeyPath = ()
    path: KeyPath = ()
    containers: list[tuple[str, KeyPath]] = []
    """Opening bracket and key of each array and inline table around this place."""
    start, in_key = -1, True
    for found in _TOKEN.finditer(text):
        part = found[0]
        if (part == "\n" and not containers) or (part == "," and containers[-1][0] == "{"):
            path, start, in_key = containers[-1][1] if containers else table, -1, True
        elif part in _CLOSING and containers:
            path, in_key = containers.pop()[1], False
        elif not in_key and part in _OPENING:
            containers.append((part, path))
            start, in_key = -1, part == "{"
        elif part == "=":
            in_key = False
        elif part == "[":  # of a table; an array of tables has two
            path, start = (), found.start() if start < 0 else start
        elif part == "]":
            table = path
        elif in_key and part[0] not in "#.\n":
            start = found.start() if start < 0 else start
            path = (*path, _unquoted(part))
            line = bisect_right(lines, start)
            places.setdefault(path, (line, start - lines[line - 1] + 1))
    return places


def _unquoted(key: str) -> str:
    """Return a key without its quotes."""
    return next(iter(tomllib.loads(f"{key} = 0"))) if key[:1] in {'"', "'"} else key


PRECISION_OF_ARTIFACT = (
    "a precision is for a model's export, and an artifact has its own: "
    "leave --precision or HEADSCOPE_PRECISION out"
)
SERVICE_LINK = (
    "is set by Kubernetes for a service called headscope: disable such variables with "
    "`enableServiceLinks: false` in the pod's spec"
)
_OF_KUBERNETES = re.compile(r"service_(host|port)(_\w+)?|port_\d+_(tcp|udp|sctp)(_\w+)?")
SERVED = {"model", "artifact"}
"""Settings that choose what is served."""
HIDDEN = ("tables", "cached")
"""Settings without a flag and a variable."""
OF_MODELS = {*SERVED, "revision", "pooling"}
"""Settings that belong to the models that `SERVED` chooses."""
DEVICES = {"device_id", "devices"}
"""Settings that exclude each other."""
_LISTED = {*SERVED, "served_model_name", "alias", "pinned"}


def listed(value: object) -> object:
    """Return a single name or folder as a tuple, other values unchanged."""
    return (value,) if isinstance(value, str | Path) else value


class Variables(EnvSettingsSource):
    """Source of `HEADSCOPE_*` variables, without models and artifacts if a flag names one."""

    def __call__(self) -> dict[str, object]:
        """Return the values by setting; values of flags and arguments are in `current_state`."""
        if unknown := self._unknown():
            raise ValueError("; ".join(unknown))
        values = super().__call__()
        if SERVED & self.current_state.keys():
            served = {*OF_MODELS}
            if "artifact" in self.current_state:
                served.add("precision")
            values = {name: value for name, value in values.items() if name not in served}
        if values.keys() >= SERVED:
            raise ValueError(
                "HEADSCOPE_MODEL and HEADSCOPE_ARTIFACT are both given: leave one out, or give "
                "both as flags to serve both"
            )
        exclusive = {"artifact", "precision"}
        if values.keys() & exclusive and (self.current_state | values).keys() >= exclusive:
            raise ValueError(PRECISION_OF_ARTIFACT)
        return values

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: str) -> object:
        """Decode a variable from JSON; names and folders may also be plain text."""
        if field_name not in _LISTED:
            return super().decode_complex_value(field_name, field, value)
        try:
            decoded = json.loads(value)
        except json.JSONDecodeError:
            return value
        return decoded if isinstance(decoded, list) else value

    def _unknown(self) -> list[str]:
        """Return an error message for each unknown variable, without its value."""
        prefix = self.env_prefix.lower()
        names = [name for name in self.settings_cls.model_fields if name not in HIDDEN]
        messages = []
        for variable in sorted(self.env_vars):  # names are in lower case
            name = variable.removeprefix(prefix)
            if variable.startswith(prefix) and name not in names:
                if _OF_KUBERNETES.fullmatch(name):
                    return [f"{variable.upper()} {SERVICE_LINK}"]
                (likely,) = difflib.get_close_matches(name, names, 1) or [""]
                hint = f": did you mean {(prefix + likely).upper()}?" if likely else ""
                messages.append(f"{variable.upper()} is not a setting{hint}")
        return messages


ALIAS, MODEL, TABLES = "alias", "model", "tables"
"""Names of settings; `tables` has the tables of models."""
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)")
MAX_BYTES = 2**21
"""Maximum bytes of a file of settings, whose shortest 150,000 tables are read in ten seconds."""
MAX_MISTAKES = 10
"""Maximum number of mistakes in an error message."""
_UNKNOWN = "is not a setting"


@dataclass(frozen=True)
class Content:
    """Values of a file by setting, and where each stands."""

    path: Path
    values: dict[str, object] = field(default_factory=dict)
    places: dict[tuple[str, ...], tuple[int, int]] = field(default_factory=dict)
    """Line and column of each key below its tables, from 1; keys have underscores."""

    def place(self, *key: str) -> str:
        """Return the file and the place of a key or its table, for error messages."""
        path = tuple(map(_with_underscores, key))
        while path not in self.places:
            if not path:
                return str(self.path)
            path = path[:-1]
        line, column = self.places[path]
        return f"{self.path}, line {line}, column {column}"


class ConfigFile(PydanticBaseSettingsSource):
    """Source of the settings in the file that `config` names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[object, str, bool]:
        """Return nothing; `__call__` returns all values at once."""
        del field
        return None, field_name, False

    def __call__(self) -> dict[str, object]:
        """Return the values by setting."""
        path = self.current_state.get("config")
        if path is None:
            return {}
        return without(read(Path(path), self.settings_cls).values, self.current_state.keys())


def without(values: Mapping[str, object], given: Set[str]) -> dict[str, object]:
    """Return the values of a file over which no given flag or variable takes precedence."""
    if given & DEVICES:
        given = given | DEVICES
    kept = {name: value for name, value in values.items() if name not in given}
    tables = kept.pop(TABLES, None)
    if given & SERVED:  # a flag or a variable chooses what is served
        kept = {name: value for name, value in kept.items() if name not in OF_MODELS}
    if given & SERVED or not isinstance(tables, dict):
        return kept
    return kept | {
        TABLES: {
            name: {key: value for key, value in table.items() if key not in given}
            if isinstance(table, dict)
            else table
            for name, table in tables.items()
        }
    }


def read(path: Path, settings: type[BaseSettings]) -> Content:
    """Read a file of settings.

    Raises:
        ValueError: it cannot be read, is not TOML, or has an unknown key; the message has the line
            and the column, and never a value.

    """
    places, parsed = _parsed(path)
    content = Content(path)
    content.places.update({tuple(map(_with_underscores, key)): at for key, at in places.items()})
    names = [name for name in settings.model_fields if name not in ("config", *HIDDEN)]
    mistakes = [*_repeated(content, parsed)]
    for key, value in parsed.items():
        if len(mistakes) >= MAX_MISTAKES:
            break
        name = key.replace("-", "_")
        if name not in names:
            hint = likely(name.replace("_", "-"), [known.replace("_", "-") for known in names])
            mistakes.append(f"{content.place(name)}: {key} {_UNKNOWN}{hint}")
        elif name == MODEL and isinstance(value, dict):
            for own, table in value.items():
                mistakes += _repeated(content, table, MODEL, own)
            content.values[TABLES] = {own: _table(table) for own, table in value.items()}
        elif name == ALIAS and isinstance(value, dict):
            content.values[name] = [f"{alias}={of}" for alias, of in value.items()]
            for alias, of in value.items():
                if not isinstance(of, str):
                    where = content.place(ALIAS, alias)
                    mistakes.append(f"{where}: {ALIAS}.{alias} needs the name of a model")
        else:
            content.values[name] = value
    if mistakes:
        raise ValueError("--config " + "; ".join(mistakes[:MAX_MISTAKES]))
    return content


def check_file(path: Path, max_bytes: int, kind: str) -> None:
    """Check that a file can be read whole, and again after a change.

    Raises:
        OSError: it does not exist, or its folder cannot be read.
        ValueError: it is a pipe, device or folder, or too large; the message begins with `kind`.

    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{kind} {path} is a pipe, device or folder: name a regular file")
    if status.st_size > max_bytes:
        size = f"{status.st_size} bytes, and at most {max_bytes} are read"
        raise ValueError(f"{kind} {path} has {size}: name a shorter file")


def _parsed(path: Path) -> tuple[dict[tuple[str, ...], tuple[int, int]], dict[str, object]]:
    """Return the places of the keys in a file, and its content."""
    try:
        check_file(path, MAX_BYTES, "--config")
        text = path.read_text(encoding="utf-8-sig")
        try:
            parsed = tomllib.loads(text)
            return places_of(text), parsed
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"--config {path}{_at(str(error), text)}") from None
        except ValueError:
            raise ValueError(f"--config {path} has a number with too many digits") from None
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--config {path} is not UTF-8") from None
    except RecursionError:
        raise ValueError(f"--config {path} has values in too many levels") from None


def _at(message: str, text: str) -> str:
    """Return tomllib's message after its line and column."""
    found = _AT.fullmatch(message)
    if found is None:
        return f": {message}"
    last = text.count("\n") + 1
    line, column = (int(found[2]), int(found[3])) if found[2] else (last, 1)
    return f", line {line}, column {column}: {found[1]}"


def _repeated(content: Content, table: object, *path: str) -> Iterator[str]:
    """Yield a mistake for each key that a table has with `-` and again with `_`."""
    keys = map(_with_underscores, table) if isinstance(table, dict) else ()
    for name, count in Counter(keys).items():
        if count > 1:
            what = f"{'.'.join([*path, name.replace('_', '-')])} is given twice, with - and with _"
            yield f"{content.place(*path, name)}: {what}: leave one out"


def _table(value: object) -> object:
    """Return a model's table with the names of settings as keys."""
    if not isinstance(value, dict):
        return value
    return {_with_underscores(key): inner for key, inner in value.items()}


def _with_underscores(key: str) -> str:
    return key.replace("-", "_")
